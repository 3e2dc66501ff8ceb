package fsm

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// drawOrphan draws the record of an operation whose lease has ended.
func drawOrphan(rt *rapid.T, key operationKey, now int64) *operation {
	number, amount := rapid.Uint64(), rapid.Int64()
	o := &operation{
		lease: key.lease, op: key.op, fence: number.Draw(rt, "fence"), holder: rapid.StringN(0, 10, 128).Draw(rt, "holder"), detached: true,
		spendBy: amount.Draw(rt, "spendBy"), spendByWall: amount.Draw(rt, "spendByWall"), transit: amount.Draw(rt, "transit"),
		beganWall: amount.Draw(rt, "beganWall"), asked: number.Draw(rt, "asked"), unspent: number.Draw(rt, "unspent"),
		actual: number.Draw(rt, "actual"), check: now + rapid.Int64Range(1, 2*minute).Draw(rt, "check"),
	}
	for range rapid.IntRange(0, 3).Draw(rt, "charges") {
		o.charges = append(o.charges, charge{
			quota: rapid.Uint32Range(0, 2).Draw(rt, "quota"), end: now + rapid.Int64Range(-minute, 2*minute).Draw(rt, "end"),
			ancestor: rapid.Bool().Draw(rt, "ancestor"), overrun: rapid.Bool().Draw(rt, "overrun"),
			amount: amount.Draw(rt, "amount"), consumed: amount.Draw(rt, "consumed"), unspent: amount.Draw(rt, "unspent"),
			window: amount.Draw(rt, "window"), before: amount.Draw(rt, "before"), class: rapid.Int8Range(0, ledger.Classes-1).Draw(rt, "class"),
		})
	}
	return o
}

// shownOrphans are the expected detached records of a state.
type shownOrphans map[operationKey]*operation

func (want shownOrphans) check(rt *rapid.T, s *State) {
	keys := slices.SortedFunc(maps.Keys(want), func(a, b operationKey) int {
		return cmp.Or(cmp.Compare(a.lease, b.lease), cmp.Compare(a.op, b.op))
	})
	if len(keys) > 0 {
		key := rapid.SampledFrom(keys).Draw(rt, "one of them")
		o := s.records.detachedOperation(key.lease, key.op)
		if o == nil || !o.detached || !proto.Equal(encodeOperation(o), encodeOperation(want[key])) {
			rt.Fatalf("%+v, not %+v", o, want[key])
		}
	}
	s.eachOperation(func(o *operation) bool {
		if len(keys) == 0 || !bytes.Equal(pack(nil, o), pack(nil, want[keys[0]])) {
			rt.Fatalf("%+v, where of %v the first should come", o, keys)
		}
		keys = keys[1:]
		return true
	})
	if len(keys) > 0 || s.records.count != int64(len(want)) {
		rt.Fatalf("%d missing; counted %d of %d", len(keys), s.records.count, len(want))
	}
	s.records.detached.Scan(func(p keptPage) bool {
		if first, rest := cut(p.packed); len(first)+len(rest) > pageBytes && len(rest) > 0 || cap(p.packed) > max(pageBytes, 2*len(p.packed)) {
			rt.Fatalf("a page of %d bytes, with room for %d", len(p.packed), cap(p.packed))
		}
		return true
	})
	for _, err := range s.records.verifyDetached() {
		rt.Fatal(err)
	}
	if s.records.detachedOperation(rapid.Uint64Range(0, 300).Draw(rt, "another"), 9) != nil {
		rt.Fatal("one that never was")
	}
}

