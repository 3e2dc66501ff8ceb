package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

const (
	// failedFor is how long calls of most callers must fail until health reports it. Without calls, the failure is remembered as long.
	failedFor = 10 * time.Second
	// outcomesEvery is the interval in which callers are counted: those whose calls failed, and the others.
	outcomesEvery = time.Second
	// gaveUpAfter: a call that its caller ends after at least this time in flight counts as a failure of the node.
	gaveUpAfter = time.Second
	// maxCounted bounds the callers that are counted in one interval.
	maxCounted = 4096
)

// outcomes tells whether calls of most callers fail. It counts callers, not calls: one caller that makes its own calls fail must not turn
// a node red that serves others.
type outcomes struct {
	mu sync.Mutex
	// by is, for each caller, the number of its failed calls since from, minus that of its other calls.
	by   map[string]int
	from time.Time
	// since is when calls of most callers began to fail, zero while they do not; last is the end of the last interval in which they failed.
	since, last time.Time
}

// record counts a call's outcome.
func (o *outcomes) record(account string, failed bool, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.evaluateLocked(now)
	balance, counted := o.by[account]
	if !counted && len(o.by) >= maxCounted {
		return
	}
	if o.by == nil {
		o.by = map[string]int{}
	}
	if failed {
		balance++
	} else {
		balance--
	}
	o.by[account] = balance
}

// evaluateLocked evaluates and clears the counts once outcomesEvery has passed.
func (o *outcomes) evaluateLocked(now time.Time) {
	if now.Sub(o.from) < outcomesEvery {
		return
	}
	failed := 0
	for _, balance := range o.by { // in any order
		if balance > 0 {
			failed++
		}
	}
	switch {
	case len(o.by) == 0:
		if now.Sub(o.last) > failedFor {
			o.since = time.Time{}
		}
	case 2*failed <= len(o.by):
		o.since = time.Time{}
	default:
		if o.since.IsZero() || now.Sub(o.last) > failedFor {
			o.since = o.from
		}
		o.last = o.from.Add(outcomesEvery)
	}
	clear(o.by)
	o.from = now
}

// failing returns for how long calls of most callers have failed.
func (o *outcomes) failing(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.evaluateLocked(now)
	if o.since.IsZero() {
		return 0
	}
	return o.last.Sub(o.since)
}

// answersCheck tells whether callers are served. It turns red once calls of most callers have failed for failedFor.
func (s *Server) answersCheck(now time.Time) raftnode.Check {
	check := raftnode.Check{Name: "answers", OK: true}
	if failing := s.outcomes.failing(now); failing >= failedFor {
		check.OK = false
		check.Message = fmt.Sprintf("for %v most callers have received errors of the node: see quotad_api_calls_total and the log",
			failing.Round(time.Second))
	}
	return check
}

// recordOutcome counts a caller's call if its outcome says something about the node.
func (s *Server) recordOutcome(ctx context.Context, procedure string, err error, now time.Time) {
	if strings.HasPrefix(procedure, "/"+quotav1connect.AdminServiceName+"/") {
		return // an operator's call, or one that the node alone answers
	}
	r := requestOf(ctx)
	switch {
	case s.isDraining():
		return // a node that stops reports that itself
	case mayUseOperatorsPart(r.who, procedure):
		return // an operator who inspects a failing node must not make it look good
	case r.header.Get(HeaderForwarded) != "" && err != nil:
		return // the node that the caller called counts it
	case r.header.Get(HeaderNoForward) != "" && isNotLeader(err):
		return // the caller looks for the leader itself
	case ctx.Err() != nil && (r.waited || now.Sub(r.received) < gaveUpAfter):
		return // the caller canceled, or waited for quota as long as it wanted to
	}
	s.outcomes.record(r.budget, ctx.Err() != nil || failedByNode(err), now)
}

// Answers that mean a failure of the node or its cluster: by reason, and by code for errors without one.
var (
	nodeReasons = []quotav1.Reason{quotav1.Reason_REASON_INTERNAL, quotav1.Reason_REASON_UNKNOWN_OUTCOME, quotav1.Reason_REASON_NO_LEADER}
	nodeCodes   = []connect.Code{connect.CodeInternal, connect.CodeUnavailable, connect.CodeUnknown, connect.CodeDataLoss}
)

// failedByNode tells whether an error is a failure of the node or its cluster. Budgets, bad input and refusals are not: callers can cause
// them at will.
func failedByNode(err error) bool {
	if err == nil {
		return false
	}
	if info := infoOf(err); info != nil {
		return slices.Contains(nodeReasons, info.Reason)
	}
	return slices.Contains(nodeCodes, connect.CodeOf(err))
}
