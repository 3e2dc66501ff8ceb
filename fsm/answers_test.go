package fsm

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestRetryAt_IsLatestOfAllQuotas: of a cooldown and an exhausted quota the later retry time counts.
func TestRetryAt_IsLatestOfAllQuotas(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("a", 10, minute), rateOf("b", 10, hour))
	x := ask("me", itemOf("a", 1), itemOf("b", 10))
	x.Consume, x.TtlNs = true, second
	g := w.granted(x)
	w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "a", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(2 * second)},
	}}))
	r := w.refused(x, logpb.Reason_REASON_COOLDOWN)
	w.now = r.RetryAtNs
	if again := w.do(reserve(x)); again.GetGranted() == nil {
		t.Fatalf("refused until %v, then until %v", time.Duration(r.RetryAtNs), time.Duration(again.GetRefusal().RetryAtNs))
	}
}

// TestRetryAt_OfCappedWindowIsItsEnd: the retry time is the end of the window's boundary.
func TestRetryAt_OfCappedWindowIsItsEnd(t *testing.T) {
	w := newWorld(t)
	w.now = 10 * minute
	w.quotas(hourly("q", 100))
	a := ask("me", itemOf("q", 1))
	a.Consume = true
	g := w.granted(a)
	w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "q", Cause: logpb.Cause_CAUSE_OK, Remaining: proto.Int64(3)},
	}}))
	r := w.refused(ask("me", itemOf("q", 50)), logpb.Reason_REASON_EXHAUSTED)
	w.now = r.RetryAtNs
	again := w.do(reserve(ask("me", itemOf("q", 50))))
	if again.GetGranted() == nil {
		t.Fatalf("refused until %v; then: %v (again at %v)", time.Duration(r.RetryAtNs), again.GetRefusal().GetReason(),
			time.Duration(again.GetRefusal().GetRetryAtNs()))
	}
}

// TestRetryAt_WithDisputedResetIsExact: the retry time is when its amounts stop counting.
func TestRetryAt_WithDisputedResetIsExact(t *testing.T) {
	w := newWorld(t)
	w.quotas(anchored("q", 10))
	a := ask("me", itemOf("q", 10))
	a.Consume = true
	g := w.granted(a)
	rep := func(after int64) {
		w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
			{Quota: "q", Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: &after},
		}}))
	}
	rep(10 * minute)
	rep(30 * minute)
	r := w.refused(ask("me", itemOf("q", 1)), logpb.Reason_REASON_EXHAUSTED)
	w.now = r.RetryAtNs
	again := w.do(reserve(ask("me", itemOf("q", 1))))
	if again.GetGranted() == nil {
		t.Fatalf("refused until %v, then until %v", time.Duration(r.RetryAtNs), time.Duration(again.GetRefusal().GetRetryAtNs()))
	}
}

// TestRetryAt_GrantsInAnyHistory: a retry at the given time is served if no other holder asks and nothing is held, in
// any history.
func TestRetryAt_GrantsInAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.now = 10 * minute
		h := &history{T: rt, seq: map[uint64]uint64{}}
		w.apply(applyQuotas(randomWorldQuotas()...))
		for range rapid.IntRange(1, 60).Draw(rt, "entries") {
			w.now += rapid.SampledFrom([]int64{0, millisecond, 300 * millisecond, second, 4 * second, minute}).Draw(rt, "sleep")
			a := h.reserve().GetReserve()
			a.WaitNs, a.Resume, a.Consume, a.TtlNs = 0, false, true, second
			for _, it := range a.Items {
				if it.Quota == "slots" || it.Quota == "ends" || it.Quota == "anchored" {
					it.Quota = "rate"
				}
			}
			w.apply(reserve(a))
			h.learn(w.last)
			if len(h.leases) > 0 && rapid.Bool().Draw(rt, "report") {
				id, fence, items := h.lease()
				w.apply(report(&logpb.Report{Lease: id, Fence: fence, Op: 1, Signals: h.signals(items)}))
			}
			r := w.last.Results[0].GetRefusal()
			if r == nil || r.RetryAtNs == 0 {
				continue
			}
			other, err := Restore(bytes.NewReader(snapshotOf(rt, w.m.State())))
			if err != nil {
				rt.Fatal(err)
			}
			o := &world{t: rt, m: other, now: r.RetryAtNs, index: w.index}
			again := o.apply(reserve(a))[0]
			if r.RetryAtNs <= w.now {
				rt.Fatalf("retry at %v, now %v", time.Duration(r.RetryAtNs), time.Duration(w.now))
			}
			if again.GetGranted() == nil {
				rt.Fatalf("%v at %v\nand then %v", r, time.Duration(w.now), again)
			}
		}
	})
}

