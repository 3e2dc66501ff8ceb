package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestABurstIsNotPolled: the log is written to when something can happen, and not twenty times a second for as long as
// somebody waits for a quota with a burst. The next of it is there in 45 s.
func TestABurstIsNotPolled(t *testing.T) {
	w := newWorld(t)
	q := rateOf("r", 80, hour)
	q.GetRate().Burst = 4
	w.quotas(q)
	consumes := func() *logpb.Reserve {
		a := ask("me", itemOf("r", 1))
		a.Consume, a.WaitNs = true, 10*minute
		return a
	}
	for range 10 {
		if w.do(reserve(consumes())).GetWaiting() != nil {
			break
		}
	}
	due, pending := w.m.State().NextDue()
	if left := due - w.m.State().Clock().Now; !pending || left < second {
		t.Errorf("the state wants an entry in %d ms; nothing can happen before a burst has %d s more", left/millisecond, hour/80/second)
	}
}
