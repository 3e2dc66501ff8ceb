package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestReopenQuota_IsBounded: one entry examines some workflows for limits by a reopened quota, and the following
// entries the others, also after a restore. In the end no limit by it is left.
func TestReopenQuota_IsBounded(t *testing.T) {
	const chains = 7
	w := newWorld(t)
	w.raw(applyQuotas(rateOf("r", 100, minute)))
	var all []*logpb.Workflow
	for i := range chains {
		all = append(all, chain(fmt.Sprint("chain-", i), fmt.Sprint("a", i), fmt.Sprint("b", i)))
	}
	w.raw(workflows(all...))
	lease := w.raw(consumesAtOnce("b0", itemOf("r", 1)))[0].GetGranted().GetLease()
	w.raw(reports(lease, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(minute))))
	for i := range chains {
		w.raw(reserve(ask(fmt.Sprint("b", i), itemOf("r", 1))))
	}
	limited := func() (count int) {
		for _, v := range w.m.State().Workflows("", "", chains+1, w.m.State().Clock()) {
			for i := range v.Steps {
				if v.Steps[i].LimitedFor != 0 {
					count++
				}
			}
		}
		return count
	}
	if got := limited(); got != chains {
		t.Fatalf("%d steps are limited", got)
	}
	w.m.bounds.reopens.most = 4
	w.raw(&logpb.Command{Kind: &logpb.Command_ReopenQuota{ReopenQuota: &logpb.ReopenQuota{Quota: "r"}}})
	if got := limited(); got != chains-2 {
		t.Fatalf("%d steps are limited after one entry", got)
	}
	for entries := 0; w.m.unfinished(); entries++ {
		before := limited()
		w.reborn()
		w.m.bounds.reopens.most = 4
		w.raw()
		if got := limited(); before-got > 2 || entries > chains {
			t.Fatalf("%d steps of %d are limited after entry %d", got, before, entries)
		}
	}
	if got := limited(); got != 0 {
		t.Errorf("%d steps are limited still", got)
	}
}

// TestWaits_AreBoundedByItems: ending, promoted and moved waiters count by their items, including the shares of
// ancestors.
func TestWaits_AreBoundedByItems(t *testing.T) {
	const waiting = 20
	ageing := &logpb.Policy{AgeingNs: minute}
	for name, c := range map[string]struct {
		begin func(w *world)
		done  func(w *world) int
	}{
		"promotions": {
			begin: func(w *world) { w.now += 2 * minute },
			done: func(w *world) (count int) {
				w.m.queue.waiters.Scan(func(_ uint64, one *waiter) bool {
					if one.rank == ledger.ClassStandard {
						count++
					}
					return true
				})
				return count
			},
		},
		"ends of waits": {
			begin: func(w *world) { w.now += 11 * minute },
			done:  func(w *world) int { return waiting - w.m.queue.waiters.Len() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.raw(applyQuotas(slotsOf("p", 1), policed(under(slotsOf("p/a", 1), "p"), ageing), slotsOf("b", 1)),
				holders(&logpb.HolderRule{Pattern: "h*", Class: 2}))
			first := ask("first", itemOf("p/a", 1), itemOf("b", 1))
			first.TtlNs = hour
			w.raw(reserve(first))
			for i := range waiting {
				w.raw(waits(fmt.Sprint("h", i), 0, 10*minute, itemOf("p/a", 1), itemOf("b", 1)))
			}
			w.m.bounds.waits.most = 12 // four waiters of three items, of which ends may use the first half
			w.m.bounds.tries.most = 0  // a pass over the queue also ends waits that it finds
			c.begin(w)
			for entries, before := 0, 0; c.done(w) < waiting; entries++ {
				w.raw()
				if now := c.done(w); now-before > 4 || entries > waiting {
					t.Fatalf("entry %d dealt with %d waiters", entries, now-before)
				} else {
					before = now
				}
			}
		})
	}
}