// TestDetached_MatchesModel: records are kept, replaced and dropped in any order. Each detached record is found
// unchanged, all are in order, pages are within their size and checked in time, and frozen states do not change.
func TestDetached_MatchesModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, want := newWorld(rt), shownOrphans{}
		w.apply(applyQuotas(rateOf("q", 10, minute), slotsOf("s", 1)))
		m := w.m
		keep := func(rt *rapid.T, key operationKey) {
			o := drawOrphan(rt, key, m.clock.Now)
			if before := want[key]; before != nil {
				o.check = before.check // as a Settle leaves it
			}
			m.records.keepDetached(o)
			want[key] = o
		}
		op := rapid.Uint64Range(0, 4)
		lease := rapid.OneOf(rapid.Uint64Range(1, 200), rapid.Uint64Range(1, 3), rapid.Uint64())
		var frozen []*State
		var shown []shownOrphans
		rt.Repeat(map[string]func(*rapid.T){
			"keep": func(rt *rapid.T) { keep(rt, operationKey{lease.Draw(rt, "lease"), op.Draw(rt, "op")}) },
			"keep many": func(rt *rapid.T) {
				first, step := lease.Draw(rt, "first"), rapid.SampledFrom([]int{1, -1, 7}).Draw(rt, "step")
				for i := range rapid.IntRange(1, 80).Draw(rt, "many") {
					keep(rt, operationKey{first + uint64(i*step), 1})
				}
			},
			"pass": func(rt *rapid.T) {
				m.clock.Now += rapid.Int64Range(0, minute).Draw(rt, "time")
				maps.DeleteFunc(want, func(key operationKey, o *operation) bool {
					due := o.check <= m.clock.Now
					if due && m.amounts.stillCounts(o) && m.amounts.shortLived(o) {
						c := *o
						c.check, due = m.amounts.nextCheck(o), false
						want[key] = &c
					}
					return due
				})
				m.records.expire()
			},
			"freeze": func(*rapid.T) { frozen, shown = append(frozen, m.Freeze()), append(shown, maps.Clone(want)) },
			"": func(rt *rapid.T) {
				want.check(rt, m.State())
				if len(frozen) > 0 {
					i := rapid.IntRange(0, len(frozen)-1).Draw(rt, "frozen")
					shown[i].check(rt, frozen[i])
				}
			},
		})
	})
}

// TestDetached_PagesFill: detached records in order fill their pages, and in any other order at least a third of them.
func TestDetached_PagesFill(t *testing.T) {
	for name, c := range map[string]struct {
		lease func(i int) uint64
		part  float64
	}{
		"in order":   {func(i int) uint64 { return uint64(i + 1) }, 0.95},
		"in reverse": {func(i int) uint64 { return uint64(10_000 - i) }, 0.33},
		"mixed":      {func(i int) uint64 { return uint64(i*7919%10_007 + 1) }, 0.33},
	} {
		m := New()
		for i := range 10_000 {
			m.records.keepDetached(&operation{lease: c.lease(i), op: 1, detached: true, holder: "somebody", check: int64(i)})
		}
		var used, room int
		m.records.detached.Scan(func(p keptPage) bool {
			used, room = used+len(p.packed), room+cap(p.packed)
			return true
		})
		if float64(used) < c.part*float64(room) {
			t.Errorf("%s: %d bytes of %d are used", name, used, room)
		}
	}
}

// TestDetached_FrozenLowWaterMarkStays: a low-water mark stays when its lease's records are copied.
func TestDetached_FrozenLowWaterMarkStays(t *testing.T) {
	w := newWorld(t)
	w.apply(applyQuotas(rateOf("q", 10, minute)))
	g := w.apply(asks("a", 0, itemOf("q", 5)))[0].GetGranted()
	consume := func(op, done uint64) *logpb.Result {
		return w.apply(&logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
			Lease: g.Lease, Fence: g.Fence, Op: op, DoneBelow: done, Items: []*logpb.Item{itemOf("q", 1)},
		}}})[0]
	}
	for _, op := range []uint64{5, 6} {
		if consume(op, 5).GetConsumed() == nil {
			t.Fatalf("operation %d was not consumed", op)
		}
		w.m.Freeze()
	}
	if failure := consume(3, 0).GetFailure(); failure.GetReason() != logpb.Reason_REASON_STALE_OPERATION {
		t.Errorf("below the mark: %v", failure)
	}
}

