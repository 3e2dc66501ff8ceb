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

// maxNodes bounds the known nodes, so that hints from a misconfigured cluster cannot grow the list without bound.
const maxNodes = 32

// noForward asks a follower to name the leader instead of forwarding the call.
const noForward = "Quotad-No-Forward"

// node is one member's API.
type node struct {
	base string
	api  quotav1connect.QuotaServiceClient
	// tasks is the node's API for retry budgets.
	tasks quotav1connect.TaskServiceClient
	// relay is the same member, asked to forward as a follower; nil: this is the relay.
	relay *node
	// heard is when the node last answered, in nanoseconds since 1970; 0: never.
	heard atomic.Int64
	// trouble is the failure of the last unanswered attempt; nil: there was none.
	trouble atomic.Pointer[contact]
	// met is set once any node has answered.
	met *atomic.Bool
}

// reachable reports whether the node has answered recently.
func (n *node) reachable() bool { return time.Since(time.Unix(0, n.heard.Load())) < reachLife }

const (
	// reachLife is how long a node counts as reachable after an answer; relayLife is how long calls go through another node before the
	// leader is tried again.
	reachLife = 10 * time.Second
	relayLife = time.Minute
)

// nodes has the cluster's members, and the last known leader.
type nodes struct {
	http   connect.HTTPClient
	token  string
	scheme string
	// met: a node has answered.
	met atomic.Bool

	mu     sync.Mutex
	all    []*node
	leader *node
	// led is when the leader was determined.
	led time.Time
}

func newNodes(addresses []string, scheme string, httpClient connect.HTTPClient, token string) (*nodes, error) {
	n := &nodes{http: httpClient, token: token, scheme: scheme}
	for i, address := range addresses {
		base, scheme, err := baseURL(address, n.scheme)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			// Hints name leaders as host:port only; use the scheme of the first address.
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

// add returns the node at base, and adds it if it is unknown; nil: there are too many.
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

// connect returns the API at base. As a follower, the node forwards calls, or names the leader.
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
		// Answers are small and nodes are near: compression costs more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxAnswer),
	}
	return &node{
		base: base, met: &n.met, api: quotav1connect.NewQuotaServiceClient(n.http, base, options...),
		tasks: quotav1connect.NewTaskServiceClient(n.http, base, options...),
	}
}

// maxAnswer bounds the size of an answer, in bytes; it equals the nodes' own bound.
const maxAnswer = 128 << 20

// order returns the nodes in the order in which to ask them, and whether the first one led last.
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

// lead records the node that answered as the leader.
func (n *nodes) lead(leader *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader != leader {
		n.leader, n.led = leader, time.Now()
	}
}

// Leader returns the URL of the node that last answered as the leader, or through which the leader is reached; empty: none is known
// now.
func (c *Client) Leader() string {
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	if c.nodes.leader == nil {
		return ""
	}
	return c.nodes.leader.base
}

// follow learns from a failed attempt that the asked node does not lead, and returns the leader that it names, if any.
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
