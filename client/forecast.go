package client

import (
	"cmp"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Forecast says that a window will be used up before it closes, and what would help.
type Forecast struct {
	// Quota is the window's name.
	Quota string
	// ExhaustedIn is how long it lasts at the present pace, from the answer on.
	ExhaustedIn time.Duration
	// Smaller is the part of their size to which calls would have to shrink for it to last, 0.1 to 1: a factor for the
	// tokens that a call may use.
	Smaller float64
	// Fallback is the next quota of its fallback chain, once it should be used; empty: not yet, or there is none.
	Fallback string
	// Parks says that background work waits.
	Parks bool
}

func forecastOf(f *quotav1.Forecast) *Forecast {
	if f == nil {
		return nil
	}
	return &Forecast{
		Quota: f.GetQuota(), ExhaustedIn: durationOf(f.GetExhaustedIn(), 0), Smaller: f.GetSmaller(), Fallback: f.GetFallback(), Parks: f.GetParks(),
	}
}

// standIns returns the items that stand in for another quota, or for a pool, by that one's name; nil: none does.
func standIns(granted []*quotav1.GrantedItem) map[string]Item {
	var instead map[string]Item
	for _, item := range granted {
		asked := cmp.Or(item.GetInsteadOf(), item.GetPool())
		if asked == "" {
			continue
		}
		if instead == nil {
			instead = map[string]Item{}
		}
		instead[asked] = Item{Quota: item.GetQuota(), Amount: item.GetAmount()}
	}
	return instead
}
