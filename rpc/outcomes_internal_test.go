package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestOutcomes_RedWhileMostCallersFail: health turns red once calls of most callers have failed for failedFor, however many calls
// one of them makes.
func TestOutcomes_RedWhileMostCallersFail(t *testing.T) {
	type calls struct {
		caller         string
		served, failed int
	}
	for _, tc := range []struct {
		name   string
		second func(n int) []calls
		length int
		red    bool
	}{
		{"nobody calls", func(int) []calls { return nil }, 30, false},
		{"all are served", func(int) []calls { return []calls{{"a", 9, 0}, {"b", 1, 0}} }, 30, false},
		{"all are failed", func(int) []calls { return []calls{{"a", 0, 9}, {"b", 0, 1}} }, 13, true},
		{"all are failed, not yet for long", func(int) []calls { return []calls{{"a", 0, 9}, {"b", 0, 1}} }, 9, false},
		{"the only one is failed", func(int) []calls { return []calls{{"a", 0, 1}} }, 13, true},
		{"one of two is failed, a thousand times", func(int) []calls { return []calls{{"a", 0, 1000}, {"b", 1, 0}} }, 30, false},
		{"two of three are failed", func(int) []calls { return []calls{{"a", 0, 1}, {"b", 0, 1}, {"c", 1000, 0}} }, 13, true},
		{"of each one's calls fewer are failed", func(int) []calls { return []calls{{"a", 2, 1}, {"b", 2, 1}} }, 30, false},
		{"one second of twenty is good", func(n int) []calls { return []calls{{"a", boolInt(n == 15), 1 - boolInt(n == 15)}} }, 20, false},
		{"one call in four seconds, failed", func(n int) []calls { return []calls{{"a", 0, boolInt(n%4 == 0)}} }, 18, true},
		{"good again", func(n int) []calls { return []calls{{"a", boolInt(n > 20), boolInt(n <= 20)}} }, 23, false},
		{"nobody calls any more", func(n int) []calls { return []calls{{"a", 0, boolInt(n < 15)}} }, 30, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o outcomes
			now := time.Now()
			for n := range tc.length {
				for _, c := range tc.second(n) {
					for i := range c.served + c.failed {
						o.record(c.caller, i >= c.served, now)
					}
				}
				now = now.Add(time.Second)
			}
			if failing := o.failing(now); (failing >= failedFor) != tc.red {
				t.Errorf("failing for %v, want red: %v", failing, tc.red)
			}
		})
	}
}

func boolInt(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// TestOutcomes_CountSoMany: a flood of names takes no more room than maxCounted callers.
func TestOutcomes_CountSoMany(t *testing.T) {
	var o outcomes
	now := time.Now()
	for n := range 2 * maxCounted {
		o.record(fmt.Sprint(n), true, now)
	}
	if len(o.by) != maxCounted {
		t.Errorf("%d callers are counted", len(o.by))
	}
}

// TestRecordOutcome_IgnoresErrorsOfCallers: outcomes that a caller can cause at will say nothing about a node's health.
func TestRecordOutcome_IgnoresErrorsOfCallers(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	as := func(ctx context.Context, header ...string) context.Context {
		r := &request{who: &caller{}, budget: "a", header: map[string][]string{}}
		if len(header) > 0 {
			r.header.Set(header[0], "x")
		}
		r.received = time.Now()
		return context.WithValue(ctx, requestKey{}, r)
	}
	hung, waited := as(gone), as(gone)
	requestOf(hung).received = time.Now().Add(-gaveUpAfter)
	requestOf(waited).received, requestOf(waited).waited = time.Now().Add(-time.Minute), true
	operator := as(t.Context())
	requestOf(operator).who = &caller{id: "ops", verbs: verbs}
	const reserve = quotav1connect.QuotaServiceReserveProcedure
	unknown := nodeError(&raftnode.UnknownError{Err: errors.New("lost")})
	noLeader := notAcceptedError(&raftnode.NotAcceptedError{Cause: raftnode.NotLeader})
	for _, tc := range []struct {
		name            string
		ctx             context.Context
		procedure       string
		err             error
		counted, failed bool
	}{
		{"an answer", as(t.Context()), reserve, nil, true, false},
		{"an unknown outcome", as(t.Context()), reserve, unknown, true, true},
		{"no leader", as(t.Context()), reserve, noLeader, true, true},
		{"an error inside", as(t.Context()), reserve, nodeError(errors.New("broken")), true, true},
		{"an error without a reason", as(t.Context()), reserve, connect.NewError(connect.CodeInternal, errors.New("broken")), true, true},
		{"bad input", as(t.Context()), reserve, invalid("holder", "is empty", "name it"), true, false},
		{"bytes that are no message", as(t.Context()), reserve, connect.NewError(connect.CodeInvalidArgument, errors.New("bad")), true, false},
		{"a budget", as(t.Context()), reserve, newError("full", &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CALLER_BUDGET}), true, false},
		{
			"more at once than fits", as(t.Context()), reserve, newError("full", &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_OVERLOADED}), true,
			false,
		},
		{"a caller that went away", as(gone), reserve, unknown, false, false},
		{"a call that may not be forwarded", as(t.Context(), HeaderNoForward), reserve, noLeader, false, false},
		{"a call of the Go client that failed inside", as(t.Context(), HeaderNoForward), reserve, nodeError(errors.New("broken")), true, true},
		{"a call of the Go client whose outcome is unknown", as(t.Context(), HeaderNoForward), reserve, unknown, true, true},
		{"a call of the Go client that was served", as(t.Context(), HeaderNoForward), reserve, nil, true, false},
		{"a call that ended in a cluster that hangs", hung, reserve, unknown, true, true},
		{"a wait for quota that ended", waited, reserve, unknown, false, false},
		{"an operator who looks", operator, quotav1connect.QuotaServiceListQuotasProcedure, nil, false, false},
		{"a call that claims to come from a node", as(t.Context(), HeaderForwarded), reserve, noLeader, false, false},
		{"an operator's call", as(t.Context()), quotav1connect.AdminServiceGetStatusProcedure, unknown, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &Server{drain: t.Context()}
			s.recordOutcome(tc.ctx, tc.procedure, tc.err, time.Now())
			balance, counted := s.outcomes.by["a"]
			if counted != tc.counted || (balance > 0) != tc.failed {
				t.Errorf("counted: %v, failed: %v", counted, balance > 0)
			}
		})
	}
}

// TestForward_KeepsStatus: a request that is too large for the leader gets 413 through a follower too, so that it is not sent again.
func TestForward_KeepsStatus(t *testing.T) {
	for _, reason := range []quotav1.Reason{
		quotav1.Reason_REASON_TOO_LARGE, quotav1.Reason_REASON_CALLER_BUDGET, quotav1.Reason_REASON_INVALID,
	} {
		want := ""
		if reason == quotav1.Reason_REASON_TOO_LARGE {
			want = "413"
		}
		forwarded := connectError(t, forwardedError(newError("no", &quotav1.ErrorInfo{Reason: reason, NotAccepted: true})))
		if got := forwarded.Meta().Get(statusHeader); got != want {
			t.Errorf("%v: status %q, want %q", reason, got, want)
		}
		if infoOf(forwarded).GetReason() != reason {
			t.Errorf("%v became %v", reason, infoOf(forwarded).GetReason())
		}
	}
}

func connectError(t *testing.T, err error) *connect.Error {
	t.Helper()
	found, ok := errors.AsType[*connect.Error](err)
	if !ok {
		t.Fatalf("%v is no error of Connect", err)
	}
	return found
}
