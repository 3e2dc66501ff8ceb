package check

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/model"
	"github.com/quotad/quotad/raftnode/record"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The restored run: a backup after one grant, a grant that the restore takes back, then calls with its fence and with new ones.
const (
	backupAt, restoredAt = 3, 6
)

// restored is a run of one node in which a backup of index 3 is restored at index 6, after a grant at index 4.
func restored(t *testing.T) *Simulated {
	t.Helper()
	return restoredRun(t, false)
}

// restoredRun is the same run. With reset, all clocks are an hour ahead at index 4, an operator resets the clock at index 5, and the backup
// is of before. A calendar window is charged too.
func restoredRun(t *testing.T, reset bool) *Simulated {
	t.Helper()
	s := &Simulated{
		Applied: map[string][]*record.Line{}, Restores: []*history.Restore{{
			Backup: backupAt, Index: restoredAt, Epoch: 1, Began: 560e6, Ended: 640e6,
		}},
	}
	machine := fsm.New()
	var backup *fsm.Machine
	items := []*logpb.Item{{Quota: "q", Amount: proto.Int64(1)}}
	if reset {
		items = append(items, &logpb.Item{Quota: "w", Amount: proto.Int64(1)})
	}
	reserve := func() *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
			Holder: "h", Items: items, TtlNs: int64(time.Minute),
		}}}
	}
	var lost *logpb.Granted
	do := func(index uint64, command *logpb.Command) *logpb.Result {
		at := int64(index) * int64(100*time.Millisecond)
		entry := &logpb.Entry{Version: fsm.EntryVersion, StampNs: at, Commands: []*logpb.Command{command}}
		if reset {
			wall := time.Date(2026, time.November, 29, 12, 0, 0, 0, time.UTC).UnixNano() + at
			if index == backupAt+1 {
				wall += int64(time.Hour)
			}
			entry.WallEarlyNs, entry.WallLateNs = wall, wall
		}
		payload, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		applied := machine.Apply(index, 1, payload)
		s.Applied["n1"] = append(s.Applied["n1"], &record.Line{Index: index, Term: 1, Payload: payload, Outcome: record.Digest(&applied)})
		s.Calls = append(s.Calls, SimulatedCall{
			Client: "c", Node: "n1", Sent: at - 1_000_000, Returned: at + 1_000_000, Command: command, Result: applied.Results[0], Term: 1,
			Index: index, Now: at,
		})
		if len(applied.Events) > 0 {
			seen := SimulatedSeen{Watcher: "w", Stream: 1, From: 1, Index: index, Events: slices.Clone(applied.Events)}
			if index > restoredAt {
				seen.Stream, seen.From = 2, restoredAt+1
			}
			s.Seen = append(s.Seen, seen)
		}
		return applied.Results[0]
	}
	do(1, &logpb.Command{IdempotencyKey: "quotas", Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
		{Name: "q", Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: 3, PerNs: int64(time.Hour)}}},
		{Name: "w", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 10, EveryNs: int64(10 * time.Minute)}}},
	}}}})
	do(2, reserve())
	do(3, reserve())
	backup = backupOf(t, machine)
	lost = do(4, reserve()).GetGranted()
	if !reset {
		do(5, reserve()) // the limit is reached
	} else if result := do(5, &logpb.Command{
		IdempotencyKey: "reset",
		Kind:           &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}},
	}); result.GetClockReset() == nil {
		t.Fatalf("the clock was not reset: %v", result)
	}
	before := machine.State()
	backup.Rebase(restoredAt, 1, 1, before.ClusterID(), before.Members(), before.Clock())
	machine = backup
	do(7, &logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: lost.Lease, Fence: lost.Fence}}})
	do(8, reserve())
	do(9, reserve()) // it is reached again
	ledger, whole := machine.State().Hash()
	s.Final = []history.Final{{Node: "n1", Index: 9, Ledger: fmt.Sprintf("%x", ledger), Whole: fmt.Sprintf("%x", whole)}}
	return s
}

