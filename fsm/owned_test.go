package fsm

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/entry"
)

// TestHolders_OfOneDigestStayApart: leases and tickets are listed under a digest of the holder's name. No holder sees or changes
// those of another with the same digest.
func TestHolders_OfOneDigestStayApart(t *testing.T) {
	w := newWorld(t)
	w.apply(applyQuotas(slotsOf("s", 4)))
	leases, tickets := map[string][]uint64{}, map[string][]uint64{}
	for _, holder := range []string{"a", "b", "b", "a"} {
		granted := w.apply(asks(holder, 0, itemOf("s", 1)))[0].GetGranted()
		if granted == nil {
			t.Fatal("not granted")
		}
		leases[holder] = append(leases[holder], granted.Lease)
	}
	for _, holder := range []string{"b", "a", "b"} {
		waiting := w.apply(waits(holder, 0, minute, itemOf("s", 1)))[0].GetWaiting()
		if waiting == nil {
			t.Fatal("does not wait")
		}
		tickets[holder] = append(tickets[holder], waiting.Ticket)
	}
	for holder, other := range map[string]string{"a": "b", "b": "a"} { // each is found under the other's digest too
		for _, id := range leases[other] {
			w.m.leasesOf.Add(entry.DigestHolder(holder), id)
		}
		for _, ticket := range tickets[other] {
			w.m.queue.waitersOf.Set(ownedBy(holder, ticket))
		}
	}
	same := func(what string, got, want []uint64) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d, not %d", what, got, want)
		}
	}
	ids := func(holder string, after uint64) (ids []uint64) {
		for _, l := range w.m.State().Leases(holder, "", after, 10, w.m.State().Clock()) {
			ids = append(ids, l.ID)
		}
		return ids
	}
	for _, holder := range []string{"a", "b"} {
		var waiting []uint64
		w.m.queue.eachOf(holder, func(w *waiter) bool {
			waiting = append(waiting, w.ticket)
			return true
		})
		same("tickets of "+holder, waiting, tickets[holder])
		same("leases of "+holder, ids(holder, 0), leases[holder])
		same("all leases but the first of "+holder, ids(holder, leases[holder][0]), leases[holder][1:])
		if newest := w.m.newestLease(holder); newest == nil || newest.id != leases[holder][1] {
			t.Errorf("the newest lease of %s is %v", holder, newest)
		}
	}
	times := func(holder string) (times []uint64) {
		for _, ticket := range tickets[holder] {
			waiting, _ := w.m.queue.waiters.Get(ticket)
			times = append(times, waiting.virtualTime)
		}
		return times
	}
	before := times("a")
	w.m.queue.setVirtualTime(w.m.holders.use("b"), 1<<40)
	same("turns of a", times("a"), before)
	same("turns of b", times("b"), []uint64{1 << 40, 1 << 40})
}
