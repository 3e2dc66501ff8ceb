package bench

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in microseconds, from 1 to a minute, with three digits.
const (
	mostMicroseconds = 60_000_000
	digits           = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, mostMicroseconds, digits) }

// recorder takes latencies from many goroutines.
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

// load is what one run of a work came to.
type load struct {
	calls   int64
	took    time.Duration
	latency *hdrhistogram.Histogram
	// late is how long after its time each call of an open loop began: the generator's own part of the latency.
	late *hdrhistogram.Histogram
	// unanswered counts an open loop's calls that had no answer when it was cut off; their latencies are what they had
	// waited until then.
	unanswered int64
}

// closedLoop runs callers that ask anew as soon as they were answered. It tells how much a system decides, and how long
// who waits has to wait; a stall shows in few of its latencies, since meanwhile nobody asks.
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

// mostOutstanding bounds the calls of an open loop that are not answered yet. Those beyond wait, and their latencies
// count from when they should have begun.
const mostOutstanding = 10_000

// openLoop makes calls at random times, so many a second on average (a Poisson process), whether or not earlier ones were
// answered. Latency counts from when a call should have begun, so that a stall shows in every call that falls into it. Who
// cannot keep up is cut off as long again after the last arrival.
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
