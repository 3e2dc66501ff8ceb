package demo

import (
	"context"
	"sync"
	"time"

	"github.com/quotad/quotad/client/providertest"
)

// scene is what is going on at a moment.
type scene struct {
	cluster *clusterView // nil: no fleet needs one
	totals  map[mode]map[api]providertest.Totals
	agents  map[mode]*tally
}

// each calls fn for 0 to n-1 at once and waits for all.
func each(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { fn(i) })
	}
	all.Wait()
}

// watch looks at everything.
func (d *demo) watch(ctx context.Context) scene {
	s := scene{agents: d.tallies}
	var looks sync.WaitGroup
	if d.cluster != nil {
		looks.Go(func() {
			view := d.cluster.look(ctx)
			s.cluster = &view
		})
	}
	looks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 2*lookTimeout)
		defer cancel()
		s.totals, _ = d.referee.totals(ctx) // shown again at the next look
	})
	looks.Wait()
	return s
}

// leader returns the node that leads, waiting for one as long as it takes.
func (d *demo) leader(ctx context.Context) (*node, bool) {
	for {
		if v := d.cluster.look(ctx); v.Leader >= 0 {
			return d.cluster.nodes[v.Leader], true
		}
		if !pause(ctx, 50*time.Millisecond) {
			return nil, false
		}
	}
}
