package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
	"github.com/quotad/quotad/rpc/wire"
)

// maxNodes bounds the nodes that are known, so that hints from a confused cluster cannot grow the list for ever.
const maxNodes = 32

// noForward asks a node that does not lead to say who does, instead of forwarding the call.
const noForward = "Quotad-No-Forward"

// node is one member's API.
type node struct {
	base string
	api  quotav1connect.QuotaServiceClient
	// tasks is the part of it that keeps retry budgets.
	tasks quotav1connect.TaskServiceClient
	// relay is the same member, asked to forward what it does not lead; nil: this is that one.
	relay *node
	// heard is when it last answered, in nanoseconds since 1970; 0: never.
	heard atomic.Int64
	// trouble is what the last attempt came to that got no answer; nil: there was none.
	trouble atomic.Pointer[contact]
	// met is set once any node has answered.
	met *atomic.Bool
}

// reachable reports whether a node has answered lately.
func (n *node) reachable() bool { return time.Since(time.Unix(0, n.heard.Load())) < reachLife }

const (
	// reachLife is how long a node that answered counts as reachable, relayLife how long calls go through another one before the
	// leader is tried again.
	reachLife = 10 * time.Second
	relayLife = time.Minute
)

// nodes knows the cluster's members and which of them led last.
type nodes struct {
	http   connect.HTTPClient
	token  string
	scheme string
	// met: some node has answered.
	met atomic.Bool

	mu     sync.Mutex
	all    []*node
	leader *node
	// led is when the leader was found out.
	led time.Time
}

func newNodes(addresses []string, httpClient connect.HTTPClient, token string) (*nodes, error) {
	n := &nodes{http: httpClient, token: token, scheme: "http"}
	for i, address := range addresses {
		base, scheme, err := baseURL(address, n.scheme)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			// Leaders are hinted at as host:port only; they are reached as the first address is.
			n.scheme = scheme
		}
		n.add(base)
	}
	if len(n.all) == 0 {
		return nil, errors.New("quotad: the address of a node is missing")
	}
	if len(n.all) > maxNodes {
		return nil, fmt.Errorf("quotad: %d addresses of nodes; at most %d are allowed", len(n.all), maxNodes)
	}
	return n, nil
}

// baseURL turns host:port or a URL into the URL of a node.
func baseURL(address, scheme string) (base, used string, err error) {
	if !strings.Contains(address, "://") {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return "", "", fmt.Errorf("quotad: address %q is neither host:port nor a URL: %w", address, err)
		}
		return scheme + "://" + address, scheme, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", "", fmt.Errorf("quotad: address %q is not an http or https URL", address)
	}
	return strings.TrimRight(u.Scheme+"://"+u.Host+u.Path, "/"), u.Scheme, nil
}

// add returns the node at base, a new one where it was not known; nil where there are too many.
func (n *nodes) add(base string) *node {
	for _, known := range n.all {
		if known.base == base {
			return known
		}
	}
	if len(n.all) >= maxNodes {
		return nil
	}
	added := n.connect(base, false)
	added.relay = n.connect(base, true)
	n.all = append(n.all, added)
	return added
}

// connect returns the API at base, whose node forwards what it does not lead or says who does.
func (n *nodes) connect(base string, forward bool) *node {
	headers := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			if !forward {
				request.Header().Set(noForward, "1")
			}
			if n.token != "" {
				request.Header().Set("Authorization", "Bearer "+n.token)
			}
			return next(ctx, request)
		}
	})
	options := []connect.ClientOption{
		connect.WithCodec(wire.Codec{}),
		connect.WithInterceptors(headers),
		// Answers are small, and the nodes are near: compressing them costs more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxAnswer),
	}
	return &node{
		base: base, met: &n.met, api: quotav1connect.NewQuotaServiceClient(n.http, base, options...),
		tasks: quotav1connect.NewTaskServiceClient(n.http, base, options...),
	}
}

// maxAnswer is the largest answer that is read, in bytes: as large as a node sends one.
const maxAnswer = 128 << 20

// order returns the nodes in the order in which to ask them, and whether the first of them is known to have led.
func (n *nodes) order() (order []*node, led bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader != nil && n.leader.relay == nil && time.Since(n.led) > relayLife {
		n.leader = nil
	}
	if n.leader != nil {
		order = append(order, n.leader)
	}
	for _, known := range n.all {
		if known != n.leader {
			order = append(order, known)
		}
	}
	return order, n.leader != nil
}

// lead remembers who answered as the leader.
func (n *nodes) lead(leader *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader != leader {
		n.leader, n.led = leader, time.Now()
	}
}

// Leader returns the address of the node that answered last as the leader, or through which the leader is reached, as a URL; empty: none
// is known now.
func (c *Client) Leader() string {
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	if c.nodes.leader == nil {
		return ""
	}
	return c.nodes.leader.base
}

// follow learns from a failed attempt: the asked node does not lead, and perhaps it knows who does.
func (n *nodes) follow(asked *node, err error) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader == asked {
		n.leader = nil
	}
	var refused *NotAcceptedError
	if !errors.As(err, &refused) || refused.leader == "" {
		return nil
	}
	base, _, parseErr := baseURL(refused.leader, n.scheme)
	if parseErr != nil {
		return nil
	}
	return n.add(base)
}
