package fsm

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxEndWork is the most charges of records that one entry processes because leases end: its bound, and the work that
// each of its commands may do beyond it.
const maxEndWork = 64 << 10

// pendingCharges counts the charges of records that have not left their lease.
func pendingCharges(m *Machine) (count int) {
	m.eachOperation(func(o *operation) bool {
		if !o.detached {
			count += 1 + len(o.charges)
		}
		return true
	})
	return count
}

// withRecords makes leases of one holder that end at the same time, each with the most records. Budgets are large
// enough.
func withRecords(t tester, leases int) (w *world, granted []*logpb.Granted) {
	w = newWorld(t)
	unlimited := int64(1) << 40
	w.raw(applyQuotas(rateOf("r", 1<<40, hour)),
		&logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{MaxLeases: &unlimited, MaxOperationBytes: &unlimited}}})
	for range leases {
		req := ask("h", itemOf("r", maxRecords+1))
		req.TtlNs = minute
		granted = append(granted, w.raw(reserve(req))[0].GetGranted())
	}
	for _, g := range granted {
		commands := make([]*logpb.Command, maxRecords)
		for i := range commands {
			commands[i] = consumesPart(g, uint64(i+1), 0)
		}
		w.raw(commands...)
		w.entries = nil
	}
	return w, granted
}

// consumesPart consumes 1 of a lease's holdings, and finishes the operations below a mark.
func consumesPart(g *logpb.Granted, op, doneBelow uint64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
		Lease: g.Lease, Fence: g.Fence, Op: op, DoneBelow: doneBelow, Items: []*logpb.Item{itemOf("r", 1)},
	}}}
}

// TestEnds_AreBounded: however many records ending leases have, one entry processes some of them, and the following
// entries the rest. No command can use these meanwhile.
func TestEnds_AreBounded(t *testing.T) {
	const leases = 80
	for name, end := range map[string]func(w *world, granted []*logpb.Granted) []*logpb.Command{
		"expiry": func(w *world, _ []*logpb.Granted) []*logpb.Command {
			w.now += 2 * minute
			return nil
		},
		"resume": func(*world, []*logpb.Granted) []*logpb.Command {
			resumes := ask("h", itemOf("r", 1))
			resumes.Resume = true
			return []*logpb.Command{reserve(resumes)}
		},
		"release": func(_ *world, granted []*logpb.Granted) (commands []*logpb.Command) {
			for _, g := range granted {
				commands = append(commands, releasesOf(g))
			}
			return commands
		},
		"revoke": func(_ *world, granted []*logpb.Granted) (commands []*logpb.Command) {
			for _, g := range granted {
				commands = append(commands, &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: g.Lease}}})
			}
			return commands
		},
		"done_below": func(_ *world, granted []*logpb.Granted) (commands []*logpb.Command) {
			for _, g := range granted {
				commands = append(commands, consumesPart(g, maxRecords+1, maxRecords+1))
			}
			return commands
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, granted := withRecords(t, leases)
			commands := end(w, granted)
			for entries, left := 0, pendingCharges(w.m); ; entries++ {
				w.raw(commands...)
				commands = nil
				now := pendingCharges(w.m)
				if left-now > maxEndWork {
					t.Fatalf("entry %d dealt with %d charges", entries, left-now)
				}
				if left = now; left <= 2*leases { // the last operation of each live lease
					break
				}
				if entries > leases*maxRecords {
					t.Fatalf("%d are left after %d entries", left, entries)
				}
			}
			if err := w.m.Verify(); err != nil {
				t.Error(err)
			}
		})
	}
}

func releasesOf(g *logpb.Granted) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: g.Lease, Fence: g.Fence}}}
}

// BenchmarkLongestEnd ends 416 leases with 1,024 records each at once, and reports the time of the longest entry.
func BenchmarkLongestEnd(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		w, _ := withRecords(b, 416)
		w.now += 2 * minute
		b.StartTimer()
		var longest time.Duration
		entries := 0
		for pending := true; pending; {
			w.entries = nil
			started := time.Now()
			w.raw()
			longest = max(longest, time.Since(started))
			entries++
			w.now += millisecond
			due, _ := w.m.State().NextDue()
			pending = due <= w.now
		}
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms/entry-max")
		b.ReportMetric(float64(entries), "entries")
	}
}

// recordsWithin makes one lease with some records under small bounds: operation 1 is settled, the mark is at 3, and the
// lease has ended.
func recordsWithin(t tester, ends int) (w *world, g *logpb.Granted) {
	w = newWorld(t)
	w.raw(applyQuotas(rateOf("r", 100, hour)))
	g = w.raw(reserve(ask("h", itemOf("r", 20))))[0].GetGranted()
	for op := range uint64(8) {
		w.raw(consumesPart(g, op+1, 0))
	}
	w.raw(settles(g, 1, 1), settles(g, 5, 1))
	w.m.bounds.ends = bound{most: ends}
	w.raw(consumesPart(g, 9, 3), releasesOf(g))
	return w, g
}

// settles returns a command that settles the actual amount of r of one operation.
func settles(g *logpb.Granted, op uint64, amount int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Settle{Settle: &logpb.Settle{
		Lease: g.Lease, Fence: g.Fence, Op: op, Actual: []*logpb.Item{itemOf("r", amount)},
	}}}
}

