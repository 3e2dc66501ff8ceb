package fsm

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// goesOn applies empty entries, with restores, until no unfinished work is left, and returns how many it took. No entry
// frees more than most results and waiters.
func (w *world) goesOn(t *testing.T, most int) (entries int) {
	t.Helper()
	for ; w.m.unfinished(); entries++ {
		if due, pending := w.m.State().NextDue(); due > w.now || !pending {
			t.Fatalf("something is left, and due at %d of %d, pending: %t", due, w.now, pending)
		}
		results, waiters := w.m.requests.Counts().Results, w.m.queue.waiters.Len()
		w.reborn()
		w.apply()
		if done := max(results-w.m.requests.Counts().Results, waiters-w.m.queue.waiters.Len()); done > most {
			t.Fatalf("entry %d let %d leave", entries, done)
		}
		if entries > 1000 {
			t.Fatal("it never ends")
		}
	}
	return entries
}

// TestCloseSession_OfManyResultsIsClosedAtOnce: its leftover results answer nobody, its waiters are granted nothing,
// and the charges of its account fall step by step.
func TestCloseSession_OfManyResultsIsClosedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.m.bounds = tight(4)
	w.quotas(slotsOf("s", 1))
	first := w.granted(ask("first", itemOf("s", 1)))
	session := w.do(chargedTo("caller", opens())).GetSessionOpened().GetSession()
	for seq := range uint64(20) {
		w.do(chargedTo("caller", numbered(session, seq+1, 0, withdraw(1<<60))))
	}
	var tickets []uint64
	for seq := uint64(21); seq <= 30; seq++ {
		tickets = append(tickets, w.waiting(chargedTo("caller", numbered(session, seq, 0, waits("a", 0, 5*minute, itemOf("s", 1))))))
	}
	next := w.waiting(waits("b", 0, 5*minute, itemOf("s", 1)))
	if r := w.do(closes(session)[0]); r.GetDone() == nil {
		t.Fatal(r)
	}
	if counts := w.m.State().Counts(); counts.Sessions != 0 || w.m.requests.Counts().Results != 26 {
		t.Fatalf("%d sessions, %d results", counts.Sessions, w.m.requests.Counts().Results)
	}
	w.reborn()
	unknown := logpb.Reason_REASON_UNKNOWN_SESSION
	for name, command := range map[string]*logpb.Command{
		"closed again": closes(session)[0],
		"a repeat":     numbered(session, 20, 0, withdraw(1<<60)),
		"a new one":    numbered(session, 31, 0, withdraw(1<<60)),
	} {
		w.m.bounds.frees.most = 0 // nothing of it leaves during these checks
		if r := w.do(command); r.GetFailure().GetReason() != unknown {
			t.Errorf("%s: %v", name, r)
		}
	}
	if w.m.State().Waiting(tickets[9]) || !w.m.State().Waiting(next) {
		t.Error("its Reserves still wait, or another one's does not")
	}
	if r := w.do(withdraw(tickets[0])); r.GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_TICKET {
		t.Error(r)
	}
	w.m.bounds.serves.most = 100
	w.do(release(&logpb.Release{Lease: first.Lease, Fence: first.Fence}))
	if granted := w.grantedTickets(); len(granted) != 1 || granted[0] != next {
		t.Errorf("granted %v, want %d", granted, next)
	}
	w.m.bounds.frees.most = 4
	if entries := w.goesOn(t, 4); entries < 5 {
		t.Errorf("it took %d entries", entries)
	}
	if counts := w.m.State().Counts(); counts.ResultBytes != 0 || counts.Waiting != 0 {
		t.Errorf("%+v", counts)
	}
	// The holders' records and the granted lease stay charged.
	for _, b := range []accounts.Budget{accounts.Sessions, accounts.Results, accounts.Waiters} {
		if left := w.m.accounts.UsedOf(b, w.m.clock.Now); left != 0 {
			t.Errorf("%d of %s are still taken", left, accounts.Names[b])
		}
	}
}

