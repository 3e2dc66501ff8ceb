package plan

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// RunSeeds runs a fleet on both sides for count seeds from first on, as many at once as there are processors. The results
// do not depend on the number of processors.
func RunSeeds(ctx context.Context, f *fleet.Fleet, first uint64, count int) ([]Runs, error) {
	runs, errs := make([]Runs, count), make([]error, count)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), count) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= count || ctx.Err() != nil {
					return
				}
				runs[i], errs[i] = runSeed(ctx, f, first+uint64(i))
			}
		})
	}
	workers.Wait()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return runs, nil
}

func runSeed(ctx context.Context, f *fleet.Fleet, seed uint64) (Runs, error) {
	alone, err := sim.Run(ctx, f, sim.Alone, seed)
	if err != nil {
		return Runs{}, err
	}
	governed, err := sim.Run(ctx, f, sim.Governed, seed)
	if err != nil {
		return Runs{}, err
	}
	return Runs{Seed: seed, Alone: alone, Governed: governed, Wrong: Judge(f, alone, governed)}, nil
}
