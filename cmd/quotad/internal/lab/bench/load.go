package bench

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded in microseconds, from 1 µs to a minute, with three significant digits.
const (
	mostMicroseconds = 60_000_000
	digits           = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, mostMicroseconds, digits) }

// recorder records latencies from many goroutines.
type recorder struct {
	shards [8]struct {
		mu   sync.Mutex
		hist *hdrhistogram.Histogram
	}
}

func newRecorder() *recorder {
	r := &recorder{}
	for i := range r.shards {
		r.shards[i].hist = newHistogram()
	}
	return r
}

func (r *recorder) add(caller int, took time.Duration) {
	s := &r.shards[caller%len(r.shards)]
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.hist.RecordValue(min(max(took.Microseconds(), 1), mostMicroseconds))
}

func (r *recorder) merged() *hdrhistogram.Histogram {
	all := newHistogram()
	for i := range r.shards {
		r.shards[i].mu.Lock()
		all.Merge(r.shards[i].hist)
		r.shards[i].mu.Unlock()
	}
	return all
}

// load is the measurement of one run of a work.
type load struct {
	calls   int64
	took    time.Duration
	latency *hdrhistogram.Histogram
	// late is how long after its scheduled time each call of an open loop began: the generator's own part of the latency.
	late *hdrhistogram.Histogram
	// unanswered counts an open loop's calls without an answer at its cut-off; their latencies are the time until then.
	unanswered int64
}

// closedLoop runs callers that send the next call as soon as the last one is answered. It measures the maximum rate, and
// the latency at that rate. A stall shows in few of its latencies, because the callers send nothing meanwhile.
func closedLoop(ctx context.Context, w Work, length time.Duration) (load, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	latency := newRecorder()
	var calls atomic.Int64
	var wg sync.WaitGroup
	started := time.Now()
	for caller := range w.Callers {
		wg.Go(func() {
			for n := 0; time.Since(started) < length && ctx.Err() == nil; n++ {
				at := time.Now()
				if err := w.Do(ctx, caller, n); err != nil {
					cancel(err)
					return
				}
				latency.add(caller, time.Since(at))
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	return load{calls: calls.Load(), took: time.Since(started), latency: latency.merged()}, context.Cause(ctx)
}

// mostOutstanding bounds the unanswered calls of an open loop. Further calls wait, and their latencies count from their
// scheduled times.
const mostOutstanding = 10_000

// openLoop makes calls at random times, perSecond on average (a Poisson process), independently of earlier answers. Latency
// counts from a call's scheduled time, so that a stall shows in every call during it. The loop cuts off unanswered calls at
// twice its length.
func openLoop(ctx context.Context, w Work, perSecond float64, length time.Duration, random *rand.Rand) (load, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers, cutOff := context.WithTimeout(ctx, 2*length)
	defer cutOff()
	latency, late := newRecorder(), newRecorder()
	var calls, unanswered atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, mostOutstanding)
	started := time.Now()
	due := started
	for n := 0; due.Sub(started) < length && ctx.Err() == nil; n++ {
		at := due
		due = due.Add(time.Duration(random.ExpFloat64() / perSecond * float64(time.Second)))
		wait(answers, time.Until(at))
		select {
		case slots <- struct{}{}:
		case <-answers.Done():
			unanswered.Add(1)
			latency.add(n, time.Since(at))
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			late.add(n, time.Since(at))
			err := w.Do(answers, n%w.Callers, n)
			latency.add(n, time.Since(at))
			switch {
			case err == nil:
				calls.Add(1)
			case answers.Err() != nil:
				unanswered.Add(1)
			default:
				cancel(err)
			}
		})
	}
	wg.Wait()
	return load{
		calls: calls.Load(), took: time.Since(started), latency: latency.merged(), late: late.merged(), unanswered: unanswered.Load(),
	}, context.Cause(ctx)
}