// TestAcknowledge_OfManyResults: results below the mark answer nobody, others answer as before, and a session with the
// most requests in flight can continue at once.
func TestAcknowledge_OfManyResults(t *testing.T) {
	w := newWorld(t)
	w.m.bounds = tight(4)
	w.quotas(rateOf("r", 1000, minute))
	session := w.opened()
	var kept *logpb.Result
	for seq := range uint64(40) {
		kept = w.do(numbered(session, seq+1, 0, asks("a", 0, itemOf("r", 1))))
	}
	if r := w.do(numbered(session, 41, 40, asks("a", 0, itemOf("r", 1)))); r.GetGranted() == nil {
		t.Fatal(r)
	}
	if left := w.m.requests.Counts().Results; left != 41-4 {
		t.Fatalf("%d results are left", left)
	}
	w.m.bounds.frees.most = 0
	w.reborn()
	if r := w.do(numbered(session, 39, 0, asks("a", 0, itemOf("r", 1)))); r.GetFailure().GetReason() != logpb.Reason_REASON_SEQ_TOO_OLD {
		t.Errorf("an acknowledged one: %v", r)
	}
	if r := w.do(numbered(session, 40, 0, asks("a", 0, itemOf("r", 1)))); !proto.Equal(r, kept) {
		t.Errorf("%v, was %v", r, kept)
	}
	w.m.bounds.frees.most = 4
	if entries := w.goesOn(t, 4); entries != 9 {
		t.Errorf("it took %d entries", entries)
	}
	if left := w.m.requests.Counts().Results; left != 2 {
		t.Errorf("%d results are left, want 2", left)
	}
}

// TestAcknowledge_WaitingReserveKeepsWaiting: even if its session ends before the acknowledged result has left, since its
// client knows the result.
func TestAcknowledge_WaitingReserveKeepsWaiting(t *testing.T) {
	for _, most := range []int{1, 100} {
		w := newWorld(t)
		w.m.bounds = tight(most)
		w.quotas(slotsOf("s", 1))
		g := w.granted(ask("first", itemOf("s", 1)))
		session := w.opened()
		for seq := range uint64(5) {
			w.do(numbered(session, seq+1, 0, withdraw(1<<60)))
		}
		ticket := w.waiting(numbered(session, 6, 0, waits("a", 0, 5*minute, itemOf("s", 1))))
		w.apply(numbered(session, 7, 7, withdraw(1<<60)), closes(session)[0])
		w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
		if granted := w.grantedTickets(); len(granted) != 1 || granted[0] != ticket {
			t.Errorf("with %d an entry: granted %v, want %d", most, granted, ticket)
		}
		w.goesOn(t, most)
	}
}

