package fsm

import (
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/logpb"
)

// maxEndWork is how many charges of records one entry deals with because leases end, at most: its bound, and what each of its commands may do beyond it.
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

// withRecords makes leases of one holder that end at the same time, with as many records as a lease may have. Bounds of budgets are out of the way.
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

// consumesPart consumes 1 of what a lease holds, and is finished with the operations below a mark.
func consumesPart(g *logpb.Granted, op, doneBelow uint64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
		Lease: g.Lease, Fence: g.Fence, Op: op, DoneBelow: doneBelow, Items: []*logpb.Item{itemOf("r", 1)},
	}}}
}

// TestEnds_AreBounded: however many records leases have that end together, one entry deals with some of them, and the entries that follow
// with the rest, which is nobody's to use meanwhile.
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
				if left = now; left <= 2*leases { // the last operation of each lease that lives
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

// BenchmarkLongestEnd ends 416 leases with 1,024 records each at once, and tells how long the longest entry took.
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
