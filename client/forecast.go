package client

import (
	"cmp"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Forecast predicts that a window will be exhausted before it closes, with possible remedies.
type Forecast struct {
	// Quota is the window's name.
	Quota string
	// ExhaustedIn is how long the window lasts at the present pace, from the answer on.
	ExhaustedIn time.Duration
	// Smaller is the factor by which calls would have to shrink for the window to last, 0.1 to 1. It applies to the tokens that a call
	// may use, for example.
	Smaller float64
	// Fallback is the next quota of the fallback chain, once it should be used; empty: not yet, or there is none.
	Fallback string
	// Parks: background work waits.
	Parks bool
}

func forecastOf(f *quotav1.Forecast) *Forecast {
	if f == nil {
		return nil
	}
	return &Forecast{
		Quota: f.GetQuota(), ExhaustedIn: durationOf(f.GetExhaustedIn(), 0), Smaller: f.GetSmaller(), Fallback: f.GetFallback(),
		Parks: f.GetParks(),
	}
}

// standIns returns the items granted of another quota or of a pool's member, by the requested name; nil: there are none.
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
