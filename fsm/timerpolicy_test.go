package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// classedWorld has quotas, and holders of all classes by their names.
func classedWorld(t *testing.T, quotas ...*logpb.Quota) *world {
	w := newWorld(t)
	w.quotas(quotas...)
	w.do(holders(&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical},
		&logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground}))
	return w
}

// TestTimers_RefusedCallLosesNoWakeup: a call that does not wait is before others for a moment, and is refused. The timers of
// the others stay.
func TestTimers_RefusedCallLosesNoWakeup(t *testing.T) {
	w := classedWorld(t, slotsOf("p", 10), smooth(hourly("z", 1000)))
	w.sleep(10 * minute)
	w.do(consumesAtOnce("x", itemOf("z", 900)))
	w.do(asks("x", 0, itemOf("p", 5)))
	w.do(consumesAtOnce("std", itemOf("z", 1)))
	if r := w.do(waits("std", 0, 5*minute, itemOf("p", 1), itemOf("z", 1))); r.GetWaiting() == nil {
		t.Fatal(r)
	}
	w.sleep(millisecond)
	w.do(asks("crit", 0, itemOf("p", 8)))
	w.sleep(2 * second)
	if free := freeFor(t, w.m); len(free) > 0 {
		t.Errorf("tickets %v wait for what is free", free)
	}
}

// TestTimers_BurstRefillWakesWaiter: at its refill, even without other waiters.
func TestTimers_BurstRefillWakesWaiter(t *testing.T) {
	q := rateOf("r", 600, minute)
	q.GetRate().Burst = 60
	w := classedWorld(t, q)
	for range 100 {
		if w.do(consumesAtOnce("x", itemOf("r", 1))).GetGranted() == nil {
			break
		}
	}
	if r := w.do(reserve(&logpb.Reserve{
		Holder: "y", Items: []*logpb.Item{itemOf("r", 1)}, Consume: true, WaitNs: minute,
	})); r.GetWaiting() == nil {
		t.Fatal(r)
	}
	at, _ := w.m.State().NextDue()
	if at-w.now > 200*millisecond {
		t.Errorf("looked at in %d ms", (at-w.now)/millisecond)
	}
}

// TestQueue_WaiterOfClosedQuotaReservesNothing: even if its quota is closed while it waits.
func TestQueue_WaiterOfClosedQuotaReservesNothing(t *testing.T) {
	w := classedWorld(t, slotsOf("a", 10), hourly("b", 10))
	w.do(asks("x", 0, itemOf("a", 5)))
	g := w.do(consumesAtOnce("x", itemOf("b", 10))).GetGranted()
	w.do(waits("w1", 0, 10*minute, itemOf("a", 5), itemOf("b", 5)))
	w.do(waits("w2", 0, 10*minute, itemOf("a", 5)))
	w.do(reports(g.Lease, 1, signal("b", logpb.Cause_CAUSE_SATURATED, retryAfter(10*minute))))
	w.sleep(2 * second)
	if free := freeFor(t, w.m); len(free) > 0 {
		t.Errorf("tickets %v wait for what is free", free)
	}
}

// TestQueue_ParkedByForecastReservesNothing: from the time when its quota will be used up too soon, without a command.
func TestQueue_ParkedByForecastReservesNothing(t *testing.T) {
	w := classedWorld(t, slotsOf("a", 10), policed(hourly("b", 1000), &logpb.Policy{Prediction: &logpb.Prediction{}}))
	w.do(reserve(&logpb.Reserve{Holder: "x", Items: []*logpb.Item{itemOf("a", 5)}, TtlNs: hour}))
	for i := range 4 {
		g := w.do(reserve(&logpb.Reserve{Holder: "x", Items: []*logpb.Item{itemOf("b", 100)}, Consume: true, TtlNs: hour})).GetGranted()
		w.do(reports(g.Lease, 1, signal("b", logpb.Cause_CAUSE_OK, remaining(int64(900-100*i)))))
		w.sleep(20 * second)
	}
	w.do(consumesAtOnce("x", itemOf("b", 590)))
	w.do(waits("back1", 0, 10*minute, itemOf("a", 5), itemOf("b", 50)))
	w.do(waits("back2", 0, 10*minute, itemOf("a", 5)))
	for range 9 {
		w.sleep(10 * second)
		if free := freeFor(t, w.m); len(free) > 0 {
			t.Errorf("tickets %v wait for what is free", free)
		}
	}
}

// TestQueue_KeptBackStepReservesNothing: a first waiter of a step, once a step downstream of it is limited.
func TestQueue_KeptBackStepReservesNothing(t *testing.T) {
	w := classedWorld(t, slotsOf("a", 10), hourly("b", 10), hourly("c", 10))
	w.do(&logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{ReplaceWorkflows: true, Workflows: []*logpb.Workflow{
		{Name: "w", Steps: []*logpb.WorkflowStep{
			{Holder: "up"}, {Holder: "down", After: []string{"up"}}, {Holder: "end", After: []string{"down"}},
		}},
	}}}})
	w.sleep(10 * minute)
	w.do(asks("x", 0, itemOf("a", 5)))
	w.do(asks("x", 0, itemOf("b", 10), itemOf("c", 10)))
	w.do(waits("up", 0, 10*minute, itemOf("a", 5), itemOf("b", 5)))
	w.do(waits("w2", 0, 10*minute, itemOf("a", 5)))
	w.do(asks("down", 0, itemOf("c", 1)))
	if free := freeFor(t, w.m); len(free) > 0 {
		t.Errorf("tickets %v wait for what is free", free)
	}
}
