package fsm

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestBaton_LimitedStepGetsItForOtherQuotas: one quota limits a step for long, while the other steps use every baton. The
// step gets batons for needs that are not limited, and for the limited one once the limit is over.
func TestBaton_LimitedStepGetsItForOtherQuotas(t *testing.T) {
	low := with(chain("trio", "a", "b", "c"), func(w *logpb.Workflow) { w.Threshold = 1 })
	quotas := []*logpb.Quota{rateOf("r", 10, hour), rateOf("s", 1000, minute)}
	then := func(lines ...line) []line {
		return append([]line{
			{0, workflows(low), "applied"},
			{0, consumesAtOnce("outsider", itemOf("r", 10)), "lease 1: r=10 until 5m0s; op 1 spends r=10 by 2s"},
			{0, asks("b", 0, itemOf("r", 1)), "EXHAUSTED r again at 1h0m36.000000001s"},
			{0, asks("a", 0, itemOf("s", 1)), "lease 2: s=1 until 5m0s"},
		}, lines...)
	}
	tell(t, []story{
		{"an asking holder", quotas, then([]line{
			{minute, asks("b", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m1s"},
			{0, releases(2), "back s=1; ended"},
			{0, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m1s"},
			{0, asks("b", 0, itemOf("s", 1)), "lease 3: s=1 until 6m0s"},
		}...)},
		{"a waiting holder", quotas, then([]line{
			{minute, waits("b", 0, 10*minute, itemOf("s", 1)), "waits as 1 until 11m0s"},
			{0, waits("c", 0, 10*minute, itemOf("s", 1)), "waits as 3 until 11m0s"},
			{0, releases(2), "back s=1; ended"},
			{0, renews(3, 0), "until 6m0s"},
			{0, withdraw(1), "! UNKNOWN_TICKET"},
		}...)},
		{"a holder that asks for what the one before it used up", append(slices.Clone(quotas), slotsOf("k", 1)), then([]line{
			{minute, asks("a", 0, itemOf("k", 1)), "lease 3: k=1 until 5m0s"},
			{0, asks("b", 0, itemOf("k", 1)), "EXHAUSTED k again at 1m5s"},
			{second, releases(2), "back s=1; ended"},
			{0, releases(3), "back k=1; ended"},
			{0, asks("a", 0, itemOf("k", 1)), "SEQUENTIAL k again at 1m2s"},
			{0, asks("b", 0, itemOf("k", 1)), "lease 4: k=1 until 6m1s"},
		}...)},
		{"not a holder that asks for what limits it", quotas, then([]line{
			{minute, asks("b", 0, itemOf("s", 1), itemOf("r", 1)), "EXHAUSTED r again at 1h0m36.000000001s"},
			{0, releases(2), "back s=1; ended"},
			{0, asks("a", 0, itemOf("s", 1)), "lease 3: s=1 until 6m0s"},
			{0, asks("b", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m1s"},
		}...)},
		{"nor a holder that waits for it, until it is there after all", quotas, then([]line{
			{0, waits("b", 0, 10*minute, itemOf("r", 1)), "waits as 1 until 10m0s"},
			{0, releases(2), "back s=1; ended"},
			{0, asks("a", 0, itemOf("s", 1)), "lease 3: s=1 until 5m0s"},
			{second, settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1, Unspent: []*logpb.Item{itemOf("r", 10)}}), "settled; back r=10"},
			{0, waits("c", 0, 10*minute, itemOf("s", 1)), "waits as 2 until 10m1s"},
			{0, releases(3), "back s=1; ended"},
			{0, renews(4, 0), "until 5m1s"},
			{0, withdraw(1), "! UNKNOWN_TICKET"},
		}...)},
	})
}

// TestBaton_HolderOfTwoWorkflowsNeedsBoth: it takes them in the order of the workflows' names, and others continue meanwhile.
func TestBaton_HolderOfTwoWorkflowsNeedsBoth(t *testing.T) {
	low := func(w *logpb.Workflow) *logpb.Workflow {
		w.Threshold, w.CalmNs = 1, hour
		return w
	}
	quotas := []*logpb.Quota{rateOf("r", 10, minute), rateOf("s", 1000, minute)}
	// begin makes both workflows sequential: a has the baton of one with lease 2, and another step that of two with
	// lease 3.
	begin := func(two *logpb.Workflow, other string, then ...line) []line {
		return append([]line{
			{0, workflows(low(chain("one", "a", "shared")), two), "applied"},
			{0, asks("outsider", hour, itemOf("r", 10)), "lease 1: r=10 until 1h0m0s"},
			{0, asks("a", 0, itemOf("r", 1)), "EXHAUSTED r again at 5s"},
			{0, asks(other, 0, itemOf("r", 1)), "EXHAUSTED r again at 5s"},
			{5 * second, asks("a", 0, itemOf("s", 1)), "lease 2: s=1 until 5m5s"},
			{0, asks(other, 0, itemOf("s", 1)), "lease 3: s=1 until 5m5s"},
		}, then...)
	}
	tell(t, []story{{
		"while it stands back in the first, others have the second", quotas,
		begin(low(chain("two", "x", "shared", "c")), "x", []line{
			{0, waits("shared", 0, 10*minute, itemOf("s", 1)), "waits as 1 until 10m5s"},
			{0, asks("c", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
			{0, releases(3), "back s=1; ended"},
			{0, asks("c", 0, itemOf("s", 1)), "lease 4: s=1 until 5m5s"},
		}...),
	}, {"and it keeps the first while it waits for the second", quotas, begin(low(chain("two", "shared", "b")), "b", []line{
		{0, waits("shared", 0, 10*minute, itemOf("s", 1)), "waits as 1 until 10m5s"},
		{0, releases(2), "back s=1; ended"},                                  // the baton of one is offered to it
		{minute, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m6s"}, // and kept, while it waits in two
		{0, releases(3), "back s=1; ended"},
		{0, renews(4, 0), "until 6m5s"},
		{0, asks("b", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m6s"},
		{0, releases(4), "back s=1; ended"},
		{0, asks("a", 0, itemOf("s", 1)), "lease 5: s=1 until 6m5s"},
		{0, asks("b", 0, itemOf("s", 1)), "lease 6: s=1 until 6m5s"},
	}...)}, {"who was passed over there comes first as soon as it can", quotas, begin(low(chain("two", "x", "shared", "c")), "x", []line{
		{0, asks("shared", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
		{0, asks("c", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
		{0, releases(3), "back s=1; ended"},
		{0, asks("c", 0, itemOf("s", 1)), "lease 4: s=1 until 5m5s"},
		{0, asks("x", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
		{0, releases(2), "back s=1; ended"},
		{0, releases(4), "back s=1; ended"},
		{0, asks("x", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
		{0, asks("shared", 0, itemOf("s", 1)), "lease 5: s=1 until 5m5s"},
	}...)}, {"and an offer that ends with another's is kept", quotas, begin(low(chain("two", "x", "shared", "c")), "c", []line{
		{0, asks("x", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
		{0, asks("shared", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
		{0, releases(2), "back s=1; ended"}, // the baton of one is offered to shared, until 15 s
		{0, releases(3), "back s=1; ended"}, // the baton of two to x, which does not ask
		{9 * second, asks("shared", 0, itemOf("s", 1)), "SEQUENTIAL s again at 15s"},
		{0, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 15s"},
		{second + millisecond, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 16.001s"},
		{0, asks("shared", 0, itemOf("s", 1)), "lease 4: s=1 until 5m15.001s"},
	}...)}, {"or ends soon after it", quotas, begin(low(chain("two", "x", "shared")), "x", []line{
		{0, asks("shared", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
		{0, releases(2), "back s=1; ended"}, // the baton of one is offered until 15 s
		{9 * second, asks("shared", 0, itemOf("s", 1)), "SEQUENTIAL s again at 15s"},
		{0, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 15s"},
		{second / 2, releases(3), "back s=1; ended"}, // the baton of two is offered until 24.5 s
		{second, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 16.5s"},
		{0, asks("shared", 0, itemOf("s", 1)), "lease 4: s=1 until 5m15.5s"},
	}...)}, {
		"or soon after all go again there", quotas,
		begin(with(low(chain("two", "x", "shared")), func(w *logpb.Workflow) { w.CalmNs = 9*second + second/2 }), "x", []line{
			{0, asks("shared", 0, itemOf("s", 1)), "SEQUENTIAL s again at 6s"},
			{0, releases(2), "back s=1; ended"}, // the baton of one is offered until 15 s
			{9 * second, asks("shared", 0, itemOf("s", 1)), "SEQUENTIAL s again at 15s"},
			{0, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 15s"},
			{second + second/2, asks("a", 0, itemOf("s", 1)), "SEQUENTIAL s again at 16.5s"},
			{0, asks("shared", 0, itemOf("s", 1)), "lease 4: s=1 until 5m15.5s"},
		}...),
	}})
}

// TestBaton_OfferLapsesIfLimitedElsewhere: a step may wait in one workflow for a quota that limits it in another, which therefore
// never offers it a baton. It does not keep the first one's. Limits belong to each workflow, and a changed one has
// none.
func TestBaton_OfferLapsesIfLimitedElsewhere(t *testing.T) {
	low := func(w *logpb.Workflow) *logpb.Workflow {
		w.Threshold, w.CalmNs = 1, hour
		return w
	}
	two := low(chain("two", "x", "shared", "y"))
	w := newWorld(t)
	w.quotas(rateOf("r", 10, hour), rateOf("s", 1000, minute))
	w.do(workflows(low(chain("one", "a", "shared")), two))
	w.do(consumesAtOnce("outsider", itemOf("r", 10)))
	w.do(waits("shared", 0, 10*minute, itemOf("r", 1)))
	w.do(workflows(low(chain("one", "a", "shared", "b")), two))
	w.do(asks("a", 0, itemOf("r", 1)))
	served, held := map[string]int{}, map[string]*logpb.Granted{}
	for range 400 {
		w.now += second
		for _, name := range []string{"a", "b", "x", "y"} {
			if g := held[name]; g != nil {
				w.do(releases(g.Lease))
				held[name] = nil
			} else if held[name] = w.do(asks(name, 0, itemOf("s", 1))).GetGranted(); held[name] != nil {
				served[name]++
			}
		}
	}
	for _, name := range []string{"a", "b", "x", "y"} {
		if served[name] < 10 {
			t.Errorf("%s was granted something %d times: %v", name, served[name], served)
		}
	}
}