// backupOf restores a machine's snapshot into a new machine, as a backup does.
func backupOf(t *testing.T, machine *fsm.Machine) *fsm.Machine {
	t.Helper()
	var snapshot bytes.Buffer
	if err := machine.Freeze().WriteSnapshot(&snapshot); err != nil {
		t.Fatal(err)
	}
	copied, err := fsm.Restore(&snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// TestRestore_CutsHistory: only what a restore took back may be missing.
func TestRestore_CutsHistory(t *testing.T) {
	about := []string{"agreement", "replay", "rules", "answers", "once", "refusals", "real-time", "converged", "watch"}
	if names := failed(RunSimulated(restored(t))); slices.ContainsFunc(names, func(name string) bool { return slices.Contains(about, name) }) {
		t.Fatalf("a run with a restore that is well fails %v", names)
	}
	for name, c := range map[string]struct {
		caught string
		spoil  func(s *Simulated)
	}{
		"a restore without a record":     {"replay", func(s *Simulated) { s.Restores = nil }},
		"an older backup than was named": {"replay", func(s *Simulated) { s.Restores[0].Backup = 2 }},
		"a newer backup than was named":  {"replay", func(s *Simulated) { s.Restores[0].Backup = 4 }},
		"an epoch that is not raised":    {"replay", func(s *Simulated) { s.Restores[0].Epoch = 7 }},
		"an index that runs back":        {"real-time", func(s *Simulated) { s.Calls[6].Index = backupAt }},
		"a stream that continues over the restore": {"watch", func(s *Simulated) {
			for i := range s.Seen {
				s.Seen[i].Stream, s.Seen[i].From = 1, 1
			}
		}},
	} {
		s := restored(t)
		c.spoil(s)
		if names := failed(RunSimulated(s)); !slices.Contains(names, c.caught) {
			t.Errorf("%s: %s did not find it, but %v", name, c.caught, names)
		}
	}
}

// TestRestore_AfterClockReset: a restore takes back a reset of the clock too, in the state and in the books, but no time.
func TestRestore_AfterClockReset(t *testing.T) {
	about := []string{"agreement", "replay", "rules", "answers", "once", "refusals", "real-time", "converged", "watch"}
	if names := failed(RunSimulated(restoredRun(t, true))); slices.ContainsFunc(names, func(name string) bool {
		return slices.Contains(about,
			name)
	}) {
		t.Fatalf("a run with a reset and a restore that is well fails %v", names)
	}
	for name, c := range map[string]struct {
		caught string
		spoil  func(s *Simulated)
	}{
		"a restore without a record":      {"replay", func(s *Simulated) { s.Restores = nil }},
		"a backup of after the reset":     {"replay", func(s *Simulated) { s.Restores[0].Backup = 5 }},
		"a restore from before the reset": {"replay", func(s *Simulated) { s.Restores[0].Index = 5 }},
	} {
		s := restoredRun(t, true)
		c.spoil(s)
		if names := failed(RunSimulated(s)); !slices.Contains(names, c.caught) {
			t.Errorf("%s: %s did not find it, but %v", name, c.caught, names)
		}
	}
}

// TestRestore_WithoutAnswer: if the outcome of a restore is unknown, the nodes' logs show the restore, and its epoch is unknown. The
// checkers judge as after any other restore, and find a restore that the logs do not show.
func TestRestore_WithoutAnswer(t *testing.T) {
	about := []string{"agreement", "replay", "rules", "answers", "once", "refusals", "real-time", "converged", "watch"}
	s := restored(t)
	s.Restores[0].Epoch = 0
	if names := failed(RunSimulated(s)); slices.ContainsFunc(names, func(name string) bool { return slices.Contains(about, name) }) {
		t.Fatalf("a run whose restore had no answer fails %v", names)
	}
	s = restored(t)
	s.Restores[0].Epoch, s.Restores[0].Index = 0, 5 // where an entry was applied
	if names := failed(RunSimulated(s)); !slices.Contains(names, "replay") {
		t.Errorf("a restore that did not take place: replay did not find it, but %v", names)
	}
}

// TestRestore_FencesFromBeforeFreeNothing: the model accepts no use and no second grant of a fence from before a restore.
func TestRestore_FencesFromBeforeFreeNothing(t *testing.T) {
	lines := restored(t).Applied["n1"]
	for name, c := range map[string]struct {
		line  int
		spoil func(applied *fsm.Applied)
		want  string
	}{
		"as it was": {5, func(*fsm.Applied) {}, ""},
		"it frees": {5, func(a *fsm.Applied) {
			a.Results[0] = &logpb.Result{Kind: &logpb.Result_Released{Released: &logpb.Released{Ended: true}}}
		}, "dead-fence"},
		"it is given again":  {6, func(a *fsm.Applied) { a.Results[0].GetGranted().Fence = 4; a.Events[0].Fence = 4 }, "fence-order"},
		"so is a lease's id": {6, func(a *fsm.Applied) { a.Results[0].GetGranted().Lease = 4; a.Events[0].Lease = 4 }, "fence-order"},
		"a grant as it was":  {6, func(*fsm.Applied) {}, ""},
		"more than was lost": {7, func(*fsm.Applied) {}, ""},
	} {
		timeline := newTimeline()
		var from *backup
		for _, line := range lines[:5] {
			if _, _, broken, err := timeline.apply(line); err != nil || len(broken) > 0 {
				t.Fatal(broken, err)
			}
			if line.Index == backupAt {
				from = timeline.backup()
			}
		}
		after, violation, err := timeline.restored(from, &history.Restore{Backup: backupAt, Index: restoredAt, Epoch: 1})
		if err != nil || violation != nil {
			t.Fatal(violation, err)
		}
		for _, line := range lines[5:c.line] {
			if _, _, broken, err := after.apply(line); err != nil || len(broken) > 0 {
				t.Fatal(broken, err)
			}
		}
		line, parsed := lines[c.line], new(logpb.Entry)
		if err := proto.Unmarshal(line.Payload, parsed); err != nil {
			t.Fatal(err)
		}
		applied := after.machine.Apply(line.Index, line.Term, line.Payload)
		c.spoil(&applied)
		broken := after.judge.Entry(parsed, &applied)
		if c.want == "" && len(broken) > 0 || c.want != "" &&
			!slices.ContainsFunc(broken, func(v model.Violation) bool { return v.Name == c.want }) {
			t.Errorf("%s: %+v, want %q", name, broken, c.want)
		}
	}
}

// TestUndated_ErrorsNextToARestore: an error names no index. After a restore began, it may be of the state after it. If it was sent before
// an earlier restore ended, it may be of the state that the restore took back.
func TestUndated_ErrorsNextToARestore(t *testing.T) {
	first, second := &history.Restore{Began: 10, Ended: 20}, &history.Restore{Began: 50, Ended: 60}
	answered := []part{{meta: &quotav1.Meta{Index: 7}}}
	for name, c := range map[string]struct {
		sent, returned int64
		parts          []part
		last           *history.Restore
		want           bool
	}{
		"before the first restore":          {1, 5, nil, second, true},
		"sent while it ran":                 {15, 30, nil, second, true},
		"between two restores":              {21, 49, nil, second, false},
		"answered behind the second":        {45, 61, nil, second, true},
		"behind all, in the last history":   {61, 62, nil, nil, false},
		"an answer with an index is of one": {45, 61, answered, second, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := undated(&call{Call: &history.Call{Sent: c.sent, Returned: c.returned}, parts: c.parts}, []*history.Restore{first}, c.last)
			if got != c.want {
				t.Errorf("undated: %v, want %v", got, c.want)
			}
		})
	}
}
