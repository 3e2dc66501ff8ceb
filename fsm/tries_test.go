package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestServing_ContinuesInNextEntry: amounts freed after an entry has used up its tries are not lost, on a restored
// replica too.
func TestServing_ContinuesInNextEntry(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 2))
	first, second := w.granted(ask("x", itemOf("s", 1))), w.granted(ask("y", itemOf("s", 1)))
	for _, name := range []string{"a", "b"} {
		w.do(waits(name, 0, minute, itemOf("s", 1)))
	}
	w.m.bounds.tries = bound{most: 1}
	w.apply(releases(first.Lease), releases(second.Lease), asks("c", 0, itemOf("s", 1)))
	if reason := w.last.Results[2].GetRefusal().GetReason(); reason != logpb.Reason_REASON_BEHIND_WAITERS {
		t.Errorf("who comes while others wait for what came free: %v", w.last.Results[2])
	}
	if waiting := w.m.queue.waiters.Len(); waiting != 1 {
		t.Fatalf("%d wait after one pass, want one", waiting)
	}
	if due, ok := w.m.State().NextDue(); !ok || due > w.now+1 {
		t.Fatalf("the next entry is due at %d (%t), it is %d", due, ok, w.now)
	}
	w.reborn()
	w.sleep(1)
	if waiting := w.m.queue.waiters.Len(); waiting != 0 {
		t.Errorf("%d still wait", waiting)
	}
}

// TestPressure_IsReportedOncePerEntry: however often limits begin and end within an entry, each step gets one event, of the
// last limit.
func TestPressure_IsReportedOncePerEntry(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 100))
	w.do(workflows(releaseChain()))
	w.granted(ask("other", itemOf("s", 50)))
	var commands []*logpb.Command
	for range 10 {
		commands = append(commands, asks("deployment", 0, itemOf("s", 90)), asks("deployment", 0, itemOf("s", 1)))
	}
	w.apply(append(commands, asks("implementation", 0, itemOf("s", 90)))...)
	reported := map[string]string{}
	for _, event := range w.last.Events {
		if event.Kind != effect.EventBackPressure {
			continue
		}
		if step, twice := reported[event.Holder]; twice {
			t.Errorf("%q receives %q and %q", event.Holder, step, event.Step)
		}
		reported[event.Holder] = event.Step
	}
	if len(reported) != 5 || reported["triage"] != "implementation" || reported["deployment"] != "implementation" {
		t.Errorf("reported: %v, want all steps, of the limit of implementation", reported)
	}
}

// TestWalks_AreOncePerHolderAndEntry: steps that were not visited at once are tried with the next entry.
func TestWalks_AreOncePerHolderAndEntry(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 100), slotsOf("one", 1))
	w.do(workflows(chain("w", "first", "second", "last")))
	w.granted(ask("other", itemOf("one", 1)))
	w.refused(ask("last", itemOf("one", 1)), logpb.Reason_REASON_EXHAUSTED)
	for _, name := range []string{"first", "second"} {
		w.do(waits(name, 0, minute, itemOf("s", 1)))
	}
	if waiting := w.m.queue.waiters.Len(); waiting != 2 {
		t.Fatalf("%d wait upstream of a limit, want two", waiting)
	}
	w.m.bounds.walks = bound{most: 1}
	w.do(deletesWorkflow("w"))
	w.sleep(1)
	if waiting := w.m.queue.waiters.Len(); waiting != 0 {
		t.Errorf("%d still wait although nothing keeps them back", waiting)
	}
}

// TestServing_LeavesCommandsTheirTries: a queue that uses up an entry's tries before its commands does not refuse
// requests that do not wait.
func TestServing_LeavesCommandsTheirTries(t *testing.T) {
	w := newWorld(t)
	quotas := []*logpb.Quota{slotsOf("s", 2), slotsOf("full", 1)}
	for i := range 40 {
		quotas = append(quotas, slotsOf(fmt.Sprint("own", i), 1))
	}
	w.quotas(quotas...)
	w.do(holders(&logpb.HolderRule{Pattern: "critical", Class: 0, Weight: 1}))
	w.granted(ask("x", itemOf("full", 1)))
	for i := range 40 { // each in its own wait set
		w.waiting(waits(fmt.Sprint("h", i), 0, 10*minute, itemOf("s", 1), itemOf("full", 1), itemOf(fmt.Sprint("own", i), 1)))
	}
	w.m.bounds.tries.most = 64
	w.m.quotas.dirty[w.m.quotas.named("full").number] = true // examined with due work
	w.granted(ask("critical", itemOf("s", 1)))
}
