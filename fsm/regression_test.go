package fsm

import (
	"fmt"
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// More tests named after what they guard, as in guards_test.go.

// TestReserve_ManyInOneEntryShareLimits: any number at once, over two limits of any kind, gets exactly what fits (seen
// in envoyproxy/ai-gateway 680, BerriAI/litellm 34732).
func TestReserve_ManyInOneEntryShareLimits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		left := map[string]int64{"a": rapid.Int64Range(1, 30).Draw(rt, "a"), "b": rapid.Int64Range(1, 30).Draw(rt, "b")}
		for name, limit := range left { // in any order
			w.quotas([]*logpb.Quota{
				rateOf(name, limit, minute), slotsOf(name, limit), hourly(name, limit),
			}[rapid.IntRange(0, 2).Draw(rt, "kind of "+name)])
		}
		commands := make([]*logpb.Command, rapid.IntRange(2, 40).Draw(rt, "at once"))
		for i := range commands {
			a := ask("h", itemOf("a", rapid.Int64Range(1, 6).Draw(rt, "of a")), itemOf("b", rapid.Int64Range(1, 6).Draw(rt, "of b")))
			a.Consume = rapid.Bool().Draw(rt, "consume")
			if rapid.Bool().Draw(rt, "b first") {
				a.Items[0], a.Items[1] = a.Items[1], a.Items[0]
			}
			commands[i] = reserve(a)
		}
		for i, r := range w.apply(commands...) {
			items := commands[i].GetReserve().Items
			fits := *items[0].Amount <= left[items[0].Quota] && *items[1].Amount <= left[items[1].Quota]
			if fits != (r.GetGranted() != nil) {
				rt.Fatalf("number %d asks for %v, %v are left: %v", i+1, items, left, r)
			}
			for _, item := range items {
				if fits {
					left[item.Quota] -= *item.Amount
				}
			}
		}
		for name, want := range left { // in any order
			if got := w.available(name); got != want {
				rt.Fatalf("%d of %q are available, want %d", got, name, want)
			}
		}
	})
}

// TestSlots_OfCrashedHoldersReachWaiters: holders that crash in a provider's outage, with all slots in use, leave the slots to
// waiters (seen in BerriAI/litellm 20256).
func TestSlots_OfCrashedHoldersReachWaiters(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 3), rateOf("r", 1000, minute))
	for lease := uint64(1); lease <= 3; lease++ {
		w.granted(&logpb.Reserve{
			Holder: "crashes", Items: []*logpb.Item{itemOf("s", 1), itemOf("r", 1)}, Consume: true, TtlNs: 2 * minute,
		})
	}
	for range 5 {
		w.waiting(waits("waits", 0, 10*minute, itemOf("s", 1)))
	}
	for range 100 {
		w.now += second
		r := w.do(reports(1, 1, signal("s", logpb.Cause_CAUSE_OVERLOADED, retryAfter(minute)), signal("r", logpb.Cause_CAUSE_OVERLOADED)))
		if got := say(r); got != "reported: s, r" {
			t.Fatal(got)
		}
	}
	w.sleep(20 * second) // the deadline
	if got := len(w.grantedTickets()); got != 0 {
		t.Fatalf("%d were granted within the grace", got)
	}
	w.sleep(12 * second) // the grace
	if got := len(w.grantedTickets()); got != 3 {
		t.Fatalf("%d were granted, want 3", got)
	}
	w.sleep(6 * second) // these do not confirm either; a tenth of five minutes is their grace
	w.sleep(30 * second)
	if got := len(w.grantedTickets()); got != 2 || w.m.State().Counts().Waiting != 0 {
		t.Fatalf("%d were granted, want 2", got)
	}
}