// TestDeleteQuota_WithManyWaiters: none is granted anything of it, even if another quota has its name by then, and each
// is refused once.
func TestDeleteQuota_WithManyWaiters(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("made again %t", again), func(t *testing.T) {
			w := newWorld(t)
			w.m.bounds = tight(4)
			w.quotas(slotsOf("s", 1), slotsOf("other", 1))
			w.granted(ask("first", itemOf("s", 1)))
			held := w.granted(ask("first", itemOf("other", 1)))
			refused := map[uint64]int{}
			for i := range 30 {
				items := []*logpb.Item{itemOf("s", 1)}
				if i%3 == 0 {
					items = append(items, itemOf("other", 1))
				}
				refused[w.waiting(waits(fmt.Sprint("h", i%7), 0, 5*minute, items...))] = 0
			}
			next := w.waiting(waits("next", 0, 5*minute, itemOf("other", 1)))
			note := func() {
				for _, e := range w.last.Events {
					if e.Kind == effect.EventWaitEnded && e.Reason == logpb.Reason_REASON_SUSPENDED && e.Quota == "s" {
						refused[e.Ticket]++
					}
				}
			}
			if r := w.do(deletesByForce("s")); r.GetQuotasApplied() == nil {
				t.Fatal(r)
			}
			note()
			// Two waiters of two items are refused, and four are found when the other quota has something free.
			if len(w.last.Events) > 10 || w.m.queue.waiters.Len() != 31-6 {
				t.Fatalf("%d events, %d wait", len(w.last.Events), w.m.queue.waiters.Len())
			}
			w.m.bounds.refusals.most = 0
			if again {
				w.quotas(slotsOf("s", 100))
				note()
				if granted := w.grantedTickets(); len(granted) > 0 {
					t.Errorf("granted %v of a quota that has the name of another one", granted)
				}
				w.granted(ask("new", itemOf("s", 100)))
				note()
			}
			w.m.bounds.serves.most = 100
			w.reborn()
			w.do(release(&logpb.Release{Lease: held.Lease, Fence: held.Fence}))
			note()
			if granted := w.grantedTickets(); len(granted) != 1 || granted[0] != next {
				t.Errorf("granted %v, want %d", granted, next)
			}
			w.m.bounds.refusals.most = 4
			for w.m.unfinished() {
				w.reborn()
				w.apply()
				note()
			}
			for ticket, times := range refused {
				if times != 1 {
					t.Errorf("ticket %d was refused %d times", ticket, times)
				}
			}
			if w.m.queue.waiters.Len() != 0 || w.m.queue.waitSets.Len() != 0 {
				t.Errorf("%d wait, in %d wait sets", w.m.queue.waiters.Len(), w.m.queue.waitSets.Len())
			}
		})
	}
}

// TestSweep_ForgetsInSteps: meters of a deleted quota, and of one that stopped counting, are not shown, and leave in
// steps.
func TestSweep_ForgetsInSteps(t *testing.T) {
	w := newWorld(t)
	w.m.bounds = tight(5)
	w.quotas(metered(slotsOf("a", 100)), metered(slotsOf("b", 100)), metered(slotsOf("c", 100)))
	for i := range 20 {
		w.granted(ask(fmt.Sprintf("h%02d", i), itemOf("a", 1), itemOf("b", 1), itemOf("c", 1)))
	}
	w.do(deletesByForce("a"))
	w.goesOn(t, 5)
	if left := w.m.holders.meters.Len(); left != 40 {
		t.Fatalf("%d meters are left, want 40", left)
	}
	w.quotas(slotsOf("b", 100))
	w.do(deletesByForce("c"))
	if left := w.m.holders.meters.Len(); left < 30 {
		t.Fatalf("%d meters are left: one entry looks at 5", left)
	}
	if views, _ := w.m.State().UsagePage(UsageFilter{Holder: "", Quota: ""}, UsageMark{}, 100, w.clock()); len(views) != 0 {
		t.Errorf("%d meters are shown", len(views))
	}
	if entries := w.goesOn(t, 5); entries < 7 || w.m.holders.meters.Len() != 0 {
		t.Errorf("after %d entries %d meters are left", entries, w.m.holders.meters.Len())
	}
}

// TestMoveWaiters_MovesManyInSteps: however often a holder's virtual time changes during the moves, in the end all
// its waiters have it.
func TestMoveWaiters_MovesManyInSteps(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), rateOf("free", 1000, minute))
	w.granted(ask("first", itemOf("s", 1)))
	for range 30 {
		w.waiting(waits("h", 0, 5*minute, itemOf("s", 1)))
	}
	w.m.bounds = tight(4)
	for range 5 {
		w.now += millisecond
		w.apply(asks("h", 0, itemOf("free", 1)), asks("h", 0, itemOf("free", 1)))
	}
	if apart := w.apart("h"); apart < 20 {
		t.Fatalf("%d of 30 stand where they stood: an entry moves 4", apart)
	}
	if entries := w.goesOn(t, 4); entries > 16 || w.apart("h") != 0 {
		t.Errorf("after %d entries %d stand where they stood", entries, w.apart("h"))
	}
}

