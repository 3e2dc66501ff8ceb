package model

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestAtBudget_WeighsWhereTheCountDoesNotTell: a refusal for leases is judged by their weight, or by their number if that reaches the
// bound.
func TestAtBudget_WeighsWhereTheCountDoesNotTell(t *testing.T) {
	weighed := 0
	weigh := func() int64 { weighed++; return 7 }
	for _, c := range []struct {
		bound, count int64
		want         bool
		weighs       int
	}{
		{bound: 5, count: 5, want: true},
		{bound: 5, count: 6, want: true},
		{bound: 7, count: 5, want: true, weighs: 1},
		{bound: 8, count: 5, weighs: 1},
	} {
		weighed = 0
		if got := weighAtLeast(c.bound, c.count, weigh); got != c.want || weighed != c.weighs {
			t.Errorf("%d of %d: %t, weighed %d times", c.count, c.bound, got, weighed)
		}
	}
}

// TestAtBudget_CountsItemsOfLeases: four items count as one lease, and a caller below its guaranteed part is not refused.
func TestAtBudget_CountsItemsOfLeases(t *testing.T) {
	leaseOf := func(shares int) *lease { return &lease{items: []*item{{shares: make([]share, shares)}}} }
	j := &Judge{limits: defaultLimits(), leases: map[uint64]*lease{}}
	j.limits.leases, j.limits.least, j.limits.operators = 20, 100_000, 0
	command := &logpb.Command{Caller: "token:a"}
	for _, c := range []struct {
		shares int
		atPart bool
	}{{4, false}, {5, true}} { // the guaranteed part is two
		j.leases[1] = leaseOf(c.shares)
		if isTrue, judged := j.atBudget(command, logpb.Reason_REASON_CALLER_BUDGET, "leases"); isTrue != c.atPart || !judged {
			t.Errorf("a lease of %d: at the part: %t, judged: %t", c.shares, isTrue, judged)
		}
	}
	if isTrue, _ := j.atBudget(command, logpb.Reason_REASON_BUDGET_FULL, "leases"); isTrue {
		t.Error("two of twenty are all")
	}
	if isTrue, judged := j.atBudget(&logpb.Command{}, logpb.Reason_REASON_CALLER_BUDGET, "leases"); isTrue || !judged {
		t.Error("nobody has a part")
	}
}
