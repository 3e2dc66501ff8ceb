package demo

import (
	"context"
	"sync"

	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/cmd/quotad/internal/view"
)

// scene is what is going on at a moment.
type scene struct {
	cluster *view.Cluster // nil: no fleet needs one
	totals  map[mode]map[api]providertest.Totals
	agents  map[mode]*tally
}

// watch looks at everything.
func (d *demo) watch(ctx context.Context) scene {
	s := scene{agents: d.tallies}
	var looks sync.WaitGroup
	if d.cluster != nil {
		looks.Go(func() {
			seen := d.cluster.Look(ctx)
			s.cluster = &seen
		})
	}
	looks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 2*view.LookTimeout)
		defer cancel()
		s.totals, _ = d.referee.totals(ctx) // shown again at the next look
	})
	looks.Wait()
	return s
}