// recorded returns a session's record in a snapshot; nil: none.
func (w *world) recorded(session uint64) (found *logpb.SnapshotSession) {
	w.m.State().requestRecords(func(record *logpb.SnapshotRecord) bool {
		if s := record.GetSession(); s.GetId() == session {
			found = s
		}
		return true
	})
	return found
}

// TestSnapshot_OfAnEndedSession: a replica restored while a session's results are still to leave hashes as the others
// do.
func TestSnapshot_OfAnEndedSession(t *testing.T) {
	w := newWorld(t)
	w.m.bounds = tight(4)
	session := w.do(opens()).GetSessionOpened().GetSession()
	w.now += second // it is used later than it is listed
	for seq := range uint64(20) {
		w.do(numbered(session, seq+1, 0, withdraw(1<<60)))
	}
	if s := w.recorded(session); s.Ended || s.ListedNs == nil {
		t.Fatalf("it has ended, or is listed as it was used: %v", s)
	}
	w.do(closes(session)[0])
	if !w.recorded(session).GetEnded() {
		t.Fatal("nothing is left of it")
	}
	restored, err := Restore(bytes.NewReader(snapshotOf(t, w.m.Freeze())))
	if err != nil {
		t.Fatal(err)
	}
	_, want := w.m.State().Hash()
	if _, got := restored.State().Hash(); got != want {
		t.Errorf("it hashes to %x, the others to %x", got[:8], want[:8])
	}
}

// TestRestore_RefusesChargesToNoAccount: a damaged snapshot with a charge to an unknown account is an error, not
// a later panic.
func TestRestore_RefusesChargesToNoAccount(t *testing.T) {
	const nobody = 9
	result := &logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Result{Result: &logpb.SnapshotResult{
		Session: 1, Seq: 1,
		Result: effect.Done(),
	}}}
	for name, record := range map[string]*logpb.SnapshotRecord{
		"a session":          {Kind: &logpb.SnapshotRecord_Session{Session: &logpb.SnapshotSession{Id: 1, Account: nobody}}},
		"one that has ended": {Kind: &logpb.SnapshotRecord_Session{Session: &logpb.SnapshotSession{Id: 1, Ended: true, Account: nobody}}},
		"a key":              {Kind: &logpb.SnapshotRecord_Key{Key: &logpb.SnapshotKey{Key: "k", Result: effect.Done(), Account: nobody}}},
		"a lease":            {Kind: &logpb.SnapshotRecord_Lease{Lease: &logpb.SnapshotLease{Id: 1, Account: nobody}}},
		"a detached operation": {Kind: &logpb.SnapshotRecord_Operation{
			Operation: &logpb.SnapshotOperation{Lease: 1, Op: 1, Detached: true, Account: nobody},
		}},
		"a holder": {Kind: &logpb.SnapshotRecord_Holder{Holder: &logpb.SnapshotHolder{Name: "h", Account: nobody}}},
		"a waiter": {Kind: &logpb.SnapshotRecord_Waiter{Waiter: &logpb.SnapshotWaiter{
			Ticket: 1, Reserve: ask("waits"), Account: nobody,
		}}},
		"a task":             {Kind: &logpb.SnapshotRecord_Task{Task: &logpb.SnapshotTask{Name: "t", Account: nobody}}},
		"a caller's account": {Kind: &logpb.SnapshotRecord_Account{Account: &logpb.SnapshotAccount{Number: 1, Name: "a", Parent: nobody}}},
	} {
		restored := &restoring{m: New()}
		restored.m.accounts.Last = nobody
		if err := restored.m.holders.takeHolder(&logpb.SnapshotHolder{Name: "waits"}); err != nil {
			t.Fatal(err)
		}
		if err := restored.take(record); err == nil {
			t.Errorf("%s was taken; then: %v", name, restored.take(result))
		}
	}
}
