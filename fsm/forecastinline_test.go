package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestForecast_BehindWaiters: a Reserve that fits and is behind waiters gets the forecast of its quotas, when it is
// refused and when its wait ends. For a pool that is the forecast of the member that it would draw on.
func TestForecast_BehindWaiters(t *testing.T) {
	for _, level := range []uint32{levels.ForecastInLine - 1, levels.ForecastInLine} {
		for name, quota := range map[string]string{"a quota": "h", "a pool": "pool"} {
			t.Run(fmt.Sprintf("%s at level %d", name, level), func(t *testing.T) {
				w := newWorld(t)
				w.quotas(predicted(hourly("h", 10_000)), predicted(hourly("least", 1)), poolOf("pool", "least", "h"))
				w.atLevel(level)
				for left := int64(1400); left >= 1300; left -= 50 {
					w.provided("a", "h", left)
					w.sleep(5 * second)
				}
				w.at(30 * second)
				w.granted(ask("a", itemOf("least", 1), itemOf("h", 700)))
				first := ask("first", itemOf(quota, 1_000))
				first.WaitNs = 5 * minute
				w.queued(first)
				is := func(what string, refusal *logpb.Refusal, reason logpb.Reason) {
					t.Helper()
					if refusal.GetReason() != reason || refusal.Quota != "h" {
						t.Fatalf("%s: %v", what, refusal)
					}
					f := refusal.Forecast
					if level < levels.ForecastInLine && f != nil {
						t.Errorf("%s at the level before: %v", what, f)
					}
					if level >= levels.ForecastInLine && (f.GetQuota() != "h" || f.ExhaustedAtNs != 140*second || f.SmallerPpm != leastFactor) {
						t.Errorf("%s: forecast %v", what, f)
					}
				}
				is("refused", w.do(reserve(ask("second", itemOf(quota, 1)))).GetRefusal(), logpb.Reason_REASON_BEHIND_WAITERS)
				waits := ask("second", itemOf(quota, 1))
				waits.WaitNs = 10 * second
				ticket := w.queued(waits)
				w.sleep(10 * second)
				for _, e := range w.last.Events {
					if e.Kind == effect.EventWaitEnded && e.Ticket == ticket {
						is("ended", e.Result.GetRefusal(), logpb.Reason_REASON_WAIT_EXPIRED)
						return
					}
				}
				t.Errorf("its wait did not end: %v", w.last.Events)
			})
		}
	}
}