// TestDetached_RestoredReplicaForgetsTheSame: when more detached records are due than one entry drops, a restored replica drops
// the same ones as the others. A due one is gone for every command, dropped or not.
func TestDetached_RestoredReplicaForgetsTheSame(t *testing.T) {
	for stride := 1; stride <= 7; stride += 2 {
		w := newWorld(t)
		w.apply(applyQuotas(rateOf("q", 1<<40, hour)))
		const leases = 2 * maxForgottenPerEntry
		for from := 0; from < leases; from += 512 {
			commands := make([]*logpb.Command, 512)
			for i := range commands {
				a := ask("a", itemOf("q", 1))
				a.Consume = true
				commands[i] = reserve(a)
			}
			w.raw(commands...)
		}
		for first := range stride {
			for id := first; id < leases; id += stride {
				w.raw(releases(uint64(id + 1)))
			}
		}
		twin := w.m
		w.reborn()
		w.now += 2 * hour
		settled := make([]*logpb.Command, 0, leases)
		for id := range uint64(leases) {
			settled = append(settled, settle(&logpb.Settle{Lease: id + 1, Fence: id + 1, Op: 1, Actual: []*logpb.Item{itemOf("q", 1000)}}))
		}
		for i, result := range w.raw(settled...) {
			if result.GetFailure().GetReason() != logpb.Reason_REASON_STALE_FENCE {
				t.Fatalf("lease %d: %v", i+1, result)
			}
		}
		twin.Follow(w.index, 1, w.entries[len(w.entries)-1])
		if ours, theirs := pagesOf(w.m), pagesOf(twin); len(ours) == 0 || !slices.Equal(ours, theirs) {
			t.Fatalf("stride %d: %d pages are left, and %d", stride, len(ours), len(theirs))
		}
	}
}

// TestDetached_PageSplitsWhenTimesGrow: a full page is split if the next check time takes a byte more in each of its records.
func TestDetached_PageSplitsWhenTimesGrow(t *testing.T) {
	w := newWorld(t)
	w.apply(applyQuotas(rateOf("q", 10, minute)))
	for i := range 10_000 {
		w.m.records.keepDetached(&operation{
			lease: uint64(i + 1), op: 1, detached: true, check: second, charges: []charge{{quota: 1, amount: 1, end: 30 * second}},
		})
	}
	w.m.clock.Now = 2 * second
	for first, _ := w.m.records.checks.Min(); first.at <= w.m.clock.Now; first, _ = w.m.records.checks.Min() {
		w.m.records.expire()
	}
	w.m.records.detached.Scan(func(p keptPage) bool {
		if len(p.packed) > pageBytes {
			t.Errorf("a page of %d bytes", len(p.packed))
		}
		return true
	})
	if w.m.records.count != 10_000 {
		t.Errorf("%d are left", w.m.records.count)
	}
}

// TestDetached_SparsePagesAreMerged: when most detached records of all pages are dropped, the rest is joined in order, and is
// found.
func TestDetached_SparsePagesAreMerged(t *testing.T) {
	m := New()
	const all, thinned = 30_000, 100
	for i := range all {
		check := int64(1)
		if i%thinned == 0 {
			check = hour
		}
		m.records.keepDetached(&operation{lease: uint64(i + 1), op: 1, detached: true, check: check})
	}
	before := m.records.detached.Len()
	m.clock.Now = 1
	for first, _ := m.records.checks.Min(); first.at <= m.clock.Now; first, _ = m.records.checks.Min() {
		m.records.expire()
	}
	var bytes int64
	m.records.detached.Scan(func(p keptPage) bool {
		bytes += int64(len(p.packed))
		return true
	})
	if pages := m.records.detached.Len(); int64(pages) > 1+bytes*4/pageBytes || before < 3*pages {
		t.Errorf("%d pages, of %d, hold %d bytes", pages, before, bytes)
	}
	for i := range all {
		if o := m.records.detachedOperation(uint64(i+1), 1); (o != nil) != (i%thinned == 0) {
			t.Fatalf("orphan %d: %v", i+1, o)
		}
	}
	if m.accounts.Taken[accounts.Operations] != bytes+all/thinned*actualBytes || m.records.count != all/thinned {
		t.Errorf("%d bytes are charged, %d taken; %d records", m.accounts.Taken[accounts.Operations], bytes, m.records.count)
	}
	if errs := m.records.verifyDetached(); len(errs) > 0 {
		t.Error(errs)
	}
}

// TestDetached_ExpiryIsBoundedPerEntry: due records leave in portions, in which each checked page counts too.
func TestDetached_ExpiryIsBoundedPerEntry(t *testing.T) {
	m := New()
	const all = 5 * maxForgottenPerEntry
	for i := range all {
		m.records.keepDetached(&operation{lease: uint64(i), op: 1, detached: true, check: 1})
	}
	m.clock.Now = 1
	entries := 0
	for left := m.records.count; left > 0; left = m.records.count {
		if m.records.expire(); left-m.records.count > maxForgottenPerEntry+pageBytes || m.records.count == left {
			t.Fatalf("%d in one entry", left-m.records.count)
		}
		entries++
	}
	if entries < 5 || entries > 6 || m.records.detached.Len()+m.records.checks.Len() > 0 {
		t.Errorf("%d entries, %d pages and %d to look at are left", entries, m.records.detached.Len(), m.records.checks.Len())
	}
}

