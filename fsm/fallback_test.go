package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

func insteadOf(q *logpb.Quota, fallback string) *logpb.Quota {
	q.Fallback = fallback
	return q
}

// TestFallback_FollowerSeesSameGrant: a Reserve granted in the queue's order has the same answer in its event.
func TestFallback_FollowerSeesSameGrant(t *testing.T) {
	w := newWorld(t)
	w.quotas(with(predicted(hourly("h", 10_000)), func(q *logpb.Quota) { q.Fallback = "other" }), rateOf("other", 100, minute))
	w.do(holders(&logpb.HolderRule{Pattern: "boss", Class: ledger.ClassCritical}))
	for i := range int64(4) {
		w.provided("a", "h", 1400-50*i)
		w.sleep(5 * second)
	}
	w.sleep(minute)
	w.granted(ask("b", itemOf("other", 50)))
	w.do(reserve(with(ask("y", itemOf("other", 80)), func(a *logpb.Reserve) { a.WaitNs = minute })))
	result := w.do(elsewhere(reserve(ask("boss", itemOf("h", 1)))))
	if result.GetGranted().GetForecast() == nil {
		t.Fatalf("%v, no grant with a forecast", result)
	}
	follower, followed := New(), Applied{}
	for i, data := range w.entries {
		followed = follower.Follow(uint64(i+1), 1, data)
	}
	for i, event := range w.last.Events {
		if !proto.Equal(event.Result, followed.Events[i].Result) {
			t.Errorf("event %d has %v, who follows has %v", i, event.Result, followed.Events[i].Result)
		}
	}
}

func elsewhere(command *logpb.Command) *logpb.Command {
	command.GetReserve().Fallback = true
	return command
}

// models are three models with requests and tokens each, and a budget that all of them share.
func models() []*logpb.Quota {
	return []*logpb.Quota{
		insteadOf(rateOf("big/r", 10, minute), "mid/r"), insteadOf(rateOf("big/t", 1000, minute), "mid/t"),
		insteadOf(rateOf("mid/r", 10, minute), "small/r"), insteadOf(rateOf("mid/t", 1000, minute), "small/t"),
		rateOf("small/r", 10, minute), rateOf("small/t", 1000, minute), hourly("budget", 100),
	}
}

// TestFallback: a refused Reserve is granted from the next quotas of the chain, all of them together, if the caller
// allows it.
func TestFallback(t *testing.T) {
	call := func(holder string, tokens int64) *logpb.Command {
		return asks(holder, 0, itemOf("big/r", 1), itemOf("big/t", tokens), itemOf("budget", 1))
	}
	tell(t, []story{
		{"tokens run out: requests move on too, the budget stays", models(), []line{
			{0, elsewhere(call("a", 900)), "lease 1: big/r=1 big/t=900 budget=1 until 5m0s"},
			{0, call("b", 200), "EXHAUSTED big/t again at 5s"},
			{0, elsewhere(call("b", 200)), "lease 2: mid/r=1 mid/t=200 budget=1 until 5m0s"},
			{0, elsewhere(call("b", 900)), "lease 3: small/r=1 small/t=900 budget=1 until 5m0s"},
			{0, elsewhere(call("b", 900)), "EXHAUSTED big/t again at 5s"},
			{0, elsewhere(call("b", 2000)), "NEVER_FITS big/t"},
		}},
		{"a chain that cannot help changes nothing: the refusal is that of what was asked for", models(), []line{
			{0, asks("x", 0, itemOf("budget", 100)), "lease 1: budget=100 until 5m0s"},
			{0, elsewhere(call("b", 200)), "EXHAUSTED budget again at 5s"},
		}},
		{"a holder that waits in line for the next quota goes first", models(), []line{
			{0, asks("x", 0, itemOf("mid/t", 900)), "lease 1: mid/t=900 until 5m0s"},
			{0, asks("x", 0, itemOf("big/t", 900)), "lease 2: big/t=900 until 5m0s"},
			{0, waits("y", 0, minute, itemOf("mid/t", 500)), "waits as 1 until 1m0s"},
			{0, elsewhere(call("b", 100+1)), "lease 3: small/r=1 small/t=101 budget=1 until 5m0s"},
		}},
		{"what is suspended", models(), []line{
			{0, applyQuotas(insteadOf(rateOf("big/t", 0, minute), "mid/t")), "applied"},
			{0, call("b", 200), "SUSPENDED big/t"},
			{0, elsewhere(call("b", 200)), "lease 1: mid/r=1 mid/t=200 budget=1 until 5m0s"},
		}},
		{"it waits for what it asked for where nothing else helps", models(), []line{
			{0, asks("x", 0, itemOf("small/t", 1000)), "lease 1: small/t=1000 until 5m0s"},
			{0, asks("x", 0, itemOf("mid/t", 1000)), "lease 2: mid/t=1000 until 5m0s"},
			{0, asks("x", 0, itemOf("big/t", 1000)), "lease 3: big/t=1000 until 5m0s"},
			{0, elsewhere(waits("b", 0, minute, itemOf("big/t", 1))), "waits as 1 until 1m0s"},
		}},
		{"two items that would become one do not move", []*logpb.Quota{
			insteadOf(rateOf("a", 1, minute), "c"), insteadOf(rateOf("b", 1, minute), "c"), rateOf("c", 10, minute),
		}, []line{
			{0, asks("x", 0, itemOf("a", 1)), "lease 1: a=1 until 5m0s"},
			{0, elsewhere(asks("y", 0, itemOf("a", 1), itemOf("b", 1))), "EXHAUSTED a again at 5s"},
			{0, elsewhere(asks("y", 0, itemOf("a", 1))), "lease 2: c=1 until 5m0s"},
		}},
	})
	w := newWorld(t)
	w.quotas(models()...)
	w.granted(ask("x", itemOf("big/t", 1000)))
	g := w.do(elsewhere(call("y", 1))).GetGranted()
	if g.GetItems()[0].GetInsteadOf() != "big/r" || g.Items[1].InsteadOf != "big/t" || g.Items[2].InsteadOf != "" {
		t.Fatalf("granted: %v", g)
	}
}

