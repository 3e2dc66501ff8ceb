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
	// failedFor is for how long most callers must have been failed until health says so, and how long it is remembered when nobody calls.
	failedFor = 10 * time.Second
	// outcomesEvery is how often callers are counted: in each such time, those who were failed, and the others.
	outcomesEvery = time.Second
	// gaveUpAfter is how long a call must have been under way for its end, by the caller's own time, to be the node's failure.
	gaveUpAfter = time.Second
	// maxCounted bounds how many callers are counted at once.
	maxCounted = 4096
)

// outcomes tells whether most callers are failed. Callers are counted, not calls: one caller that finds a way to have its own calls fail
// does not turn a node red that serves others.
type outcomes struct {
	mu sync.Mutex
	// by is, of each caller, how many calls more were failed than not, since from.
	by   map[string]int
	from time.Time
	// since is when it began that most were failed, zero where they are not; last is until when that is known.
	since, last time.Time
}

// record counts a call's outcome.
func (o *outcomes) record(account string, failed bool, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turnLocked(now)
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

// turnLocked judges what was counted where outcomesEvery has passed.
func (o *outcomes) turnLocked(now time.Time) {
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

// failing tells for how long most callers have been failed.
func (o *outcomes) failing(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turnLocked(now)
	if o.since.IsZero() {
		return 0
	}
	return o.last.Sub(o.since)
}

// answersCheck tells whether callers are served. It is red where most of them were failed for failedFor.
func (s *Server) answersCheck(now time.Time) raftnode.Check {
	check := raftnode.Check{Name: "answers", OK: true}
	if failing := s.outcomes.failing(now); failing >= failedFor {
		check.OK = false
		check.Message = fmt.Sprintf("for %v most callers have received errors of the node: see quotad_api_calls_total and the log",
			failing.Round(time.Second))
	}
	return check
}

// recordOutcome counts a call of a caller, where its outcome says something of the node.
func (s *Server) recordOutcome(ctx context.Context, procedure string, err error, now time.Time) {
	if strings.HasPrefix(procedure, "/"+quotav1connect.AdminServiceName+"/") {
		return // of an operator, or answered by the node alone
	}
	r := requestOf(ctx)
	switch {
	case s.isDraining():
		return // a node that stops says so itself
	case operates(r.who, procedure):
		return // who looks at a node that fails its callers must not make it look good
	case r.header.Get(HeaderForwarded) != "" && err != nil:
		return // the node that the caller asked counts it
	case r.header.Get(HeaderNoForward) != "" && isNotLeader(err):
		return // the caller looks for the leader itself
	case ctx.Err() != nil && (r.waited || now.Sub(r.received) < gaveUpAfter):
		return // the caller gave up, or waited for quota as long as it wanted to
	}
	s.outcomes.record(r.budget, ctx.Err() != nil || failedByNode(err), now)
}

// What failures of the node or its cluster are answered with: by reason, and by code where an error has none.
var (
	nodeReasons = []quotav1.Reason{quotav1.Reason_REASON_INTERNAL, quotav1.Reason_REASON_UNKNOWN_OUTCOME, quotav1.Reason_REASON_NO_LEADER}
	nodeCodes   = []connect.Code{connect.CodeInternal, connect.CodeUnavailable, connect.CodeUnknown, connect.CodeDataLoss}
)

// failedByNode tells whether an error is a failure of the node or its cluster. Budgets, bad input and refusals are not: callers can bring
// them about whenever they like.
func failedByNode(err error) bool {
	if err == nil {
		return false
	}
	if info := infoOf(err); info != nil {
		return slices.Contains(nodeReasons, info.Reason)
	}
	return slices.Contains(nodeCodes, connect.CodeOf(err))
}
