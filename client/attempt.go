package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// outcome is how an attempt ended.
type outcome int

const (
	// answered: the cluster made a final decision; the error, if any, is its answer.
	answered outcome = 1
	// notAccepted: the attempt certainly had no effect.
	notAccepted outcome = 2
	// unknown: the attempt may have had an effect.
	unknown outcome = 3
)

// classify returns the outcome of an attempt that ended with err, and the error as one of this package's types.
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
			// The request could not be encoded: it was not sent, and never can be.
			return answered, &RequestError{Reason: ReasonInvalid, Message: failed.Message(), Hint: "check that all names are UTF-8", local: true}
		}
		// An answer arrived but cannot be decoded.
		return unknown, &UnknownOutcomeError{Err: err}
	}
	switch failed.Code() {
	case connect.CodeInvalidArgument, connect.CodeUnimplemented, connect.CodeUnauthenticated, connect.CodePermissionDenied,
		connect.CodeNotFound:
		// A proxy or another server answered, not quotad: it carried nothing out, and never will.
		return answered, &RequestError{
			Reason: ReasonInvalid, Message: failed.Message(), Hint: "check that this is the API address of a quotad node",
			beforeApply: true,
		}
	default:
		// Other codes may come from anything on the path, before or after the request was carried out.
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return notAccepted, &NotAcceptedError{Err: err}
	}
	return unknown, &UnknownOutcomeError{Err: err}
}

// noRoom reports whether the leader's disk or memory is full. That lasts, and no other node accepts the command
// meanwhile.
func noRoom(err error) bool {
	return errors.Is(err, ReasonDiskFull) || errors.Is(err, ReasonMemoryFull)
}

// classifyInfo is classify for an error with quotad's own detail.
func classifyInfo(info *quotav1.ErrorInfo, message string) (outcome, error) {
	reason := Reason(info.GetReason())
	switch reason {
	case ReasonNoLeader, ReasonOverloaded, ReasonTooManyInFlight, ReasonDiskFull, ReasonMemoryFull:
		return notAccepted, &NotAcceptedError{Reason: reason, Err: errors.New(message), leader: info.GetLeaderAddress()}
	case ReasonStopping, ReasonCanceled:
		// Nodes report both for requests that never began, with NotAccepted set, and for requests that may still run,
		// without it.
		if info.GetNotAccepted() {
			return notAccepted, &NotAcceptedError{Reason: reason, Err: errors.New(message)}
		}
		return unknown, &UnknownOutcomeError{Reason: reason, Err: errors.New(message)}
	case ReasonCallerBudget, ReasonBudgetFull:
		// Budgets of calls, and of stored results, which acknowledgements free, may have room again at once. Any other
		// such answer is stored under the request's session number, and a failed OpenSession would fail again if
		// repeated now.
		refused := &NotAcceptedError{Reason: reason, Err: errors.New(message)}
		if info.GetNotAccepted() || info.GetBudget() == resultBudget {
			return notAccepted, refused
		}
		refused.final = true
		return answered, refused
	case ReasonUnknownOutcome, ReasonInternal, 0:
		return unknown, &UnknownOutcomeError{Reason: reason, Err: errors.New(message)}
	default:
		return answered, &RequestError{
			Reason: reason, Message: withoutPlace(message), Hint: info.GetHint(), Quota: info.GetQuota(), Field: withoutPlace(info.GetField()),
			FenceCounter: info.GetFenceCounter(), beforeApply: info.GetNotAccepted(),
		}
	}
}

// withoutPlace removes a command's index in its Batch, which precedes its field names. The client chooses which commands travel
// together; the caller does not know the index.
func withoutPlace(text string) string {
	rest, ok := strings.CutPrefix(text, "commands[")
	if !ok {
		return text
	}
	if place, field, found := strings.Cut(rest, "]."); found && strings.Trim(place, "0123456789") == "" {
		return field
	}
	return text
}

// resultBudget is the name of the budget of stored results.
const resultBudget = "result_bytes"

// errorInfo returns an error's detail; nil if it has none.
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

// sender makes one attempt at one node.
type sender[T any] func(ctx context.Context, to *node) (T, error)

// attempt is one try at one node, and how it ended.
type attempt[T any] struct {
	node           *node
	value          T
	outcome        outcome
	err            error
	sent, received time.Time
}

// patience is when to ask the next node as well.
type patience struct {
	// leader is how long to wait for the known leader before asking other nodes.
	leader time.Duration
	// others is the interval between further nodes.
	others time.Duration
	// each bounds one attempt.
	each time.Duration
}

// race asks the known leader first, other nodes after a while, and each hinted leader at once, until one answers. It asks no node
// twice, so two nodes that point at each other end in an error. Exception: if a hinted leader is unreachable, as through a tunnel or a
// load balancer, race asks the hinting node to forward. doubt: another attempt than the returned one may have had an effect.
func race[T any](ctx context.Context, c *Client, p patience, send sender[T]) (last attempt[T], doubt bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	order, led := c.nodes.order()
	wait := p.others
	if led {
		wait = p.leader
	}
	r := &racing[T]{ctx: ctx, client: c, patience: p, send: send, order: order}
	if wait >= p.each {
		// This attempt ends before another node is asked. It needs neither goroutine nor timers: thousands of calls may wait in it.
		r.asked, r.order = append(r.asked, order[0]), order[1:]
		if r.ended(try(ctx, order[0], p.each, send)) {
			return r.last, r.doubt
		}
		wait = max(wait-time.Since(r.last.sent), p.others)
	}
	r.run(wait)
	return r.last, r.doubt
}