// TestReserve_MayWaitWhileResetIsUnknown: a reset that is learned may free everything.
func TestReserve_MayWaitWhileResetIsUnknown(t *testing.T) {
	w := newWorld(t)
	w.now = 10 * minute
	w.quotas(anchored("q", 10))
	a := ask("me", itemOf("q", 9))
	a.Consume = true
	g := w.granted(a)
	w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Final: true, Release: true}))
	b := ask("me", itemOf("q", 1))
	b.Consume = true
	w.granted(b)
	c := ask("you", itemOf("q", 5))
	c.WaitNs = 10 * minute
	if r := w.do(reserve(c)); r.GetWaiting() == nil {
		t.Fatalf("%v: two callers may report a reset within the wait", r)
	}
}

// TestReport_ShowsCooldownOfRoot: an account's limit closes the root.
func TestReport_ShowsCooldownOfRoot(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("org", 10, minute), under(rateOf("org/a", 10, minute), "org"))
	a := ask("me", itemOf("org/a", 1))
	a.Consume = true
	g := w.granted(a)
	r := w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "org/a", Cause: logpb.Cause_CAUSE_ACCOUNT, RetryAfterNs: new(minute)},
	}}))
	again := w.do(reserve(a))
	if again.GetRefusal().GetReason() != logpb.Reason_REASON_COOLDOWN || r.GetReported().Quotas[0].CooldownUntilNs == 0 {
		t.Fatalf("%v, and then %v", r, again)
	}
}

// TestConsume_RefusedChangesNothing: it does not finish operations below its low-water mark either.
func TestConsume_RefusedChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("q", 10, minute))
	g := w.granted(ask("me", itemOf("q", 6)))
	one := func(op, below uint64) *logpb.Command {
		return consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: op, DoneBelow: below, Items: []*logpb.Item{itemOf("q", 1)}})
	}
	w.do(one(1, 0))
	w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "q", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(minute)},
	}}))
	before, _ := w.m.State().Hash()
	r := w.do(one(2, 2))
	after, _ := w.m.State().Hash()
	if r.GetRefusal() == nil || before != after {
		t.Fatalf("%v, and the ledger changed: %t", r, before != after)
	}
}

// TestIdempotencyKey_ExpiresDuringWait: the waiter's result does not replace another request's.
func TestIdempotencyKey_ExpiresDuringWait(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), slotsOf("x", 5))
	w.do(&logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{KeyLifeNs: new(second)}}})
	g := w.granted(ask("z", itemOf("s", 1)))
	a := ask("k", itemOf("s", 1))
	a.WaitNs = minute
	c := reserve(a)
	c.IdempotencyKey = "key"
	w.do(c)
	w.sleep(2 * second)
	c2 := reserve(ask("k", itemOf("x", 1)))
	c2.IdempotencyKey = "key"
	first := w.do(c2).GetGranted()
	w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
	again := w.do(c2).GetGranted()
	if first.GetLease() != again.GetLease() {
		t.Fatalf("one request, two leases: %v, then %v", first, again)
	}
}

// TestCloseSession_IgnoresIdempotencyKey: one key closes two sessions.
func TestCloseSession_IgnoresIdempotencyKey(t *testing.T) {
	w := newWorld(t)
	open := func() uint64 {
		return w.do(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{}}}).GetSessionOpened().Session
	}
	a, b := open(), open()
	for _, id := range []uint64{a, b} {
		w.do(&logpb.Command{Session: id, IdempotencyKey: "k", Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}})
	}
	if n := w.m.State().Counts().Sessions; n != 0 {
		t.Fatalf("%d sessions left after both were closed", n)
	}
}

// TestResults_OfOneSessionLeaveRoomForOthers: one session never acknowledges anything, and others continue.
func TestResults_OfOneSessionLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t)
	var items []*logpb.Item
	for i := range 64 {
		name := fmt.Sprintf("%0198d/%02d", 0, i)[:197] + fmt.Sprintf("%03d", i)
		w.raw(applyQuotas(rateOf(name, 1<<50, minute)))
		items = append(items, itemOf(name, 1))
	}
	open := func() uint64 {
		return w.raw(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{}}})[0].GetSessionOpened().Session
	}
	bad, good := open(), open()
	for seq := uint64(1); seq < dedup.MaxInFlight; seq++ {
		a := ask("bad", items...)
		a.Consume, a.TtlNs = true, second
		c := reserve(a)
		c.Session, c.Seq = bad, seq
		if r := w.raw(c)[0]; r.GetGranted() == nil {
			break
		}
		w.now += 100 * millisecond
	}
	c := reserve(ask("good", itemOf(items[0].Quota, 1)))
	c.Session, c.Seq = good, 1
	if r := w.raw(c)[0]; r.GetGranted() == nil {
		t.Fatalf("%v bytes: another session: %v", w.m.State().Counts().ResultBytes, r)
	}
}

