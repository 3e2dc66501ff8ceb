package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

// limiter is a limiter in one process.
type limiter struct {
	name string
	// take takes one, and reports whether it was granted.
	take func() bool
}

// neverReached is a rate per second that no loop reaches.
const neverReached = 1 << 40

// measureLocal measures takes from a batch that quotad's limiter holds, and takes from limiters of a single process,
// alternately, by one goroutine and by two. quotad's limiter belongs to a running cluster, from which it fetches batches
// during the measurement.
func measureLocal(ctx context.Context, binary string, rounds int, length time.Duration) (_ []bench.Local, err error) {
	dir, err := os.MkdirTemp(".", "bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := bench.StartLocal(ctx, binary, dir)
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	xTime := rate.NewLimiter(neverReached, neverReached)
	uber := ratelimit.New(neverReached)
	limiters := []limiter{
		{"quotad", cluster.Allow},
		{"golang.org/x/time/rate", xTime.Allow},
		{"go.uber.org/ratelimit", func() bool { uber.Take(); return true }},
	}
	var all []bench.Local
	for round := range rounds {
		for _, goroutines := range []int{1, 2} {
			for _, l := range limiters {
				_, _ = fmt.Fprintf(os.Stderr, "round %d of %d: local: %s, %d goroutines\n", round+1, rounds, l.name, goroutines)
				measured, err := takes(ctx, l, goroutines, length)
				if err != nil {
					return nil, err
				}
				measured.Round = round + 1
				all = append(all, measured)
			}
		}
	}
	return all, nil
}

// takesAtOnce is the number of takes between two reads of the clock.
const takesAtOnce = 10_000

// takes measures a limiter. Refused takes are repeated; they count towards the time and not towards the takes. Only quotad
// refuses takes, while a batch is in flight.
func takes(ctx context.Context, l limiter, goroutines int, length time.Duration) (bench.Local, error) {
	var before, after runtime.MemStats
	var got atomic.Int64
	var wg sync.WaitGroup
	for started := time.Now(); !l.take(); { // the first take requests the first batch
		if time.Since(started) > 10*time.Second || ctx.Err() != nil {
			return bench.Local{}, fmt.Errorf("%s grants nothing", l.name)
		}
	}
	runtime.ReadMemStats(&before)
	started := time.Now()
	for range goroutines {
		wg.Go(func() {
			for time.Since(started) < length && ctx.Err() == nil {
				granted := int64(0)
				for range takesAtOnce {
					if l.take() {
						granted++
					}
				}
				got.Add(granted)
			}
		})
	}
	wg.Wait()
	took := time.Since(started)
	runtime.ReadMemStats(&after)
	if got.Load() == 0 {
		return bench.Local{}, fmt.Errorf("%s granted nothing", l.name)
	}
	return bench.Local{
		Name: l.name, Goroutines: goroutines, NanosecondsPerTake: float64(took.Nanoseconds()) / float64(got.Load()),
		AllocsPerTake: float64(after.Mallocs-before.Mallocs) / float64(got.Load()),
	}, ctx.Err()
}