// TestExpiry_KeepsUpWithFullEntries: entries with the most commands, each leaving a lease and two detached records, end as
// much as falls due meanwhile.
func TestExpiry_KeepsUpWithFullEntries(t *testing.T) {
	const step = second / 4
	s := &scale{m: New(), follows: true}
	s.apply(applyQuotas(slotsOf("slots", 1<<40), rateOf("rate", 1<<40, 2*second)))
	commands := make([]*logpb.Command, MaxEntryCommands)
	for i := range commands {
		a := ask("a", itemOf("slots", 1), itemOf("rate", 1))
		a.Consume, a.TtlNs = true, second
		commands[i] = reserve(a)
	}
	most := int64(0)
	for range 100 {
		s.now += step
		s.apply(commands...)
		if first, ok := s.m.records.checks.Min(); ok {
			most = max(most, s.m.clock.Now-first.at)
		}
	}
	counts := s.m.State().Counts()
	if ended := s.m.lastLease - uint64(counts.Leases); ended < 90*MaxEntryCommands {
		t.Errorf("%d leases of %d have ended", ended, s.m.lastLease)
	}
	if most > 4*step {
		t.Errorf("orphans were looked at %v late", time.Duration(most))
	}
}

// TestRestore_RefusesOperationBothLiveAndDetached: a snapshot in which it is both, or neither, is refused.
func TestRestore_RefusesOperationBothLiveAndDetached(t *testing.T) {
	w := newWorld(t)
	w.apply(applyQuotas(rateOf("q", 10, minute)))
	live := w.apply(asks("a", 0, itemOf("q", 5)))[0].GetGranted().Lease
	for _, o := range []*logpb.SnapshotOperation{{Lease: live, Op: 1, Detached: true}, {Lease: live + 1, Op: 1}} {
		if err := (&restoring{m: w.m}).takeOperation(o); err == nil {
			t.Errorf("taken: %v", o)
		}
	}
}

// TestRestore_RefusesImpossibleLeases: ids start at 1, and times at 0.
func TestRestore_RefusesImpossibleLeases(t *testing.T) {
	for _, l := range []*logpb.SnapshotLease{{Id: 0, DeadlineNs: 1}, {Id: 1, DeadlineNs: -1}} {
		if err := (&restoring{m: New()}).takeLease(l); err == nil {
			t.Errorf("taken: %v", l)
		}
	}
	if err := (&restoring{m: New()}).takeLease(&logpb.SnapshotLease{Id: 1, DeadlineNs: 1}); err != nil {
		t.Error(err)
	}
}

// BenchmarkOrphans measures the records of a million leases that consumed, ended, and never settled.
func BenchmarkOrphans(b *testing.B) {
	const records, entry, quotas = 1_000_000, 500, 1000
	var s *scale
	_, size := weighed(func() *scale {
		s = &scale{m: New(), follows: true}
		for i := range quotas {
			s.apply(applyQuotas(rateOf(fmt.Sprintf("bench/q%03d", i), 1<<50, hour)))
		}
		commands := consuming(entry, quotas)
		for n := 0; n < records; n += entry {
			s.now += second / 200
			s.apply(commands...)
		}
		for s.m.State().Counts().Leases > 0 {
			s.now += second
			s.apply()
		}
		return s
	})
	for b.Loop() {
		s.apply()
	}
	b.ReportMetric(size/records, "bytes/record")
}

// TestSettle_AfterTheLeaseChargesItsHolder: an overrun costs its holder as much virtual time when it is settled with a
// stale fence.
func TestSettle_AfterTheLeaseChargesItsHolder(t *testing.T) {
	times := map[bool]uint64{}
	for _, ended := range []bool{false, true} {
		w := newWorld(t)
		w.quotas(rateOf("r", 100, minute))
		w.do(consumesAtOnce("a", itemOf("r", 10)))
		if ended {
			w.do(releases(1))
		}
		if r := w.do(used(1, 1, itemOf("r", 30))); r.GetSettled() == nil {
			t.Fatal(r)
		}
		h, _ := w.m.holders.byName.Get("a")
		times[ended] = h.virtualTime
	}
	if times[true] != times[false] || times[true] == 0 {
		t.Errorf("it moves by %d, and by %d after the lease", times[false], times[true])
	}
}