// TestFreeze_NeverChangesInAnyHistory: each is written again at the end, and is equal.
func TestFreeze_NeverChangesInAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		h := &history{T: rt, seq: map[uint64]uint64{}}
		w.apply(applyQuotas(randomWorldQuotas()...))
		var frozen []*State
		var bytesOf [][]byte
		for range rapid.IntRange(1, 80).Draw(rt, "entries") {
			if rapid.IntRange(0, 3).Draw(rt, "freeze") == 0 {
				s := w.m.Freeze()
				frozen, bytesOf = append(frozen, s), append(bytesOf, snapshotOf(rt, s))
			}
			w.now += rapid.SampledFrom([]int64{0, millisecond, 300 * millisecond, second, 4 * second, minute}).Draw(rt, "sleep")
			var commands []*logpb.Command
			for range rapid.IntRange(0, 4).Draw(rt, "commands") {
				commands = append(commands, h.command())
			}
			w.apply(commands...)
			h.learn(w.last)
		}
		for i, s := range frozen {
			if !bytes.Equal(snapshotOf(rt, s), bytesOf[i]) {
				rt.Fatalf("frozen %d changed", i)
			}
			if err := s.Verify(); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// TestRestore_ReusesNoNumber: numbers issued since the backup identify nothing after the restore.
func TestRestore_ReusesNoNumber(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute), slotsOf("s", 1))
	w.granted(ask("a", itemOf("s", 1)))
	backup := snapshotOf(t, w.m.Freeze())
	open := &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{}}}
	lease, ticket := w.granted(ask("a", itemOf("r", 1))), w.waiting(waits("b", 0, minute, itemOf("s", 1)))
	session := w.do(open).GetSessionOpened().Session
	restored, err := Restore(bytes.NewReader(backup))
	if err != nil {
		t.Fatal(err)
	}
	restored.Rebase(0, 0, 1, "", nil, w.clock())
	w.m = restored
	w.fails(releases(lease.Lease), logpb.Reason_REASON_STALE_FENCE)
	w.fails(withdraw(ticket), logpb.Reason_REASON_UNKNOWN_TICKET)
	w.fails(numbered(session, 1, 0, asks("a", 0, itemOf("r", 1))), logpb.Reason_REASON_UNKNOWN_SESSION)
	if again := w.granted(ask("a", itemOf("r", 1))); again.Lease == lease.Lease || again.Fence <= lease.Fence {
		t.Errorf("%v after %v", again, lease)
	}
	if again := w.waiting(waits("b", 0, minute, itemOf("s", 1))); again == ticket {
		t.Errorf("ticket %d twice", ticket)
	}
	if again := w.do(open).GetSessionOpened().Session; again == session {
		t.Errorf("session %d twice", session)
	}
}

// TestDueLease_IsTreatedAsEnded: a resume keeps the grace of an expired lease's slot, and an overrun gets the
// same answer before and after the expiry is carried out.
func TestDueLease_IsTreatedAsEnded(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1), rateOf("r", 1<<40, minute))
	for range maxDuePerEntry {
		w.raw(reserve(&logpb.Reserve{Holder: "others", Items: []*logpb.Item{itemOf("r", 1)}, TtlNs: second}))
	}
	late := &logpb.Reserve{Holder: "late", Items: []*logpb.Item{itemOf("s", 1), itemOf("r", 5)}, Consume: true, TtlNs: second + 1}
	g := w.granted(late)
	w.now = second + 1
	tell := used(g.Lease, 1, itemOf("r", 7))
	first := say(w.raw(tell)[0])
	late.Resume = true
	if r := w.raw(reserve(late))[0]; r.GetRefusal().GetReason() != logpb.Reason_REASON_EXHAUSTED {
		t.Errorf("the slot's grace: %v", r)
	}
	w.raw()
	if again := say(w.raw(tell)[0]); again != first {
		t.Errorf("%s, and again %s", first, again)
	}
}

// TestReport_OfNonLimitErrorChangesNoLimit: a 401, or an overloaded provider, may carry another limit's numbers (PostHog
// limiter.py).
func TestReport_OfNonLimitErrorChangesNoLimit(t *testing.T) {
	for _, cause := range []logpb.Cause{logpb.Cause_CAUSE_NOT_A_LIMIT, logpb.Cause_CAUSE_OVERLOADED} {
		w := newWorld(t)
		w.quotas(anchored("p", 5000))
		w.do(consumesAtOnce("a", itemOf("p", 1)))
		if got := say(w.do(reports(1, 1, signal("p", cause, remaining(10), resetAfter(10*minute))))); got != "reported: p" {
			t.Errorf("%v: %s", cause, got)
		}
	}
}

// TestResume_ThatNeverFitsEndsNoLease: a rejected Reserve with resume leaves the holder's leases.
func TestResume_ThatNeverFitsEndsNoLease(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	g := w.granted(ask("a", itemOf("r", 5)))
	w.refused(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("r", 11)}, Resume: true}, logpb.Reason_REASON_NEVER_FITS)
	if r := w.do(renews(g.Lease, 0)); r.GetRenewed() == nil {
		t.Fatalf("%v", r)
	}
}
