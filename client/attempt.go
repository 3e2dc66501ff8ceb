package client

import (
	"context"
	"errors"
	"net"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// The three ways an attempt can end.
type outcome int

const (
	// answered: the cluster decided, for good; the error, if any, is its answer.
	answered outcome = 1
	// notAccepted: this attempt certainly had no effect.
	notAccepted outcome = 2
	// unknown: it may have had one.
	unknown outcome = 3
)

// classify tells how an attempt that ended with err ended, and returns the error as one of this package's types.
func classify(err error) (outcome, error) {
	if err == nil {
		return answered, nil
	}
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return unknown, &UnknownOutcomeError{Err: err}
	}
	if info := errorInfo(failed); info != nil {
		return classifyInfo(info, failed.Message())
	}
	if errors.Is(err, proto.Error) {
		if failed.Code() == connect.CodeInternal {
			// It could not be encoded: it was not sent, and never can be.
			return answered, &RequestError{Reason: Invalid, Message: failed.Message(), Hint: "are all names UTF-8?"}
		}
		// There was an answer, which cannot be read.
		return unknown, &UnknownOutcomeError{Err: err}
	}
	switch failed.Code() {
	case connect.CodeInvalidArgument, connect.CodeUnimplemented, connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeNotFound:
		// A proxy, or a server that is not quotad: it did not carry anything out, and will not.
		return answered, &RequestError{Reason: Invalid, Message: failed.Message(), Hint: "is this a quotad node's API address?", door: true}
	default:
		// What is left may come from anywhere on the way, before or after the request was carried out.
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return notAccepted, &NotAcceptedError{Err: err}
	}
	return unknown, &UnknownOutcomeError{Err: err}
}

// noRoom tells whether the leader's disk or memory is full: it stays so for long, and nobody else will take the command.
func noRoom(err error) bool { return errors.Is(err, DiskFull) || errors.Is(err, MemoryFull) }

// classifyInfo does the same for an error that carries quotad's own detail.
func classifyInfo(info *quotav1.ErrorInfo, message string) (outcome, error) {
	reason := Reason(info.GetReason())
	switch reason {
	case NoLeader, Overloaded, TooManyInFlight, DiskFull, MemoryFull:
		return notAccepted, &NotAcceptedError{Reason: reason, Err: errors.New(message), leader: info.GetLeaderAddress()}
	case Stopping, Canceled:
		// Both are said of what never began, with a mark, and of what may go on, without.
		if info.GetNotAccepted() {
			return notAccepted, &NotAcceptedError{Reason: reason, Err: errors.New(message)}
		}
		return unknown, &UnknownOutcomeError{Reason: reason, Err: errors.New(message)}
	case CallerBudget, BudgetFull:
		// Of calls, and of stored results, which acknowledgements free, there may be some again at once. A session's number
		// keeps any other such answer, and a session that cannot be opened now cannot be in a moment.
		refused := &NotAcceptedError{Reason: reason, Err: errors.New(message)}
		if info.GetNotAccepted() || info.GetBudget() == resultBudget {
			return notAccepted, refused
		}
		refused.final = true
		return answered, refused
	case UnknownOutcome, Internal, 0:
		return unknown, &UnknownOutcomeError{Reason: reason, Err: errors.New(message)}
	default:
		return answered, &RequestError{
			Reason: reason, Message: message, Hint: info.GetHint(), Quota: info.GetQuota(), Field: info.GetField(), FenceCounter: info.GetFenceCounter(),
			door: info.GetNotAccepted(),
		}
	}
}

// resultBudget is the name of the budget of stored results.
const resultBudget = "result_bytes"

// errorInfo returns an error's detail, nil where it has none.
func errorInfo(err *connect.Error) *quotav1.ErrorInfo {
	for _, detail := range err.Details() {
		if value, valueErr := detail.Value(); valueErr == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// sender sends one attempt to one node.
type sender[T any] func(ctx context.Context, to *node) (T, error)

// attempt is one try at one node, and how it ended.
type attempt[T any] struct {
	node           *node
	value          T
	outcome        outcome
	err            error
	sent, received time.Time
}

// patience says when to ask the next node as well.
type patience struct {
	// leader is how long the known leader is waited for before anybody else is asked.
	leader time.Duration
	// others is the time between further nodes.
	others time.Duration
	// each is the longest that one attempt may take.
	each time.Duration
}

// race asks the known leader first, others after a while, and follows every hint to a leader at once, until one of
// them answers. No node is asked twice, so that two nodes that each point at the other end in an error. doubt says that
// an attempt besides the one returned may have had an effect.
func race[T any](ctx context.Context, c *Client, p patience, send sender[T]) (last attempt[T], doubt bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	order, led := c.nodes.order()
	results := make(chan attempt[T], maxNodes+1)
	asked := map[*node]bool{}
	running := 0
	ask := func(n *node) {
		if n == nil || asked[n] {
			return
		}
		asked[n] = true
		running++
		c.tasks.Go(func() { results <- try(ctx, n, p.each, send) })
	}
	wait := p.others
	if led {
		wait = p.leader
	}
	ask(order[0])
	order = order[1:]
	hedge := time.NewTimer(wait)
	defer hedge.Stop()
	for running > 0 {
		select {
		case a := <-results:
			running--
			if a.err == nil {
				c.nodes.lead(a.node)
			}
			if a.outcome == answered || errors.Is(a.err, Overloaded) || noRoom(a.err) || errors.Is(a.err, CallerBudget) {
				// A leader that takes nothing more is the leader all the same: nobody else will take it.
				return a, doubt || running > 0
			}
			doubt = doubt || a.outcome == unknown
			if last.outcome != unknown {
				last = a
			}
			if hinted := c.nodes.follow(a.node, a.err); hinted != nil && !asked[hinted] {
				c.counters.redirects.Add(1)
				ask(hinted)
				continue
			}
		case <-hedge.C:
			hedge.Reset(p.others)
		}
		if len(order) > 0 {
			ask(order[0])
			order = order[1:]
		}
	}
	return last, doubt
}

// try makes one attempt.
func try[T any](ctx context.Context, n *node, limit time.Duration, send sender[T]) attempt[T] {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a := attempt[T]{node: n, sent: time.Now()}
	a.value, a.err = send(ctx, n)
	a.received = time.Now()
	a.outcome, a.err = classify(a.err)
	return a
}
