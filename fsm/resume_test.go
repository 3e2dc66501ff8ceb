package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/logpb"
)

// resumedWorld returns a world in which a holder with many leases, of one slot and one request each, resumed. An entry
// ends at most five.
func resumedWorld(t *testing.T, leases int) (*world, []*logpb.Granted) {
	t.Helper()
	w := newWorld(t)
	w.m.bounds.resumes.most = 5
	w.quotas(slotsOf("s", 1000), rateOf("r", 1000, minute), rateOf("other", 10, minute))
	var granted []*logpb.Granted
	for range leases {
		granted = append(granted, w.granted(ask("me", itemOf("s", 1), itemOf("r", 1))))
	}
	again := ask("me", itemOf("other", 1))
	again.Resume = true
	w.granted(again)
	return w, granted
}

// TestResume_EndsAllLeasesAtOnce: even those whose amounts return with later entries; every command and reader finds
// them ended.
func TestResume_EndsAllLeasesAtOnce(t *testing.T) {
	w, granted := resumedWorld(t, 40)
	if left := w.m.leases.Len(); left != 36 {
		t.Fatalf("%d leases have records, want 36: one entry ends 5", left)
	}
	s := w.m.State()
	if live := s.Leases("me", "", 0, 100, w.clock()); len(live) != 1 {
		t.Errorf("%d leases are listed, want the new one", len(live))
	}
	for _, g := range granted {
		if valid, _ := s.CheckFence(g.Lease, g.Fence, w.clock()); valid {
			t.Errorf("the fence of lease %d is good", g.Lease)
		}
	}
	if at, pending := s.NextDue(); at > s.clock.Now || !pending {
		t.Errorf("nothing is due until %d (%t): nobody would continue", at, pending)
	}
	last := granted[len(granted)-1]
	stale := logpb.Reason_REASON_STALE_FENCE
	w.now += millisecond
	for _, command := range []*logpb.Command{
		renew(&logpb.Renew{Lease: last.Lease, Fence: last.Fence}),
		consumeCmd(&logpb.Consume{Lease: last.Lease - 1, Fence: last.Fence - 1, Op: 1}),
		release(&logpb.Release{Lease: last.Lease - 2, Fence: last.Fence - 2, Items: []*logpb.Item{itemOf("r", 1)}}),
		settle(&logpb.Settle{Lease: last.Lease - 3, Fence: last.Fence - 3, Op: 1, Release: true}),
		report(&logpb.Report{Lease: last.Lease - 4, Fence: last.Fence - 4, Signals: []*logpb.Signal{{Quota: "s", Cause: logpb.Cause_CAUSE_OK}}}),
	} {
		if r := w.do(command); r.GetFailure().GetReason() != stale {
			t.Errorf("%v: %v", command, r)
		}
	}
	revoke := &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: last.Lease - 5}}}
	if r := w.do(revoke); r.GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_LEASE {
		t.Errorf("revoked: %v", r)
	}
	if left, free := w.m.leases.Len()-1, w.available("s"); free != int64(1000-left) {
		t.Errorf("%d slots of 1,000 are free while %d leases have records: those that a command met go back without grace, too", free, left)
	}
}

// TestResume_ReleasesInSteps: with the following entries, also over restores and past the leases' deadlines,
// and without grace.
func TestResume_ReleasesInSteps(t *testing.T) {
	for name, passed := range map[string]int64{"at once": 0, "past the deadlines": hour} {
		t.Run(name, func(t *testing.T) {
			w, _ := resumedWorld(t, 40)
			twin := restoredFrom(t, snapshotOf(t, w.m.Freeze()), w.m.bounds)
			twin.bounds.resumes.most = 5
			w.now += passed
			for step := 0; w.m.resumed.Len() > 0; step++ {
				before := w.m.leases.Len()
				w.apply()
				twin.Apply(w.index, 1, w.entries[len(w.entries)-1])
				if ended := before - w.m.leases.Len(); passed == 0 && ended > 5 || step > 10 {
					t.Fatalf("step %d ended %d leases", step, ended)
				}
				w.reborn()
			}
			if free := w.available("s"); free != 1000 {
				t.Errorf("%d slots are free, want all", free)
			}
			ledger, whole := w.m.State().Hash()
			if otherLedger, otherWhole := twin.State().Hash(); ledger != otherLedger || whole != otherWhole {
				t.Error("the twin has another hash")
			}
			w.granted(ask("you", itemOf("s", 1000)))
		})
	}
}

// TestResume_LeavesNewLeasesAlone: leases granted after it live, even while older ones are still being ended.
func TestResume_LeavesNewLeasesAlone(t *testing.T) {
	w, _ := resumedWorld(t, 40)
	g := w.granted(ask("me", itemOf("s", 1)))
	for w.m.resumed.Len() > 0 {
		w.apply()
	}
	if r := w.do(renew(&logpb.Renew{Lease: g.Lease, Fence: g.Fence})); r.GetRenewed() == nil {
		t.Error(r)
	}
}

// TestResume_OfManyHoldersFinishes: resumes in one entry share its bound, and each ends some.
func TestResume_OfManyHoldersFinishes(t *testing.T) {
	w := newWorld(t)
	w.m.bounds.resumes.most = 5
	w.quotas(slotsOf("s", 1000))
	for i := range 60 {
		w.granted(ask(fmt.Sprintf("h%d", i%3), itemOf("s", 1)))
	}
	var commands []*logpb.Command
	for i := range 3 {
		again := ask(fmt.Sprintf("h%d", i), itemOf("s", 1))
		again.Resume = true
		commands = append(commands, reserve(again))
	}
	w.apply(commands...)
	if left := w.m.leases.Len(); left != 60-15+3 {
		t.Errorf("%d leases are left: each resume ends 5, before its own", left)
	}
	for step := 0; w.m.resumed.Len() > 0; step++ {
		w.apply()
		if step > 10 {
			t.Fatal("it never ends")
		}
	}
	if left := w.m.leases.Len(); left != 3 {
		t.Errorf("%d leases are left, want 3", left)
	}
}

// BenchmarkResume lets a holder of 400,000 leases resume, and reports the time of the longest entry.
func BenchmarkResume(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b)
		w.raw(applyQuotas(slotsOf("s", 1_000_000)))
		for range 400 {
			commands := make([]*logpb.Command, 1000)
			for i := range commands {
				commands[i] = reserve(ask("me", itemOf("s", 1)))
			}
			w.raw(commands...)
			w.entries = nil
		}
		again := ask("me", itemOf("s", 1))
		again.Resume = true
		b.StartTimer()
		var longest time.Duration
		entries := 0
		for commands := []*logpb.Command{reserve(again)}; commands != nil || w.m.resumed.Len() > 0; commands = nil {
			started := time.Now()
			w.raw(commands...)
			longest = max(longest, time.Since(started))
			entries++
		}
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms/entry-max")
		b.ReportMetric(float64(entries), "entries")
	}
}
