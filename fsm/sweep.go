package fsm

import (
	"cmp"
	"fmt"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// Holder stats and meters are found by holder. When a quota is deleted, or counts its holders no more, all of them have to be gone through to forget
// its own: a sweep, as far as an entry may, and on with the entries that follow. Nobody is shown one that is to be forgotten, and nothing is
// decided by it. Where a quota ceases to count and begins again before the sweep has come by, a holder's counts go on.

// maxSweptPerEntry bounds how many holder stats and meters one entry looks at: to forget one costs about ten times as much as to look.
const maxSweptPerEntry = 8 * maxDuePerEntry

// sweptTable is a table that a sweep goes through.
type sweptTable int32

const (
	sweepNothing sweptTable = 0
	sweepStats   sweptTable = 1
	sweepMeters  sweptTable = 2
)

// sweep is how far holder stats and meters were gone through; the zero value: there is nothing to forget.
type sweep struct {
	table sweptTable
	// from is where it goes on in its table, by holder first.
	from quotaHolder
	// again: another one follows, since more was to be forgotten after it began.
	again bool
}

// sweepAgain has all holder stats and meters gone through from now on.
func (hs *holderTables) sweepAgain() {
	if hs.sweep.table == sweepNothing {
		hs.sweep.table = sweepStats
	} else {
		hs.sweep.again = true
	}
	hs.sweepOn()
}

// sweepOn goes on with the present sweep as far as the entry may.
func (hs *holderTables) sweepOn() {
	for hs.bounds.sweeps.left > 0 && hs.sweep.table != sweepNothing {
		var next quotaHolder
		var more bool
		from := hs.sweep.from
		if hs.sweep.table == sweepStats {
			next, more = sweepTable(hs.stats, &holderStats{holder: from.holder, quota: from.quota}, &hs.bounds.sweeps, (*holderStats).place,
				func(of quotaHolder) bool { return hs.isToForget(sweepStats, of) }, func(t *holderStats) { hs.dropStats(t) })
		} else {
			next, more = sweepTable(hs.meters, &meter{holder: from.holder, quota: from.quota}, &hs.bounds.sweeps, (*meter).place,
				func(of quotaHolder) bool { return hs.isToForget(sweepMeters, of) }, func(t *meter) { hs.dropMeter(t) })
		}
		if hs.sweep.from = next; !more {
			hs.sweep.next()
		}
	}
}

// sweepTable goes through a table from a place on as far as the entry may, and drops what is forgotten of it. It returns where to go on, if
// there is more.
func sweepTable[T any](
	table *cow.Set[T], from T, left *bound, placeOf func(T) quotaHolder, forgotten func(quotaHolder) bool, drop func(T),
) (next quotaHolder, more bool) {
	var leaving []T
	looked := 0
	table.Ascend(from, func(t T) bool {
		if more = looked == left.left; more {
			next = placeOf(t)
			return false
		}
		if looked++; forgotten(placeOf(t)) {
			leaving = append(leaving, t)
		}
		return true
	})
	for _, t := range leaving {
		drop(t)
	}
	left.spend(looked)
	return next, more
}

// next goes on to the next table, or to the next sweep.
func (w *sweep) next() {
	switch {
	case w.table == sweepStats:
		w.table = sweepMeters
	case w.again:
		*w = sweep{table: sweepStats}
	default:
		*w = sweep{}
	}
}

// isToForget tells whether holder stats or a meter is to be forgotten: its quota was deleted, or counts its holder no more.
func (hs *holderTables) isToForget(table sweptTable, of quotaHolder) bool {
	q, ok := hs.quotas.byNumber.Get(of.quota)
	return !ok || table == sweepMeters && !q.rule.Policy.Meters(of.holder)
}

// comesBy tells whether the present sweep, or the one that follows, will still look at holder stats or a meter.
func (w *sweep) comesBy(table sweptTable, of quotaHolder) bool {
	behind := cmp.Or(cmp.Compare(of.holder, w.from.holder), cmp.Compare(of.quota, w.from.quota)) < 0
	return w.table != sweepNothing && (w.again || w.table < table || w.table == table && !behind)
}

func (hs *holderTables) dropStats(t *holderStats) {
	hs.stats.Delete(t)
	hs.unlistStats(t)
}

func (hs *holderTables) dropMeter(t *meter) {
	hs.meters.Delete(t)
	hs.unmeter(t)
}

// place is where a meter stands, as holder stats does.
func (t *meter) place() quotaHolder { return quotaHolder{quota: t.quota, holder: t.holder} }

// forgetStats forgets what a holder did, and returns how many holder stats and meters that was.
func (hs *holderTables) forgetStats(name string) int {
	tallies := cow.DropRun(hs.stats, &holderStats{holder: name}, func(t *holderStats) bool { return t.holder == name })
	meters := cow.DropRun(hs.meters, &meter{holder: name}, func(t *meter) bool { return t.holder == name })
	hs.unlistStats(tallies...)
	hs.unmeter(meters...)
	return len(tallies) + len(meters)
}

func (w *sweep) encode() *logpb.SnapshotSweep {
	return &logpb.SnapshotSweep{Table: int32(w.table), Holder: w.from.holder, Quota: w.from.quota, Again: w.again}
}

func decodeSweep(encoded *logpb.SnapshotSweep) (sweep, error) {
	w := sweep{table: sweptTable(encoded.Table), from: quotaHolder{quota: encoded.Quota, holder: encoded.Holder}, again: encoded.Again}
	if w.table != sweepStats && w.table != sweepMeters {
		return sweep{}, fmt.Errorf("a sweep of table %d", encoded.Table)
	}
	return w, nil
}
