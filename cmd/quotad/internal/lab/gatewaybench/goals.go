package gatewaybench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

// The goals. None is a condition: a busy machine misses them, and a faster one proves nothing.
const (
	ungovernedP50 = 25 * time.Microsecond
	batchedP50    = 80 * time.Microsecond
	batchedP99    = 500 * time.Microsecond
	batchedShare  = 0.65
	takenP50      = 100 * time.Microsecond
	takenP99      = time.Millisecond
	longP50       = time.Millisecond
	eventP99      = 50 * time.Microsecond
	waitingBytes  = 40_000
)

// Goals prints what the gateway adds to the paths that it is compared with, and the goals. It omits paths without
// measurements.
func (r *Results) Goals(out io.Writer, rates Rates) error {
	rows := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(rows, "\nCOMPARED\tMEASURED\tGOAL")
	row := func(what, measured, goal string) { _, _ = fmt.Fprintf(rows, "%s\t%s\t%s\n", what, measured, goal) }
	at := func(work string, rate float64) (bench.Summary, bool) { return r.Summarize("gateway", work, rate) }
	added := func(work, to string, rate float64, p50, p99 time.Duration) {
		with, found := at(work, rate)
		without, also := at(to, rate)
		if !found || !also {
			return
		}
		row(work+": p50 more than "+to, bench.Brief(with.P50-without.P50), most(p50))
		row(work+": p99 more than "+to, bench.Brief(with.P99-without.P99), most(p99))
	}
	added(Ungoverned, Proxy, rates.Calls, ungovernedP50, 0)
	added(Batched, Proxy, rates.Calls, batchedP50, batchedP99)
	added(Committed, Batched, rates.Calls, 0, 0)
	added(LongScanned, LongProxy, min(rates.Calls, longRate), longP50, 0)
	added(EventPassed, EventProxy, rates.Calls, 0, eventP99)
	batch, found := at(Batched, 0)
	if proxy, also := at(Proxy, 0); found && also {
		row(Batched+": share of the throughput of "+Proxy, fmt.Sprintf("%.0f %%", 100*batch.PerSecond/proxy.PerSecond),
			fmt.Sprintf("at least %.0f %%", 100*batchedShare))
	}
	if take, found := at(Taken, rates.Takes); found {
		row(Taken+": p50 without the generator's delay", bench.Brief(take.P50-delay(take)), most(takenP50))
		row(Taken+": p99", bench.Brief(take.P99), most(takenP99))
	}
	if r.Waiting.Calls > 0 {
		row(fmt.Sprintf("memory of one of %d waiting calls", r.Waiting.Calls), fmt.Sprintf("%d bytes", r.Waiting.Each()),
			fmt.Sprintf("at most %d bytes", waitingBytes))
	}
	return rows.Flush()
}

// delay returns the median of how late the generator began the calls of an open loop. Timers fire up to a millisecond late,
// which is longer than a take.
func delay(s bench.Summary) time.Duration {
	var late []float64
	for _, run := range s.Runs {
		if run.Late != nil {
			late = append(late, float64(run.Late.P50))
		}
	}
	return time.Duration(bench.Median(late)) * time.Microsecond
}

// most formats a goal; 0: none.
func most(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return "at most " + bench.Brief(d)
}