// TestWindow_GapLongerThanWindow: earlier use is not charged to the new window, its returns do not enlarge it, and
// acknowledged results are still known (seen in Kuadrant/limitador pull requests 288, 291).
func TestWindow_GapLongerThanWindow(t *testing.T) {
	const gap = 3*hour + 30*minute
	for name, pass := range map[string]func(w *world){
		"nobody asked anything":    func(w *world) { w.now += gap },
		"there was no leader":      func(w *world) { w.early, w.late = gap, gap },
		"a part of it without one": func(w *world) { w.now, w.early, w.late = hour/4, gap, gap },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(hourly("h", 100), rateOf("r", 100, minute))
			first := keyedBy("k", asks("a", day, itemOf("h", 60), itemOf("r", 10)))
			answer := w.do(first)
			w.do(consumes(1, 1, itemOf("h", 40)))
			pass(w)
			if got := w.available("h"); got != 100 {
				t.Fatalf("a reader sees %d", got)
			}
			w.apply()
			if again := w.do(first); !proto.Equal(again, answer) {
				t.Fatalf("%v, and again %v", answer, again)
			}
			w.fails(consumes(1, 2, itemOf("h", 20)), logpb.Reason_REASON_ITEM_CLOSED)
			w.fails(releases(1, itemOf("h", 20)), logpb.Reason_REASON_ITEM_CLOSED)
			if r := w.do(used(1, 1, itemOf("h", 5))); r.GetSettled() == nil {
				t.Fatalf("%v", r)
			}
			if got := w.available("h"); got != 100 {
				t.Fatalf("%d are available after 35 of the old window came back", got)
			}
			if got := say(w.do(consumes(1, 3, itemOf("r", 10)))); got[:4] != "op 3" {
				t.Fatal(got)
			}
			w.granted(ask("b", itemOf("h", 100)))
		})
	}
}

// TestLease_NotLengthenedByLeaderChanges: an older stamp changes nothing, and a lease lives exactly until the announced
// deadline, however many leaders stamp entries (seen in etcd-io/etcd 9888, 15247, 17132, 20273).
func TestLease_NotLengthenedByLeaderChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.quotas(rateOf("r", 1000, minute))
		reported := map[uint64]int64{} // deadlines by lease
		var newest int64
		for range rapid.IntRange(1, 60).Draw(rt, "entries") {
			w.now = max(0, w.now+rapid.Int64Range(-10*second, 10*second).Draw(rt, "stamp"))
			newest = max(newest, w.now)
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				g := w.granted(&logpb.Reserve{
					Holder: "a", Items: []*logpb.Item{itemOf("r", 1)}, TtlNs: rapid.Int64Range(second, 30*second).Draw(rt, "ttl"),
				})
				reported[g.Lease] = g.DeadlineNs
			case 1:
				lease := rapid.Uint64Range(1, w.m.lastLease+1).Draw(rt, "lease")
				if renewed := w.do(renews(lease, 20*second)).GetRenewed(); renewed != nil {
					reported[lease] = renewed.DeadlineNs
				}
			default:
				w.apply()
			}
			clock := w.m.State().Clock()
			if clock.Now != newest {
				rt.Fatalf("it is %d, and was %d", clock.Now, newest)
			}
			for lease, deadline := range reported { // in any order
				valid, left := w.m.State().CheckFence(lease, lease, clock)
				if valid != (deadline > clock.Now) || left != max(deadline-clock.Now, 0) {
					rt.Fatalf("lease %d until %d, now %d: %v, %d are left", lease, deadline, clock.Now, valid, left)
				}
			}
		}
	})
}

// TestViews_RemainingTimesStayPlausible: whatever wall clocks do, no reader gets a negative time or one above the possible
// maximum (seen in etcd-io/etcd 13019 and pull request 17642).
func TestViews_RemainingTimesStayPlausible(t *testing.T) {
	for name, move := range map[string]func(w *world, step int){
		"standing still":         func(w *world, _ int) { w.early, w.late = -w.now, -w.now },
		"an hour to and fro":     func(w *world, step int) { w.early, w.late = hour*int64(step%3-1), hour*int64(step%3-1) },
		"the earlier far behind": func(w *world, step int) { w.early = -hour * int64(step%5) },
		"before 1970, so absent": func(w *world, _ int) { w.early, w.late = -2*epochStart, -2*epochStart },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("r", 1000, minute), hourly("h", 1000), anchored("p", 1000))
			w.do(consumesAtOnce("a", itemOf("r", 1), itemOf("h", 1), itemOf("p", 1)))
			w.do(reports(1, 1, signal("p", logpb.Cause_CAUSE_SATURATED, resetAfter(20*minute), retryAfter(10*minute))))
			g := w.granted(&logpb.Reserve{Holder: "b", Items: []*logpb.Item{itemOf("r", 1)}, TtlNs: 2 * hour})
			for step := range 180 {
				w.now += minute
				move(w, step)
				w.apply()
				s, clock := w.m.State(), w.m.State().Clock()
				for _, v := range s.Quotas("", "", 10, clock) {
					if v.WindowLeft < -1 || v.WindowLeft > hour+2*second || v.CooldownLeft < 0 || v.CooldownLeft > hour {
						t.Fatalf("after %d min: %+v", step+1, v)
					}
				}
				valid, left := s.CheckFence(g.Lease, g.Fence, clock)
				if want := max(g.DeadlineNs-w.now, 0); valid != (want > 0) || left != want {
					t.Fatalf("after %d min: %v, %d of the lease are left, want %d", step+1, valid, left, want)
				}
			}
		})
	}
}

