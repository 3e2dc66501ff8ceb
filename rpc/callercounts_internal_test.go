package rpc

import (
	"errors"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestCounted_OnceASecond: a request within a second gets the last count. A failed count is repeated, and so is an older one.
func TestCounted_OnceASecond(t *testing.T) {
	var c counted[int]
	times := 0
	count := func() (int, error) {
		times++
		return times, nil
	}
	if _, err := c.of(func() (int, error) { return 0, errors.New("away") }); err == nil {
		t.Error("a count that failed is shown")
	}
	for range 3 {
		if got, err := c.of(count); got != 1 || err != nil {
			t.Errorf("counted %d times: %v", got, err)
		}
		c.at = time.Now().Add(time.Hour) // the test may be slow
	}
	c.at = time.Now().Add(-countEvery)
	if got, _ := c.of(count); got != 2 {
		t.Errorf("a second later it is counted %d times", got)
	}
}

// TestCountNodeBudgets_OnceASecond: a table of callers is not sorted for each request.
func TestCountNodeBudgets_OnceASecond(t *testing.T) {
	s := &Server{}
	s.nodeCounts.value, s.nodeCounts.at = []*quotav1.Budget{{Name: "calls", Used: 7}}, time.Now().Add(time.Hour)
	if all := s.countNodeBudgets(); len(all) != 1 || all[0].Used != 7 { // there is no node to count
		t.Errorf("%v", all)
	}
}

// TestWithCallers_KeepsTotals: the counts of callers do not hide current totals.
func TestWithCallers_KeepsTotals(t *testing.T) {
	got := withCallers([]accounts.View{{Name: "leases", Used: 9, Capacity: 10}}, []accounts.View{
		{Name: "leases", Used: 1, Capacity: 2, Callers: 3, AtBudget: 1, Top: []accounts.Use{{Caller: "token:a", Used: 1}}},
	})[0]
	if got.Used != 9 || got.Capacity != 10 || got.Callers != 3 || got.AtBudget != 1 || len(got.Top) != 1 {
		t.Errorf("%+v", got)
	}
}
