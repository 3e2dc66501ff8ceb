package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// breakFor makes a provider refuse one call of a holder.
func breakFor(w *world, holder, quota string) {
	w.t.Helper()
	w.now += 2 * second // the previous cooldown is over
	a := ask(holder, itemOf(quota, 1))
	a.Consume = true
	lease := w.granted(a)
	w.do(&logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{
		Lease: lease.Lease, Fence: lease.Fence, Op: 1, Signals: []*logpb.Signal{{
			Quota: quota, Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(second),
		}},
	}}})
}

// TestBreaker_ListsBrokenHolders: a quota names the holders for which it is closed, in order, and none of another quota; so does a
// restored state. A holder dropped with a quota is not named by the next quota. Each entry is verified against the
// holder stats.
func TestBreaker_ListsBrokenHolders(t *testing.T) {
	w := newWorld(t)
	breaking := func(name string) *logpb.Quota {
		return policed(rateOf(name, 1000, minute), &logpb.Policy{Breaker: &logpb.Breaker{Failures: 1, ClosedNs: hour}})
	}
	w.quotas(breaking("p"), breaking("q"))
	for i := range 3 {
		breakFor(w, fmt.Sprintf("h%d", 2-i), "q")
	}
	breakFor(w, "x", "p")
	named := func(s *State, quota string, want ...string) {
		t.Helper()
		v, _ := s.Quota(quota, w.clock())
		if !slices.Equal(v.Broken, want) {
			t.Errorf("%s is closed for %v, want %v", quota, v.Broken, want)
		}
	}
	named(w.m.State(), "q", "h0", "h1", "h2")
	named(w.m.State(), "p", "x")
	var snapshot bytes.Buffer
	if err := w.m.State().WriteSnapshot(&snapshot); err != nil {
		t.Fatal(err)
	}
	restored, err := Restore(&snapshot)
	if err != nil || restored.State().Verify() != nil {
		t.Fatal(err, restored.State().Verify())
	}
	named(restored.State(), "q", "h0", "h1", "h2")
	w.do(&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: "q", Force: true}}})
	w.quotas(breaking("q"))
	named(w.m.State(), "q")
	named(w.m.State(), "p", "x")
	w.now += hour
	w.apply()
	named(w.m.State(), "p")
}

// TestBreaker_RemovalReopensQuota: a quota without a breaker closes for nobody, whatever holders it was closed for before
// and whatever other policy it has.
func TestBreaker_RemovalReopensQuota(t *testing.T) {
	w := newWorld(t)
	const zones = logpb.Zones_ZONES_SMOOTH
	w.quotas(policed(hourly("q", 1000), &logpb.Policy{Zones: zones, Breaker: &logpb.Breaker{Failures: 1, ClosedNs: hour}}))
	breakFor(w, "a", "q")
	w.now += 2 * second
	w.refused(ask("a", itemOf("q", 1)), logpb.Reason_REASON_BREAKER_OPEN)
	w.quotas(policed(hourly("q", 1000), &logpb.Policy{Zones: zones}))
	w.granted(ask("a", itemOf("q", 1)))
}

// BenchmarkReadBroken reads a quota whose breaker is open for nobody, among as many holder stats as holders and quotas
// have.
func BenchmarkReadBroken(b *testing.B) {
	w := newWorld(b)
	q := policed(rateOf("q", 1_000_000, minute), &logpb.Policy{Breaker: &logpb.Breaker{Failures: 1}})
	w.quotas(q)
	for i := range 20_000 {
		w.m.holders.editStats(fmt.Sprintf("h%d", i), w.m.quotas.named("q"))
	}
	for b.Loop() {
		w.m.State().Quota("q", w.clock())
	}
}
