package fsm

import (
	"slices"
	"testing"
)

// TestHoldersOfOneDigest: what they have is listed under a digest of their names, which for these two is the same. None sees, ends
// or moves what is the other's.
func TestHoldersOfOneDigest(t *testing.T) {
	const a, b = "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"
	if ownedBy(a, 0) != ownedBy(b, 0) {
		t.Fatal("their digests differ")
	}
	w := newWorld(t)
	w.apply(applyQuotas(slotsOf("s", 4)))
	for _, holder := range []string{a, b, b, a} {
		if w.apply(asks(holder, 0, itemOf("s", 1)))[0].GetGranted() == nil {
			t.Fatal("not granted")
		}
	}
	queued := map[string][]uint64{}
	for _, holder := range []string{b, a, b} {
		waiting := w.apply(waits(holder, 0, minute, itemOf("s", 1)))[0].GetWaiting()
		if waiting == nil {
			t.Fatal("does not wait")
		}
		queued[holder] = append(queued[holder], waiting.Ticket)
	}
	ids := func(holder string) (ids []uint64) {
		for _, l := range w.m.State().Leases(holder, "", 0, 10, w.m.State().Clock()) {
			ids = append(ids, l.ID)
		}
		return ids
	}
	tickets := func(holder string) (tickets []uint64) {
		w.m.eachWaiterOf(holder, func(w *waiter) bool {
			tickets = append(tickets, w.ticket)
			return true
		})
		return tickets
	}
	same := func(what string, got []uint64, want ...uint64) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d, not %d", what, got, want)
		}
	}
	same("leases of a", ids(a), 1, 4)
	same("leases of b", ids(b), 2, 3)
	same("tickets of a", tickets(a), queued[a]...)
	same("tickets of b", tickets(b), queued[b]...)
	if newest := w.m.newestLease(b); newest == nil || newest.id != 3 {
		t.Errorf("the newest lease of b is %v", newest)
	}
	w.m.resume(b)
	same("leases of b", ids(b))
	same("leases of a", ids(a), 1, 4)
	if newest := w.m.newestLease(b); newest != nil {
		t.Errorf("the newest lease of b is %v", newest)
	}
}
