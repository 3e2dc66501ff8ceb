package main

import "github.com/quotad/quotad/cmd/quotad/internal/lab/bench"

// goal is a goal for the ratio to a peer in the same run.
type goal struct {
	what, beside string
	goal         float64
	// least says that the goal is a minimum, not a maximum.
	least   bool
	measure func(*bench.Results) (ratio float64, found bool)
}

func (g goal) sign() string {
	if g.least {
		return "≥"
	}
	return "≤"
}

func (g goal) reached(ratio float64) bool {
	if g.least {
		return ratio >= g.goal
	}
	return ratio <= g.goal
}

var goals = []goal{
	{"one caller, p50", "etcd, plain put", 1.1, false, medianLatency("quotad", etcdPut.name, bench.OneCaller)},
	{"one caller, p50, with wal", "etcd, plain put", 0.9, false, medianLatency("quotad, wal", etcdPut.name, bench.OneCaller)},
	{bench.Hot64, "etcd", 150, true, rates(etcdLoop.name, bench.Hot64)},
	{bench.Leased256, "etcd, plain put, 256 callers", 8, true, ratesOf(bench.Leased256, etcdPut.name, bench.Spread256)},
	{bench.Spread256 + " (no batches)", "etcd, plain put", 8, true, rates(etcdPut.name, bench.Spread256)},
	{bench.Hot64, "redis", 1, true, rates("redis", bench.Hot64)},
	{bench.Hot256, "redis", 1, true, rates("redis", bench.Hot256)},
	{bench.Batches + " (needed)", "etcd's best of single calls", 10, true, besideBestOfEtcd},
	{bench.Batches + " (aimed at)", "etcd's best of single calls", 25, true, besideBestOfEtcd},
	{"a local take, one goroutine", "golang.org/x/time/rate", 0.5, false, localRatio(1)},
	{"a local take, two goroutines", "golang.org/x/time/rate", 0.5, false, localRatio(2)},
}

func medianLatency(own, peer, work string) func(*bench.Results) (float64, bool) {
	return func(r *bench.Results) (float64, bool) {
		a, foundA := r.Summarize(own, work, 0)
		b, foundB := r.Summarize(peer, work, 0)
		if !foundA || !foundB {
			return 0, false
		}
		return float64(a.P50) / float64(b.P50), true
	}
}

func rates(peer, work string) func(*bench.Results) (float64, bool) {
	return ratesOf(work, peer, work)
}

func ratesOf(work, peer, peerWork string) func(*bench.Results) (float64, bool) {
	return func(r *bench.Results) (float64, bool) {
		a, foundA := r.Summarize("quotad", work, 0)
		b, foundB := r.Summarize(peer, peerWork, 0)
		if !foundA || !foundB {
			return 0, false
		}
		return a.PerSecond / b.PerSecond, true
	}
}

// besideBestOfEtcd compares with the highest rate that etcd reached with single calls, in any of its works. The tables show
// etcd's own batches, which decide nothing.
func besideBestOfEtcd(r *bench.Results) (float64, bool) {
	own, found := r.Summarize("quotad", bench.Batches, 0)
	best := 0.0
	for _, work := range r.Works() {
		for _, system := range []string{etcdLoop.name, etcdPut.name} {
			if s, measured := r.Summarize(system, work, 0); measured && work != bench.Batches {
				best = max(best, s.PerSecond)
			}
		}
	}
	if !found || best == 0 {
		return 0, false
	}
	return own.PerSecond / best, true
}

func localRatio(goroutines int) func(*bench.Results) (float64, bool) {
	return func(r *bench.Results) (float64, bool) {
		own, peer := localTime(r, "quotad", goroutines), localTime(r, "golang.org/x/time/rate", goroutines)
		return own / peer, own > 0 && peer > 0
	}
}

func localTime(r *bench.Results, name string, goroutines int) float64 {
	return localMedian(r, name, goroutines, func(l bench.Local) float64 { return l.NanosecondsPerTake })
}

func localAllocs(r *bench.Results, name string, goroutines int) float64 {
	return localMedian(r, name, goroutines, func(l bench.Local) float64 { return l.AllocsPerTake })
}

func localMedian(r *bench.Results, name string, goroutines int, of func(bench.Local) float64) float64 {
	var values []float64
	for _, l := range r.Local {
		if l.Name == name && l.Goroutines == goroutines {
			values = append(values, of(l))
		}
	}
	return bench.Median(values)
}
