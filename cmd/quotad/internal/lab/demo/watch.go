package demo

import (
	"context"
	"sync"

	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/cmd/quotad/internal/view"
)

// scene is the state of the demo at one moment.
type scene struct {
	cluster *view.Cluster // nil: no fleet needs one
	totals  map[mode]map[api]providertest.Totals
	agents  map[mode]*tally
}

// watch reads the state of cluster and provider.
func (d *demo) watch(ctx context.Context) scene {
	s := scene{agents: d.tallies}
	var polls sync.WaitGroup
	if d.cluster != nil {
		polls.Go(func() {
			seen := d.cluster.Observe(ctx)
			s.cluster = &seen
		})
	}
	polls.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 2*view.ObserveTimeout)
		defer cancel()
		s.totals, _ = d.referee.totals(ctx) // the next scene tries again
	})
	polls.Wait()
	return s
}