// TestFallback_OnForecast: callers that allow it get the next quota while their own still has something.
func TestFallback_OnForecast(t *testing.T) {
	w := newWorld(t)
	w.quotas(insteadOf(predicted(hourly("h", 10_000)), "other"), hourly("other", 5))
	for i := range int64(3) {
		w.provided("a", "h", 820-10*i) // it lasts 82 s
		w.sleep(second)
	}
	willing := elsewhere(asks("b", 0, itemOf("h", 1)))
	for range 5 {
		w.sleep(second)
		g := w.do(willing).GetGranted()
		if g.GetItems()[0].GetQuota() != "other" || g.GetForecast().GetQuota() != "h" {
			t.Fatalf("at %d s: %v", w.now/second, g)
		}
	}
	if g := w.do(willing).GetGranted(); g.GetItems()[0].GetQuota() != "h" {
		t.Fatalf("when the other one is used up: %v", g)
	}
	if g := w.granted(ask("b", itemOf("h", 1))); g.Forecast.GetFallback() != "other" {
		t.Fatalf("a holder that does not allow it receives it: %v", g)
	}
}

// TestFallback_RefusesImpossibleChains: chains with an unknown end, a cycle or two kinds are refused. A quota that is the
// fallback of some other quota is not deleted by mistake.
func TestFallback_RefusesImpossibleChains(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), insteadOf(rateOf("a", 1, minute), "b"), rateOf("b", 1, minute))
	for name, q := range map[string]*logpb.Quota{
		"nowhere":      insteadOf(rateOf("q", 1, minute), "missing"),
		"itself":       insteadOf(rateOf("q", 1, minute), "q"),
		"in a circle":  insteadOf(rateOf("b", 1, minute), "a"),
		"another kind": insteadOf(rateOf("q", 1, minute), "s"),
	} {
		t.Run(name, func(t *testing.T) { w.t = t; w.fails(applyQuotas(q), logpb.Reason_REASON_IMPOSSIBLE_QUOTA) })
	}
	w.t = t
	w.fails(deletes("b"), logpb.Reason_REASON_QUOTA_IN_USE)
	w.do(&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: "b", Force: true}}})
	w.granted(ask("x", itemOf("a", 1)))
	w.do(elsewhere(asks("x", 0, itemOf("a", 1)))) // the chain ends
	w.reborn()
}

// TestResume_NeverFitsShowsFreedAmount: the amounts of its older leases are available when a restarted holder is refused a request
// that can never be granted.
func TestResume_NeverFitsShowsFreedAmount(t *testing.T) {
	m := newWorld(t)
	m.quotas(rateOf("q", 5, minute))
	m.do(asks("h", 0, itemOf("q", 5)))
	again := elsewhere(asks("h", 0, itemOf("q", 6)))
	again.GetReserve().Resume = true
	if refusal := m.do(again).GetRefusal(); refusal.GetReason() != logpb.Reason_REASON_NEVER_FITS || refusal.GetAvailable() != 5 {
		t.Errorf("%v", refusal)
	}
}
