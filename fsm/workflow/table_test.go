package workflow

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// fakeHost is a machine with the answers of a test.
type fakeHost struct {
	now     int64
	fence   uint64
	leases  map[string]uint64
	waiting map[string]int64
	lacks   bool
	woken   []string
	events  []effect.Event
}

func (h *fakeHost) Now() int64                       { return h.now }
func (h *fakeHost) Fence() uint64                    { return h.fence }
func (h *fakeHost) NewestFence(holder string) uint64 { return h.leases[holder] }
func (h *fakeHost) Waiting(holder string) int64      { return h.waiting[holder] }
func (h *fakeHost) WaitsForElse(string, string) bool { return false }
func (h *fakeHost) Lacks(Shortage) bool              { return h.lacks }
func (h *fakeHost) Wake(holder string)               { h.woken = append(h.woken, holder) }

func (h *fakeHost) Emit(event effect.Event, place int) int {
	if place != 0 {
		h.events[place-1] = event
		return place
	}
	h.events = append(h.events, event)
	return len(h.events)
}

// defined returns a table with these workflows.
func defined(t *testing.T, h Host, definitions ...*logpb.Workflow) *Table {
	t.Helper()
	plans, failure := Check(definitions)
	if failure != nil {
		t.Fatal(failure)
	}
	table := New()
	table.Replace(h, plans)
	return table
}

// limit limits a holder by quota r for a minute.
func (t *Table) limit(h *fakeHost, holder string) {
	t.RecordLimit(h, holder, Shortage{"r", 1}, h.now+fixed.Minute, logpb.Reason_REASON_COOLDOWN)
}

// all returns the records of a table.
func (t *Table) all() (records []*logpb.SnapshotWorkflow) {
	t.Records(func(record *logpb.SnapshotRecord) bool {
		records = append(records, proto.CloneOf(record.GetWorkflow()))
		return true
	})
	return records
}

func sameRecords(a, b []*logpb.SnapshotWorkflow) bool {
	return slices.EqualFunc(a, b, func(a, b *logpb.SnapshotWorkflow) bool { return proto.Equal(a, b) })
}

// sequential returns a table with a sequential workflow whose baton was taken, and its host.
func sequential(t *testing.T) (*Table, *fakeHost) {
	t.Helper()
	h := &fakeHost{now: fixed.Hour, fence: 4, leases: map[string]uint64{"b": 5}, waiting: map[string]int64{"b": 1}, lacks: true}
	table := defined(t, h, chain("one", "a", "b", "c"), chain("two", "c", "d"))
	for _, holder := range []string{"a", "c", "b"} {
		table.limit(h, holder)
	}
	if end := table.RecordGrant(h, "b", 5, true, func(string) int64 { return 1 }); end != h.now+defaultBatonTime {
		t.Fatalf("the baton ends at %d", end)
	}
	if v, _ := table.View("one", h.now, h.Waiting); !v.Sequential || v.Baton == nil || *v.Baton != (BatonView{"b", 5, defaultBatonTime}) {
		t.Fatalf("%+v", v)
	}
	return table, h
}

