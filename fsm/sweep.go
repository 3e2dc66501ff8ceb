package fsm

import (
	"cmp"
	"fmt"

	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// Holder stats and meters are keyed by holder. When a quota is deleted, or no longer counts its holders, a sweep over
// all of them drops its own. It works within the entry's bound, and continues with the following entries. Records to be
// dropped are not shown and decide nothing. If a quota stops counting and starts again before the sweep reaches a
// holder, that holder's counters continue.

// maxSweptPerEntry bounds how many holder stats and meters one entry examines: a drop costs about ten times as much.
const maxSweptPerEntry = 8 * maxDuePerEntry

// sweptTable is a table that a sweep visits.
type sweptTable int32

const (
	sweepNothing sweptTable = 0
	sweepStats   sweptTable = 1
	sweepMeters  sweptTable = 2
)

// sweep is the position of the sweep over holder stats and meters; the zero value: there is nothing to drop.
type sweep struct {
	table sweptTable
	// from is the next position in its table, by holder first.
	from quotaHolder
	// again: another sweep follows, since more is to be dropped than when it began.
	again bool
}

// sweepAgain starts a sweep over all holder stats and meters, or another one after the present one.
func (hs *holderTables) sweepAgain() {
	if hs.sweep.table == sweepNothing {
		hs.sweep.table = sweepStats
	} else {
		hs.sweep.again = true
	}
	hs.sweepOn()
}

// sweepOn continues the present sweep within the entry's bound.
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

// sweepTable visits a table from a position, within the entry's bound, and drops entries that forgotten accepts. It
// returns the next position, if there is more.
func sweepTable[T any](
	table *cow.Set[T], from T, left *bound, placeOf func(T) quotaHolder, forgotten func(quotaHolder) bool, drop func(T),
) (next quotaHolder, more bool) {
	var leaving []T
	scanned := 0
	table.Ascend(from, func(t T) bool {
		if more = scanned == left.left; more {
			next = placeOf(t)
			return false
		}
		if scanned++; forgotten(placeOf(t)) {
			leaving = append(leaving, t)
		}
		return true
	})
	for _, t := range leaving {
		drop(t)
	}
	left.spend(scanned)
	return next, more
}

// next moves to the next table, or to the next sweep.
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

// isToForget reports whether holder stats or a meter is to be dropped: its quota was deleted, or no longer counts its
// holder.
func (hs *holderTables) isToForget(table sweptTable, of quotaHolder) bool {
	q, ok := hs.quotas.byNumber.Get(of.quota)
	return !ok || table == sweepMeters && !q.rule.Policy.Meters(of.holder)
}

// comesBy reports whether the present sweep, or the following one, will still reach holder stats or a meter.
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

// place is the key of a meter, as for holder stats.
func (t *meter) place() quotaHolder { return quotaHolder{quota: t.quota, holder: t.holder} }

// forgetStats drops a holder's stats and meters, and returns how many.
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