// lateLease is the lease of dueLease.
const lateLease = maxDuePerEntry + 1

// dueLease returns a world in which lateLease (r=5 of which 3 are operation 1, and a slot) is past its deadline. Before
// it are as many due leases as an entry ends, so the next entry does not end it. With later, all of them have ended.
func dueLease(t *testing.T, later bool) *world {
	t.Helper()
	w := newWorld(t)
	w.quotas(rateOf("r", 1<<30, minute), rateOf("f", 1<<30, minute), slotsOf("s", 1))
	fillers := make([]*logpb.Command, maxDuePerEntry)
	for i := range fillers {
		fillers[i] = asks("filler", 10*second, itemOf("f", 1))
	}
	w.apply(fillers...)
	g := w.granted(&logpb.Reserve{Holder: "late", Items: []*logpb.Item{itemOf("r", 5), itemOf("s", 1)}, TtlNs: 11 * second})
	w.do(consumes(g.Lease, 1, itemOf("r", 3)))
	w.now = 11 * second
	if later {
		w.apply()
		w.apply()
	}
	return w
}

// TestDueLease_AnswersAsAfterExpiry: a command on an expired lease gets the same answer, and leaves the same state, as
// after its expiry was carried out (seen in tigerbeetle/tigerbeetle pull request 2000).
func TestDueLease_AnswersAsAfterExpiry(t *testing.T) {
	for name, command := range map[string]*logpb.Command{
		"consume":         consumes(lateLease, 2),
		"consume again":   consumes(lateLease, 1, itemOf("r", 3)),
		"unspent":         unspends(lateLease, 1, itemOf("r", 1)),
		"actual, lower":   used(lateLease, 1, itemOf("r", 1)),
		"settle, release": settle(&logpb.Settle{Lease: lateLease, Fence: lateLease, Op: 1, Final: true, Release: true}),
		"release":         releases(lateLease),
		"release a part":  releases(lateLease, itemOf("r", 1)),
		"renew":           renews(lateLease, minute),
		"report":          reports(lateLease, 1, signal("r", logpb.Cause_CAUSE_SATURATED)),
		"another's slot":  asks("next", 0, itemOf("s", 1)),
	} {
		t.Run(name, func(t *testing.T) {
			before, after := dueLease(t, false), dueLease(t, true)
			if before.m.State().Counts().Leases != maxDuePerEntry+1 {
				t.Fatal("the next entry may end the lease by itself: nothing is tested")
			}
			if views := before.m.State().Leases("late", "", 0, 10, before.clock()); len(views) != 0 {
				t.Fatalf("a reader sees %+v", views)
			}
			if valid, left := before.m.State().CheckFence(lateLease, lateLease, before.clock()); valid || left != 0 {
				t.Fatalf("its fence is good for %d", left)
			}
			a, b := before.do(command), after.do(command)
			if a.GetRefusal() != nil {
				a.GetRefusal().RetryAtNs, b.GetRefusal().RetryAtNs = 0, 0 // a deadline that passed, or the end of the grace
			}
			if !proto.Equal(a, b) {
				t.Fatalf("%v, but after the expiry %v", a, b)
			}
			before.apply()
			before.apply()
			x, _ := before.m.State().Hash()
			if y, _ := after.m.State().Hash(); x != y {
				t.Fatal("the ledgers differ")
			}
		})
	}
}

// TestCooldown_LatestReportWins: for reports of any holders, in any order (seen in BerriAI/litellm 40130).
func TestCooldown_LatestReportWins(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.quotas(rateOf("r", 1000, minute))
		for _, holder := range []string{"a", "b", "c"} {
			w.do(reserve(&logpb.Reserve{Holder: holder, Items: []*logpb.Item{itemOf("r", 1)}, Consume: true, TtlNs: day}))
		}
		var end int64
		var last uint64
		for range rapid.IntRange(1, 20).Draw(rt, "reports") {
			w.now += rapid.Int64Range(0, 20*second).Draw(rt, "sleep")
			lease := rapid.Uint64Range(1, 3).Draw(rt, "lease")
			after := rapid.Int64Range(0, 5*minute).Draw(rt, "retry after")
			got := w.do(reports(lease, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(after)))).GetReported().Quotas[0].CooldownUntilNs
			if got == 0 {
				got = w.now // open
			}
			if most := max(end, w.now+after); got > most || got < end || lease != last && got != most {
				rt.Fatalf("at %d lease %d reports %d more: closed until %d, and before until %d", w.now, lease, after, got, end)
			}
			end, last = got, lease
		}
	})
}