// TestEnds_LeaveRecordsAsIfAtOnce: records that have not left an ended lease yet answer as if they had. An upward
// Settle counts once. It is refused for operations below the mark, for settled ones, and downwards.
func TestEnds_LeaveRecordsAsIfAtOnce(t *testing.T) {
	for _, c := range []struct {
		op     uint64
		amount int64
		taken  bool
	}{
		{op: 1, amount: 3},
		{op: 2, amount: 3},
		{op: 4, amount: 3, taken: true},
		{op: 4, amount: 0},
		{op: 5, amount: 3},
		{op: 8, amount: 2, taken: true},
		{op: 9, amount: 5, taken: true},
		{op: 10, amount: 5},
	} {
		for _, ends := range []int{0, 1, 2, maxEndedPerEntry} {
			w, g := recordsWithin(t, ends)
			if ends == 0 && pendingCharges(w.m) != 18 {
				t.Fatalf("%d records and charges are left where none may leave", pendingCharges(w.m))
			}
			w.m.bounds.ends.most = 0
			result := w.raw(settles(g, c.op, c.amount))[0]
			if taken := result.GetSettled() != nil; taken != c.taken {
				t.Errorf("within %d: operation %d: %v", ends, c.op, result)
			}
			if again := w.raw(settles(g, c.op, c.amount))[0]; (again.GetSettled() != nil) != c.taken {
				t.Errorf("within %d: operation %d, again: %v", ends, c.op, again)
			}
			if err := w.m.Verify(); err != nil {
				t.Fatalf("within %d: operation %d: %v", ends, c.op, err)
			}
			w.m.bounds.ends.most = 3
			for w.m.unfinished() {
				w.raw()
			}
			q := w.m.quotas.named("r")
			if want := 9 + max(c.amount-1, 0)*int64(len(result.GetSettled().GetOverrun())); q.ledger.Consumed() != want {
				t.Errorf("within %d: operation %d: %d counts, not %d", ends, c.op, q.ledger.Consumed(), want)
			}
		}
	}
}

// TestEnds_ContinueAfterRestore: unfinished work is part of snapshots, so restored replicas continue it in the same way.
func TestEnds_ContinueAfterRestore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.IntRange(0, 7).Draw(rt, "most")
		w, g := recordsWithin(rt, most)
		other := w.raw(reserve(ask("i", itemOf("r", 20))))[0].GetGranted()
		for i := range uint64(4) {
			w.raw(consumesPart(other, i+1, 0))
		}
		next := uint64(5)
		for range rapid.IntRange(1, 20).Draw(rt, "entries") {
			w.now += rapid.SampledFrom([]int64{0, millisecond, second, minute}).Draw(rt, "after")
			var commands []*logpb.Command
			switch rapid.IntRange(0, 4).Draw(rt, "command") {
			case 0:
				commands = append(commands, settles(g, rapid.Uint64Range(1, 9).Draw(rt, "op"), 2))
			case 1:
				commands = append(commands, consumesPart(other, next, rapid.Uint64Range(0, next).Draw(rt, "mark")))
				next++
			case 2:
				commands = append(commands, settles(other, rapid.Uint64Range(1, next).Draw(rt, "op"), 2))
			case 3:
				if rapid.IntRange(0, 4).Draw(rt, "ends") == 0 {
					commands = append(commands, releasesOf(other))
				}
			}
			restored, err := Restore(bytes.NewReader(snapshotOf(rt, w.m.Freeze())))
			if err != nil {
				rt.Fatal(err)
			}
			w.m.bounds.ends.most = rapid.IntRange(0, 7).Draw(rt, "most")
			restored.bounds = w.m.bounds
			w.raw(commands...)
			restored.Apply(w.index, 1, w.entries[len(w.entries)-1])
			if err := w.m.Verify(); err != nil {
				rt.Fatal(err)
			}
			if !bytes.Equal(snapshotOf(rt, restored.State()), snapshotOf(rt, w.m.State())) {
				rt.Fatal("the restored state continues differently")
			}
		}
	})
}

// TestConsume_AtBudgetTakesOnlyWhatItFrees: a caller at its budget that finishes operations gets no more of it than
// these used, even if the entry has processed as many records as it may.
func TestConsume_AtBudgetTakesOnlyWhatItFrees(t *testing.T) {
	w := newWorld(t)
	w.raw(applyQuotas(rateOf("r", 1<<40, hour)))
	g := w.raw(reserve(ask("h", itemOf("r", 2000))))[0].GetGranted()
	for op := range uint64(10) {
		w.raw(consumesPart(g, op+1, 0))
	}
	taken := w.m.accounts.Taken[accounts.Operations]
	w.raw(&logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{MaxOperationBytes: &taken}}})
	if w.m.accounts.Limits.OperationBytes > taken {
		t.Skipf("the least budget is %d", w.m.accounts.Limits.OperationBytes)
	}
	w.m.bounds.ends = bound{}
	for op := uint64(11); op < 100; op++ {
		if result := w.raw(consumesPart(g, op, op-9))[0]; result.GetConsumed() == nil {
			t.Fatalf("operation %d: %v", op, result)
		}
		if w.m.accounts.Taken[accounts.Operations] > taken {
			t.Fatalf("operation %d takes the budget to %d, of %d", op, w.m.accounts.Taken[accounts.Operations], taken)
		}
	}
}