// racing is the state of one race.
type racing[T any] struct {
	ctx      context.Context
	client   *Client
	patience patience
	send     sender[T]
	// order are the nodes to ask next.
	order []*node
	// results takes the ends of attempts until the race is over.
	results chan attempt[T]
	over    chan struct{}
	running int
	asked   []*node
	// hints has the hinting node of each hinted leader; nil: there was none.
	hints map[*node]*node
	// last and doubt are the race's results so far.
	last  attempt[T]
	doubt bool
}

// run asks nodes, the second one after wait, until one answers or all have failed.
func (r *racing[T]) run(wait time.Duration) {
	r.results, r.over = make(chan attempt[T]), make(chan struct{})
	defer close(r.over)
	hedge := time.NewTimer(wait)
	defer hedge.Stop()
	detour := time.NewTimer(time.Hour)
	defer detour.Stop()
	if len(r.asked) > 0 && r.follow(r.last) {
		detour.Reset(r.client.prompt().leader)
	} else {
		r.askNext()
	}
	for r.running > 0 {
		select {
		case a := <-r.results:
			r.running--
			if r.ended(a) {
				return
			}
			if r.follow(a) {
				detour.Reset(r.client.prompt().leader)
				continue
			}
		case <-detour.C:
			r.forward()
			continue
		case <-hedge.C:
			hedge.Reset(r.patience.others)
		}
		r.askNext()
	}
}

// ended records the end of an attempt, and reports whether it ends the race.
func (r *racing[T]) ended(a attempt[T]) bool {
	if a.err == nil {
		r.client.nodes.lead(a.node)
	}
	if a.outcome == answered || errors.Is(a.err, ReasonOverloaded) || noRoom(a.err) || errors.Is(a.err, ReasonCallerBudget) {
		// A leader without room is still the leader: no other node accepts the command.
		r.last, r.doubt = a, r.doubt || r.running > 0
		return true
	}
	r.doubt = r.doubt || a.outcome == unknown
	if r.last.outcome != unknown {
		r.last = a
	}
	return false
}

func (r *racing[T]) askNext() {
	if len(r.order) > 0 {
		r.ask(r.order[0])
		r.order = r.order[1:]
	}
}

func (r *racing[T]) ask(n *node) {
	if n == nil || slices.Contains(r.asked, n) {
		return
	}
	r.asked = append(r.asked, n)
	r.running++
	r.client.tasks.Go(func() {
		select {
		case r.results <- try(r.ctx, n, r.patience.each, r.send):
		case <-r.over:
		}
	})
}

// follow asks the leader that a failed attempt hints at, and reports whether it did. If that leader cannot be reached, it asks the
// hinting node to forward.
func (r *racing[T]) follow(a attempt[T]) bool {
	if by := r.hints[a.node]; by != nil && !a.node.reachable() {
		r.ask(by)
		return false
	}
	hinted := r.client.nodes.follow(a.node, a.err)
	if hinted == nil || a.node.relay == nil {
		return false
	}
	if slices.Contains(r.asked, hinted) {
		if !hinted.reachable() {
			r.ask(a.node.relay)
		}
		return false
	}
	if r.hints == nil {
		r.hints = map[*node]*node{}
	}
	r.hints[hinted] = a.node.relay
	r.client.counters.redirects.Add(1)
	r.ask(hinted)
	return true
}

// forward asks the nodes that hinted at a still unreachable leader to forward the request.
func (r *racing[T]) forward() {
	for hinted, by := range r.hints {
		if !hinted.reachable() {
			r.ask(by)
		}
	}
}

// try makes one attempt.
func try[T any](ctx context.Context, n *node, limit time.Duration, send sender[T]) attempt[T] {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// Without a connection nothing was sent. A transport without httptrace calls neither hook.
	var reported, connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { reported.Store(true) }, GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	a := attempt[T]{node: n, sent: time.Now()}
	a.value, a.err = send(ctx, n)
	a.received = time.Now()
	failed := a.err
	a.outcome, a.err = classify(failed)
	if a.outcome == unknown && reported.Load() && !connected.Load() {
		a.outcome, a.err = notAccepted, &NotAcceptedError{Err: failed}
	}
	if a.err == nil || spoke(failed) {
		n.heard.Store(a.received.UnixNano())
		n.met.Store(true)
		return a
	}
	n.failed(failed)
	if wrong, ok := errors.AsType[*RequestError](a.err); ok && !wrong.local {
		wrong.Message = fmt.Sprintf("%s does not answer as a quotad node: %s", n.trouble.Load().host, wrong.Message)
	}
	return a
}

// spoke reports whether an error came from a quotad node itself.
func spoke(err error) bool {
	failed, ok := errors.AsType[*connect.Error](err)
	return ok && errorInfo(failed) != nil
}