// TestReport_IgnoresImpossibleNumbers: they raise nothing, close nothing for longer than one holder may, and teach nothing
// (seen in PostHog's limiter.py, which learnt limits from junk headers).
func TestReport_IgnoresImpossibleNumbers(t *testing.T) {
	const most = math.MaxInt64
	for name, s := range map[string]*logpb.Signal{
		"remaining": {Cause: logpb.Cause_CAUSE_OK, Remaining: proto.Int64(most)},
		"limit":     {Cause: logpb.Cause_CAUSE_OK, Limit: proto.Int64(most), Remaining: proto.Int64(most)},
		"reset":     {Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: proto.Int64(most), ResetResolutionNs: most},
		"years":     {Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: proto.Int64(1 << 60)},
		"retry":     {Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: proto.Int64(most)},
		"exhausted": {Cause: logpb.Cause_CAUSE_EXHAUSTED, ResetAfterNs: proto.Int64(most), ResetResolutionNs: most},
		"account":   {Cause: logpb.Cause_CAUSE_ACCOUNT, RetryAfterNs: proto.Int64(most), ResetAfterNs: proto.Int64(most)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("r", 100, minute), hourly("h", 100), anchored("p", 100), slotsOf("s", 100))
			w.do(consumesAtOnce("a", itemOf("r", 1), itemOf("h", 1), itemOf("p", 1), itemOf("s", 1)))
			var signals []*logpb.Signal
			for _, quota := range []string{"r", "h", "p", "s"} {
				signals = append(signals, with(proto.CloneOf(s), func(s *logpb.Signal) { s.Quota = quota }))
			}
			for range 3 {
				for _, q := range w.do(reports(1, 1, signals...)).GetReported().Quotas {
					if q.ResetLearned || q.CappedTo != nil || q.CooldownUntilNs > hour+4*second {
						t.Fatalf("%v", q)
					}
				}
			}
			for _, v := range w.m.State().Quotas("", "", 10, w.clock()) {
				if v.Usable != 100 || v.Available != 99 {
					t.Fatalf("%+v", v)
				}
			}
		})
	}
}

// TestReserve_SingleHolderGetsAll: if no policy is configured (seen in BerriAI/litellm pull request 19092).
func TestReserve_SingleHolderGetsAll(t *testing.T) {
	for _, quota := range []*logpb.Quota{rateOf("q", 50, minute), hourly("q", 50), anchored("q", 50), slotsOf("q", 50)} {
		for _, class := range []int32{ledger.ClassCritical, ledger.ClassStandard, ledger.ClassBackground} {
			t.Run(fmt.Sprintf("%T, class %d", quota.Rule, class), func(t *testing.T) {
				w := newWorld(t)
				w.quotas(quota)
				w.do(holders(&logpb.HolderRule{Pattern: "alone", Class: class}))
				for range 50 {
					w.granted(&logpb.Reserve{Holder: "alone", Items: []*logpb.Item{itemOf("q", 1)}, Consume: true})
				}
				w.refused(ask("alone", itemOf("q", 1)), logpb.Reason_REASON_EXHAUSTED)
			})
		}
	}
}

// TestSettle_FailedStrandsNothing: a Release frees the unsettled rest at once, otherwise the deadline does (seen in
// BerriAI/litellm 35524).
func TestSettle_FailedStrandsNothing(t *testing.T) {
	for name, free := range map[string]func(w *world){
		"released":  func(w *world) { w.do(releases(1)) },
		"forgotten": func(w *world) { w.sleep(5*minute + 30*second) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(slotsOf("s", 1), with(rateOf("r", 100, minute), func(q *logpb.Quota) { q.DefaultEstimate = 7 }))
			if got := say(w.do(consumesAtOnce("a", all("r"), itemOf("s", 1)))); got != "lease 1: r=7 s=1 until 5m0s; op 1 spends r=7 by 2s" {
				t.Fatal(got)
			}
			w.fails(settle(&logpb.Settle{
				Lease: 1, Fence: 1, Op: 1, Actual: []*logpb.Item{itemOf("r", 3), itemOf("x", 1)}, Release: true,
			}), logpb.Reason_REASON_NOT_HELD)
			w.refused(ask("b", itemOf("s", 1)), logpb.Reason_REASON_EXHAUSTED)
			free(w)
			w.granted(ask("b", itemOf("s", 1)))
		})
	}
}

