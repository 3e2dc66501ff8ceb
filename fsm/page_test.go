package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
)

// Leases returns up to limit leases of a holder, with an item of a quota (empty: any), whatever the cost.
func (s *State) Leases(holder, quota string, after uint64, limit int, at Clock) (views []LeaseView) {
	for going := true; going && len(views) < limit; going = after != 0 {
		var page []LeaseView
		page, after = s.LeasePage(LeaseFilter{Holder: holder, Quota: quota}, after, limit-len(views), at)
		views = append(views, page...)
	}
	return views
}

// crowded is a state with many leases, meters and tasks of a holder each, and the last ones of another holder.
func crowded(t *testing.T, many int) *world {
	w := newWorld(t)
	w.quotas(metered(hourly("h", 1<<40)))
	for from := 0; from <= many; {
		var commands []*logpb.Command
		for ; from <= many && len(commands) < 1000; from++ {
			holder, task := fmt.Sprintf("a%06d", from), fmt.Sprintf("t%06d", from)
			if from == many {
				holder = "few"
			}
			commands = append(commands, reserve(ask(holder, itemOf("h", 1))), begins(task, holder, 3))
		}
		w.raw(commands...)
	}
	if c := w.m.State().Counts(); int(c.Leases) != many+1 || int(c.Tasks) != many+1 {
		t.Fatalf("%+v", c)
	}
	return w
}

// TestPages_BoundTheirWork: a page that finds nothing ends too, with a token; the pages after it find every record.
func TestPages_BoundTheirWork(t *testing.T) {
	w := crowded(t, 3*pageWork)
	state, at := w.m.State(), w.clock()
	scanned := 0
	shown := func(holder string) bool {
		scanned++
		return holder == "few"
	}
	var lease uint64
	var afterTask string
	var mark UsageMark
	for name, page := range map[string]func() (found int, last bool){
		"leases": func() (int, bool) {
			views, next := state.LeasePage(LeaseFilter{Shown: shown}, lease, 10, at)
			lease = next
			return len(views), next == 0
		},
		"leases of a quota": func() (int, bool) {
			views, next := state.LeasePage(LeaseFilter{Quota: "h", Shown: shown}, lease, 10, at)
			lease = next
			return len(views), next == 0
		},
		"tasks": func() (int, bool) {
			views, next := state.TaskPage(task.Filter{Prefix: "t", Shown: shown}, afterTask, 10, at)
			afterTask = next
			return len(views), next == ""
		},
		"usage": func() (int, bool) {
			views, next := state.UsagePage(UsageFilter{Shown: shown}, mark, 10, at)
			mark = next
			return len(views), next == UsageMark{}
		},
	} {
		found, pages, last := 0, 0, false
		for !last {
			var got int
			scanned = 0
			got, last = page()
			if scanned > pageWork {
				t.Fatalf("%s: a page looked at %d", name, scanned)
			}
			found += got
			if pages++; pages > 10 {
				t.Fatalf("%s: %d pages and no end", name, pages)
			}
		}
		if found != 1 || pages < 3 {
			t.Errorf("%s: found %d in %d pages", name, found, pages)
		}
	}
}

// TestPages_ListEachOnce: for any page size each lease and each task is on one page, and the last page says that it is
// the last.
func TestPages_ListEachOnce(t *testing.T) {
	w := crowded(t, 9)
	state, at := w.m.State(), w.clock()
	for size := 1; size <= 11; size++ {
		var leases []uint64
		for after := uint64(0); ; {
			views, next := state.LeasePage(LeaseFilter{}, after, size, at)
			for _, v := range views {
				leases = append(leases, v.ID)
			}
			if after = next; next == 0 {
				break
			}
		}
		var tasks []string
		for after := ""; ; {
			views, next := state.TaskPage(task.Filter{}, after, size, at)
			for _, v := range views {
				tasks = append(tasks, v.Name)
			}
			if after = next; next == "" {
				break
			}
		}
		if len(leases) != 10 || len(tasks) != 10 {
			t.Fatalf("pages of %d: %d leases, %d tasks", size, len(leases), len(tasks))
		}
		for i := range 9 {
			if leases[i] >= leases[i+1] || tasks[i] >= tasks[i+1] {
				t.Errorf("pages of %d: %v, %v", size, leases, tasks)
			}
		}
	}
}

// TestLeasePage_CopiesALedgerOnce: allocations for a page of leases do not grow with their operations.
func TestLeasePage_CopiesALedgerOnce(t *testing.T) {
	allocated := func(operations int) float64 {
		w := newWorld(t)
		w.quotas(rateOf("r", 1<<40, hour))
		g := w.granted(ask("x", itemOf("r", 1000)))
		for op := range operations {
			w.raw(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: uint64(op + 1), Items: []*logpb.Item{itemOf("r", 1)}}))
		}
		state, at := w.m.State(), w.clock()
		return testing.AllocsPerRun(10, func() {
			if views, _ := state.LeasePage(LeaseFilter{}, 0, 10, at); len(views) != 1 || views[0].Operations != operations {
				t.Fatalf("%+v", views)
			}
		})
	}
	if few, many := allocated(2), allocated(100); many != few {
		t.Errorf("%v allocations for 2 operations, %v for 100", few, many)
	}
}