// TestCopy_NeverChanges: a change of a table or of its copy does not change the other.
func TestCopy_NeverChanges(t *testing.T) {
	for name, change := range map[string]func(*Table, *fakeHost){
		"a limit":    func(t *Table, h *fakeHost) { t.limit(h, "d") },
		"a grant":    func(t *Table, h *fakeHost) { t.RecordGrant(h, "c", 6, true, func(string) int64 { return 1 }) },
		"an end":     func(t *Table, h *fakeHost) { h.leases = nil; t.RecordEnd(h, "b", 5) },
		"a review":   func(t *Table, h *fakeHost) { h.now += fixed.Hour; t.Review(h, 10) },
		"a deletion": func(t *Table, h *fakeHost) { t.Delete(h, "one") },
		"a reopening": func(t *Table, h *fakeHost) {
			t.EndLimits(h, "", MaxSteps, true, func(string, Shortage) bool { return true })
		},
	} {
		for _, copied := range []bool{false, true} {
			changed, h := sequential(t)
			kept := changed.Copy()
			if copied {
				changed, kept = kept, changed
			}
			before := kept.all()
			change(changed, h)
			if sameRecords(before, changed.all()) {
				t.Errorf("%s changes nothing", name)
			}
			if !sameRecords(before, kept.all()) {
				t.Errorf("%s (of the copy: %t) changes the other one, too", name, copied)
			}
			for _, one := range []*Table{changed, kept} {
				if err := one.Verify(h.fence + 2); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

// TestRestore_IsTheSameTable: it also refuses values outside of the workflow.
func TestRestore_IsTheSameTable(t *testing.T) {
	table, h := sequential(t)
	restored := New()
	for _, record := range table.all() {
		if err := restored.Restore(record, h.now); err != nil {
			t.Fatal(err)
		}
	}
	if err := restored.Verify(5); err != nil || !sameRecords(table.all(), restored.all()) {
		t.Errorf("restored: %v\n%v\nnot\n%v", err, restored.all(), table.all())
	}
	if restored.Verify(4) == nil {
		t.Error("a baton is newer than the newest fence, and nobody sees it")
	}
	for name, change := range map[string]func(*logpb.SnapshotWorkflow){
		"no definition":           func(w *logpb.SnapshotWorkflow) { w.Definition = nil },
		"a definition in vain":    func(w *logpb.SnapshotWorkflow) { w.Definition.Steps = nil },
		"a next step outside":     func(w *logpb.SnapshotWorkflow) { w.Next = 3 },
		"a baton before all":      func(w *logpb.SnapshotWorkflow) { w.Baton.Place = -1 },
		"a debt to a fourth":      func(w *logpb.SnapshotWorkflow) { w.Owed = 1 << 3 },
		"a state of a fourth":     func(w *logpb.SnapshotWorkflow) { w.Steps[0].Place = 3 },
		"a state of a step of -1": func(w *logpb.SnapshotWorkflow) { w.Steps[0].Place = -1 },
	} {
		record := table.all()[0]
		change(record)
		if New().Restore(record, h.now) == nil {
			t.Errorf("%s is restored", name)
		}
	}
}

// TestReplace_LeavesNothingBehind: of workflows that are no longer defined.
func TestReplace_LeavesNothingBehind(t *testing.T) {
	table, h := sequential(t)
	h.events, h.woken = nil, nil
	table.Replace(h, nil)
	if table.workflows.Len()+table.stepsOf.Len()+table.reviews.Len() != 0 {
		t.Errorf("%d workflows, %d holders, %d reviews are left", table.workflows.Len(), table.stepsOf.Len(), table.reviews.Len())
	}
	if got := fmt.Sprint(slices.Sorted(slices.Values(slices.Compact(h.woken)))); got != "[a b c d]" {
		t.Errorf("%s are tried", got)
	}
	if len(h.events) != 1 || h.events[0].Kind != effect.EventParallel || h.events[0].Workflow != "one" {
		t.Errorf("%+v", h.events)
	}
}

// TestRecordLimit_ReportsStepOncePerEntry: with the last limit.
func TestRecordLimit_ReportsStepOncePerEntry(t *testing.T) {
	h := &fakeHost{now: fixed.Hour}
	table := defined(t, h, chain("one", "a", "b", "c"))
	reported := func() (count int) {
		for _, e := range h.events {
			if e.Kind == effect.EventBackPressure {
				count++
			}
		}
		return count
	}
	table.limit(h, "b")
	table.limit(h, "c")
	if reported() != 3 || h.events[0].Step != "c" {
		t.Errorf("%+v", h.events)
	}
	table.BeginEntry()
	h.events = nil
	table.limit(h, "a")
	if reported() != 3 {
		t.Errorf("%d events with the next entry", reported())
	}
}

// TestEndLimits_ContinuesWhereItStopped: as many steps as allowed, and the first workflow in any case.
func TestEndLimits_ContinuesWhereItStopped(t *testing.T) {
	h := &fakeHost{now: fixed.Hour}
	table := defined(t, h, chain("one", "a", "b", "c"), chain("two", "d", "e"), chain("x", "f", "g"))
	for _, c := range []struct {
		from  string
		most  int
		first bool
		steps int
		next  string
	}{
		{"", 7, true, 7, ""},
		{"", 6, true, 5, "x"},
		{"", 1, true, 3, "two"},
		{"", 2, false, 0, "one"},
		{"two", 2, false, 2, "x"},
		{"x", 2, true, 2, ""},
	} {
		if steps, next := table.EndLimits(h, c.from, c.most, c.first, nil); steps != c.steps || next != c.next {
			t.Errorf("%+v: %d steps, on with %q", c, steps, next)
		}
	}
}