// TestExpiry_OfAbandonedClients: all remains of 17,000 clients are removed by time, with a bound for each entry (seen
// in SGrondin/bottleneck 115).
func TestExpiry_OfAbandonedClients(t *testing.T) {
	const clients = 17_000
	s := &scale{m: New()}
	s.apply(applyQuotas(rateOf("r", 1<<40, minute)))
	for n := range clients {
		name := fmt.Sprintf("h%d", n)
		s.apply(
			&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: name}}},
			numbered(uint64(n+1), 1, 0, consumesAtOnce(name, itemOf("r", 1))),
			keyedBy(name, asks(name, 0, itemOf("r", 1))),
		)
	}
	if c := s.m.State().Counts(); c.Leases != 2*clients || c.Sessions != clients || c.ResultBytes == 0 {
		t.Fatalf("%+v", c)
	}
	s.now = 2 * day
	for entries, c := 0, s.m.State().Counts(); c.Leases+c.Operations+c.Sessions+c.ResultBytes+int64(s.m.holders.byName.Len()) > 0; entries++ {
		if entries > 4*clients/maxDuePerEntry {
			t.Fatalf("after %d entries: %+v and %d holders", entries, c, s.m.holders.byName.Len())
		}
		s.now += 5 * minute // a holder is remembered for an hour after its last lease
		s.apply()
		after := s.m.State().Counts()
		if c.Leases-after.Leases > maxDuePerEntry || c.Sessions-after.Sessions > maxDuePerEntry {
			t.Fatalf("entry %d: %+v, and then %+v", entries, c, after)
		}
		c = after
	}
	if err := s.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	if v, _ := s.m.State().Quota("r", s.m.State().Clock()); v.Available != 1<<40 {
		t.Fatalf("%+v", v)
	}
}

// settleOf draws a Settle of a grant that consumed at once.
func (h *history) settleOf(g *logpb.Granted) *logpb.Command {
	first := g.Consumed.Items[0]
	s := &logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1}
	if rapid.Bool().Draw(h.T, "unspent") {
		s.Unspent = []*logpb.Item{itemOf(first.Quota, rapid.Int64Range(1, first.Amount).Draw(h.T, "back"))}
	}
	if len(s.Unspent) == 0 || rapid.Bool().Draw(h.T, "actual") {
		s.Actual = []*logpb.Item{itemOf(first.Quota, rapid.Int64Range(0, first.Amount+2).Draw(h.T, "used"))}
	}
	return settle(s)
}

// TestRepeats_WithoutSessionHaveOneEffect: a successful Consume, Settle or full Release has no further effect when it is repeated,
// whatever happened meanwhile (seen in the documents of TigerBeetle on reliable submission).
func TestRepeats_WithoutSessionHaveOneEffect(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		h := &history{T: rt, seq: map[uint64]uint64{}}
		w.quotas(randomWorldQuotas()...)
		var sent []*logpb.Command
		var answers []*logpb.Result
		var consumed []*logpb.Granted
		for range rapid.IntRange(1, 80).Draw(rt, "commands") {
			w.now += rapid.SampledFrom([]int64{0, 0, millisecond, second, 20 * second}).Draw(rt, "sleep")
			command := h.command()
			if len(consumed) > 0 && rapid.Bool().Draw(rt, "settle one") {
				command = h.settleOf(rapid.SampledFrom(consumed).Draw(rt, "which"))
			}
			if command.GetDeleteQuota() != nil {
				continue // the items of a deleted quota are not returned again
			}
			r := w.do(command)
			h.learn(w.last)
			if g := r.GetGranted(); g.GetConsumed() != nil {
				consumed = append(consumed, g)
			}
			if command.Session == 0 && (r.GetConsumed() != nil || r.GetSettled() != nil || r.GetReleased().GetEnded()) &&
				command.GetRevokeLease() == nil {
				sent, answers = append(sent, command), append(answers, r)
			}
			if len(sent) == 0 {
				continue
			}
			w.apply() // carries out due work first
			i := rapid.IntRange(0, len(sent)-1).Draw(rt, "again")
			before, _ := w.m.State().Hash()
			again := w.do(sent[i])
			if after, _ := w.m.State().Hash(); after != before {
				rt.Fatalf("%v came again and changed the ledger: %v", sent[i], again)
			}
			switch again.GetFailure().GetReason() {
			case logpb.Reason_REASON_STALE_FENCE, logpb.Reason_REASON_STALE_OPERATION:
			default:
				if !proto.Equal(again, answers[i]) {
					rt.Fatalf("%v: %v, and again %v", sent[i], answers[i], again)
				}
			}
		}
	})
}
