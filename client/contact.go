package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/client/internal/connpool"
	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	// firstContact is how long a client that no node has ever answered waits while connections fail; silentContact, while nodes stay
	// silent.
	firstContact  = 800 * time.Millisecond
	silentContact = 3 * time.Second
	// pingWait bounds a Ping whose context has no deadline.
	pingWait = time.Second
)

// UnreachableError reports that no node answered, with the result of the last attempt at each. errors.Is matches it to ErrClusterAway.
type UnreachableError struct{ nodes []contact }

// contact is the result of the last attempt at a node.
type contact struct {
	host string
	err  error
}

// Error implements error.
func (e *UnreachableError) Error() string { return "quotad: " + e.detail() }

func (e *UnreachableError) detail() string {
	const shown = 3
	if len(e.nodes) == 1 {
		return fmt.Sprintf("no quotad node answers at %s: %s", e.nodes[0].host, brief(e.nodes[0].err))
	}
	var parts []string
	for _, node := range e.nodes[:min(len(e.nodes), shown)] {
		parts = append(parts, node.host+": "+brief(node.err))
	}
	if more := len(e.nodes) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("no quotad node answers (%s)", strings.Join(parts, "; "))
}

// Is matches ErrClusterAway.
func (e *UnreachableError) Is(target error) bool { return target == ErrClusterAway }

// brief returns the innermost message of a failure to reach a node.
func brief(err error) string {
	var named *net.DNSError
	var number syscall.Errno
	switch {
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, connpool.ErrNoAnswer), os.IsTimeout(err):
		return "no answer"
	case errors.As(err, &named):
		return named.Err
	case errors.As(err, &number):
		return number.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err.Error()
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return untrusted.Error()
	}
	if failed, ok := errors.AsType[*connect.Error](err); ok {
		return failed.Message()
	}
	return err.Error()
}

// failed records a failed attempt at the node. A cancellation by this client says nothing about the node.
func (n *node) failed(err error) {
	if errors.Is(err, context.Canceled) && n.trouble.Load() != nil {
		return
	}
	n.trouble.Store(&contact{strings.TrimPrefix(strings.TrimPrefix(n.base, "http://"), "https://"), err})
}

// unreachable returns why no node answers. refused: no node is worth waiting for.
func (n *nodes) unreachable() (refused bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := &UnreachableError{}
	refused = true
	for _, known := range n.all {
		last := known.trouble.Load()
		if last == nil {
			last = &contact{host: strings.TrimPrefix(strings.TrimPrefix(known.base, "http://"), "https://")}
		}
		e.nodes = append(e.nodes, *last)
		refused = refused && brief(last.err) != "no answer"
	}
	return refused, e
}

// failIfUnreached cancels a call if no node has answered this client in time, nor ever before, since its endpoints are probably wrong. The
// returned function stops the timers.
func (c *Client) failIfUnreached(cancel context.CancelCauseFunc) (stop func()) {
	if c.nodes.met.Load() {
		return func() {}
	}
	fail := func(always bool) {
		if refused, err := c.nodes.unreachable(); !c.nodes.met.Load() && (always || refused) {
			cancel(err)
		}
	}
	first := time.AfterFunc(firstContact, func() { fail(false) })
	second := time.AfterFunc(silentContact, func() { fail(true) })
	return func() { first.Stop(); second.Stop() }
}

// Ping reports whether a node of the cluster answers within a second, or the context's deadline. The error names the nodes tried.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.greet(ctx)
	return err
}

// Ready reports whether the cluster can take requests now: a node answers and there is a leader.
func (c *Client) Ready(ctx context.Context) error {
	a, err := c.greet(ctx)
	if err != nil {
		return err
	}
	if a.outcome != answered {
		return joined(ErrClusterAway, a.err)
	}
	return nil
}

// greet sends the nodes a harmless request. It returns an error if no quotad node answers.
func (c *Client) greet(ctx context.Context) (attempt[*quotav1.CheckFenceResponse], error) {
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return attempt[*quotav1.CheckFenceResponse]{}, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	a, _ := race(ctx, c, c.prompt(), func(ctx context.Context, to *node) (*quotav1.CheckFenceResponse, error) {
		return to.api.CheckFence(ctx, &quotav1.CheckFenceRequest{Lease: 1, Fence: 1})
	})
	wrong, refused := errors.AsType[*RequestError](a.err)
	switch {
	case refused && wrong.Reason == ReasonInvalid:
		return a, wrong
	case a.err == nil, refused, reasonIn(a.err) != 0:
		return a, nil
	}
	_, err = c.nodes.unreachable()
	return a, err
}

// reasonIn returns the cluster's reason in an error; 0 if there is none.
func reasonIn(err error) Reason {
	reason, _ := errors.AsType[Reason](err)
	return reason
}
