package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestAgeing_PromotedQueueBehindEarlierRequests: aged background work counts as standard, and must not come before standard work
// that asked earlier. Otherwise, where standard work itself waits longer than the ageing, it would wait longer than
// background work, call for call.
func TestAgeing_PromotedQueueBehindEarlierRequests(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(slotsOf("s", 1), &logpb.Policy{AgeingNs: 5 * minute}))
	w.do(holders(&logpb.HolderRule{Pattern: "back", Class: ledger.ClassBackground}))
	granted := func(r *logpb.Granted) { w.do(release(&logpb.Release{Lease: r.Lease, Fence: r.Fence})) }
	names := []string{"std1", "std2", "std3"}
	for _, name := range names { // each is served once, so that each has a virtual time
		granted(w.granted(ask(name, itemOf("s", 1))))
	}
	long := ask("std0", itemOf("s", 1))
	long.TtlNs = hour
	held := w.granted(long)
	tickets := map[uint64]string{}
	for _, name := range append(names, "back") {
		a := ask(name, itemOf("s", 1))
		a.WaitNs, a.TtlNs = 10*minute, hour
		r := w.do(reserve(a))
		if r.GetWaiting() == nil {
			t.Fatalf("%s: %v", name, r)
		}
		tickets[r.GetWaiting().Ticket] = name
	}
	w.sleep(6 * minute) // background work has aged
	var order []string
	for range 4 {
		w.do(release(&logpb.Release{Lease: held.Lease, Fence: held.Fence}))
		for i := range w.last.Events {
			if e := &w.last.Events[i]; e.Kind == effect.EventGranted && e.Result != nil {
				order = append(order, tickets[e.Ticket])
				held = e.Result.GetGranted()
			}
		}
	}
	if len(order) != 4 || order[3] != "back" {
		t.Errorf("served in the order %v; the three standard ones had asked before", order)
	}
}

// TestAgeing_GrantDemotesOtherRequestsOfHolder: after a grant none of a holder's Reserves counts as standard, until the holder was refused
// for as long again.
func TestAgeing_GrantDemotesOtherRequestsOfHolder(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(slotsOf("s", 1), &logpb.Policy{AgeingNs: 5 * minute}))
	w.do(holders(&logpb.HolderRule{Pattern: "back", Class: ledger.ClassBackground}))
	held := w.granted(with(ask("x", itemOf("s", 1)), func(a *logpb.Reserve) { a.TtlNs = hour }))
	first := w.waiting(waits("back", hour, 10*minute, itemOf("s", 1)))
	second1 := w.waiting(waits("back", hour, 10*minute, itemOf("s", 1)))
	w.sleep(5*minute + second)
	std := w.waiting(waits("std", hour, 10*minute, itemOf("s", 1)))
	frees := func(g *logpb.Granted) *logpb.Granted {
		w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
		for i := range w.last.Events {
			if granted := w.last.Events[i].Result.GetGranted(); granted != nil {
				return granted
			}
		}
		t.Fatal("nobody was served")
		return nil
	}
	g := frees(held)
	if g.Ticket != first {
		t.Fatalf("ticket %d was served first, want %d, which has waited for longest", g.Ticket, first)
	}
	w.reborn()
	if g = frees(g); g.Ticket != std {
		t.Fatalf("ticket %d was served then, want %d: what else the holder asks for is background", g.Ticket, std)
	}
	if g = frees(g); g.Ticket != second1 {
		t.Fatalf("ticket %d was served last", g.Ticket)
	}
}

// TestAgeing_GrantOfOneQuotaDemotesNoOther: a grant of one quota does not change a Reserve of the same holder that has been
// refused another quota for as long, not even within the entry.
func TestAgeing_GrantOfOneQuotaDemotesNoOther(t *testing.T) {
	w := newWorld(t)
	ages := &logpb.Policy{AgeingNs: 5 * minute}
	w.quotas(policed(slotsOf("a", 1), ages), policed(slotsOf("b", 1), ages))
	w.do(holders(&logpb.HolderRule{Pattern: "back", Class: ledger.ClassBackground}))
	long := func(name, quota string) *logpb.Granted {
		return w.granted(with(ask(name, itemOf(quota, 1)), func(a *logpb.Reserve) { a.TtlNs = hour }))
	}
	frees := func(g *logpb.Granted) *logpb.Command {
		return release(&logpb.Release{Lease: g.Lease, Fence: g.Fence})
	}
	for range 3 { // so that its virtual time is later than that of back
		w.do(frees(long("std", "b")))
	}
	a, b := long("x", "a"), long("y", "b")
	w.waiting(waits("back", hour, 10*minute, itemOf("a", 1)))
	old := w.waiting(waits("back", hour, 10*minute, itemOf("b", 1)))
	w.sleep(5*minute + second)
	w.waiting(waits("std", hour, 10*minute, itemOf("b", 1)))
	w.apply(frees(a), frees(b))
	if served := w.grantedTickets(); len(served) != 2 || served[1] != old {
		t.Errorf("tickets %v were served, want %d second", served, old)
	}
}

// TestAgeing_GrantInHigherClassRestartsAgeing: a holder that was granted something as standard has not starved. Its
// background requests do not age by the time before the grant.
func TestAgeing_GrantInHigherClassRestartsAgeing(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(hourly("w", 100), &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH, AgeingNs: 5 * minute}))
	w.granted(with(ask("x", itemOf("w", 90)), func(a *logpb.Reserve) { a.TtlNs = hour })) // red: background waits
	w.waiting(with(waits("mixed", hour, 10*minute, itemOf("w", 1)),
		func(c *logpb.Command) { c.GetReserve().Class = new(ledger.ClassBackground) }))
	w.sleep(4 * minute)
	w.granted(ask("mixed", itemOf("w", 1)))
	for range 4 {
		w.sleep(minute)
		for i := range w.last.Events {
			if granted := w.last.Events[i].Result.GetGranted(); granted != nil {
				t.Fatalf("%v counts as standard: its holder was granted something less than five minutes ago", granted)
			}
		}
	}
}
