package rpc

import (
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/accounts"
)

// TestCallerCounts_AreKeptForASecond: who asks again within it looks at no account.
func TestCallerCounts_AreKeptForASecond(t *testing.T) {
	c := callerCounts{counted: time.Now().Add(time.Hour), views: []accounts.View{{Name: "leases", Callers: 7}}}
	views, err := c.of(t.Context(), nil) // there is no state to look at
	if err != nil || len(views) != 1 || views[0].Callers != 7 {
		t.Errorf("%+v, %v", views, err)
	}
}

// TestWithCallers_KeepsTotals: what is counted of callers does not hide what is used now.
func TestWithCallers_KeepsTotals(t *testing.T) {
	got := withCallers([]accounts.View{{Name: "leases", Used: 9, Capacity: 10}}, []accounts.View{
		{Name: "leases", Used: 1, Capacity: 2, Callers: 3, AtBudget: 1, Top: []accounts.Use{{Caller: "token:a", Used: 1}}},
	})[0]
	if got.Used != 9 || got.Capacity != 10 || got.Callers != 3 || got.AtBudget != 1 || len(got.Top) != 1 {
		t.Errorf("%+v", got)
	}
}
