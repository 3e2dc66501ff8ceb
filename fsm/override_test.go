package fsm

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

func overrides(quota string, limit, lasts int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: &logpb.SetOverride{Quota: quota, Limit: &limit, ForNs: lasts}}}
}

func endsOverride(quota string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: &logpb.SetOverride{Quota: quota}}}
}

// TestOverride: another limit for a while, and then the quota's own again.
func TestOverride(t *testing.T) {
	r := func() []*logpb.Quota { return []*logpb.Quota{rateOf("r", 10, minute)} }
	tell(t, []story{
		{"a lower one: who holds keeps, and it ends by itself", r(), []line{
			{0, asks("a", 0, itemOf("r", 6)), "lease 1: r=6 until 5m0s"},
			{0, overrides("r", 5, 10*second), "done"},
			{0, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 5s"},
			{0, renews(1, 10*minute), "until 10m0s"},
			{10 * second, asks("b", 0, itemOf("r", 4)), "lease 2: r=4 until 5m10s"},
		}},
		{"a higher one", r(), []line{
			{0, overrides("r", 20, minute), "done"},
			{0, asks("a", 0, itemOf("r", 20)), "lease 1: r=20 until 5m0s"},
			{minute, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 1m5s"},
			{0, releases(1), "back r=20; ended"},
			{0, asks("b", 0, itemOf("r", 11)), "NEVER_FITS r"},
		}},
		{"0 suspends, and ending it early reopens", r(), []line{
			{0, overrides("r", 0, hour), "done"},
			{0, asks("a", 0, itemOf("r", 1)), "SUSPENDED r again at 1h0m0s"},
			{0, endsOverride("r"), "done"},
			{0, asks("a", 0, itemOf("r", 10)), "lease 1: r=10 until 5m0s"},
		}},
		{"a waiting holder is served when it ends", r(), []line{
			{0, overrides("r", 1, 10*second), "done"},
			{0, asks("a", 0, itemOf("r", 1)), "lease 1: r=1 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("r", 1)), "waits as 1 until 1m0s"},
			{10 * second, asks("c", 0, itemOf("r", 9)), "EXHAUSTED r again at 15s"},
			{0, asks("c", 0, itemOf("r", 8)), "lease 3: r=8 until 5m10s"},
		}},
		{"a holder that waits for more than it leaves waits for its end, and is in nobody's way", r(), []line{
			{0, overrides("r", 5, 10*second), "done"},
			{0, waits("a", 0, 5*second, itemOf("r", 6)), "CANNOT_SERVE_IN_TIME r again at 10s"},
			{0, waits("a", 0, minute, itemOf("r", 6)), "waits as 1 until 1m0s"},
			{0, asks("b", 0, itemOf("r", 2)), "lease 1: r=2 until 5m0s"},
			{9 * second, asks("c", 0, itemOf("r", 1)), "lease 2: r=1 until 5m9s"},
			{second, asks("c", 0, itemOf("r", 2)), "EXHAUSTED r again at 15s"},
		}},
		{"one that begins ends nobody's wait", r(), []line{
			{0, asks("a", 0, itemOf("r", 6)), "lease 1: r=6 until 5m0s"},
			{0, waits("b", 0, minute, itemOf("r", 6)), "waits as 1 until 1m0s"},
			{0, overrides("r", 0, 10*second), "done"},
			{0, releases(1), "back r=6; ended"},
			{10 * second, asks("c", 0, itemOf("r", 5)), "EXHAUSTED r again at 15s"},
		}},
		{"the latest one counts, and a change of the definition leaves it", r(), []line{
			{0, overrides("r", 1, hour), "done"},
			{0, overrides("r", 3, 10*second), "done"},
			{0, applyQuotas(rateOf("r", 100, minute)), "applied"},
			{0, asks("a", 0, itemOf("r", 4)), "NEVER_FITS r again at 10s"},
			{0, asks("a", 0, itemOf("r", 101)), "NEVER_FITS r"},
			{10 * second, asks("a", 0, itemOf("r", 100)), "lease 1: r=100 until 5m10s"},
		}},
	})
}

// TestOverride_RefusesImpossible: an override that could not be a definition is refused, and nothing changes.
func TestOverride_RefusesImpossible(t *testing.T) {
	w := newWorld(t)
	burst := rateOf("b", 1000, minute)
	burst.GetRate().Burst = 100
	w.quotas(burst)
	w.fails(overrides("missing", 1, minute), logpb.Reason_REASON_UNKNOWN_QUOTA)
	w.fails(overrides("b", -1, minute), logpb.Reason_REASON_IMPOSSIBLE_QUOTA)
	w.fails(overrides("b", 1, second-1), logpb.Reason_REASON_INVALID)
	w.fails(overrides("b", 1, 32*day), logpb.Reason_REASON_INVALID)
	w.fails(with(overrides("b", 1, minute), func(c *logpb.Command) { c.GetSetOverride().Note = strings.Repeat("x", 501) }),
		logpb.Reason_REASON_INVALID)
	w.fails(overrides("b", 1_000_000, minute), logpb.Reason_REASON_IMPOSSIBLE_QUOTA) // its burst would be too small
	if r := w.do(endsOverride("b")); r.GetDone() == nil {
		t.Fatalf("ending none: %v", r)
	}
	w.do(overrides("b", 50_000, hour))
	smaller := proto.CloneOf(burst)
	smaller.GetRate().Burst = 50 // enough for its own limit
	w.fails(applyQuotas(smaller), logpb.Reason_REASON_IMPOSSIBLE_QUOTA)
}

// TestOverride_SurvivesSnapshot: it is state, and ends on time on every replica that reads it.
func TestOverride_SurvivesSnapshot(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	w.do(overrides("r", 3, minute))
	w.reborn()
	v := w.view("r")
	if v.Override == nil || v.Override.Limit != 3 || v.Override.Left != minute || v.Usable != 3 {
		t.Fatalf("%+v", v.Override)
	}
	if at, pending := w.m.State().NextDue(); at != minute || !pending {
		t.Fatalf("next due at %d ms, pending %v", at/millisecond, pending)
	}
	w.sleep(minute)
	if v := w.view("r"); v.Override != nil || v.Usable != 10 {
		t.Fatalf("%+v, usable %d", v.Override, v.Usable)
	}
	w.do(overrides("r", 3, minute))
	w.do(deletes("r"))
	w.quotas(rateOf("r", 10, minute))
	w.sleep(hour)
	if v := w.view("r"); v.Usable != 10 {
		t.Fatalf("usable %d", v.Usable)
	}
}
