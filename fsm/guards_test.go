package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Tests named after what they guard: defects that users of other rate limiters met, with the source of each report.

// TestRelease_LateLeavesNewOwnerAlone: a slot that has a new owner is not freed by the old one's release
// (BerriAI/litellm pull request 36459).
func TestRelease_LateLeavesNewOwnerAlone(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	old := w.granted(&logpb.Reserve{Holder: "old", Items: []*logpb.Item{itemOf("s", 1)}, TtlNs: 10 * second})
	w.sleep(11 * second)
	owner := w.granted(ask("new", itemOf("s", 1)))
	for _, late := range []*logpb.Command{
		releases(old.Lease), renews(old.Lease, minute),
		settle(&logpb.Settle{Lease: old.Lease, Fence: old.Fence, Op: 1, Final: true, Release: true}),
		release(&logpb.Release{Lease: owner.Lease, Fence: old.Fence}),
	} {
		w.fails(late, logpb.Reason_REASON_STALE_FENCE)
	}
	w.refused(ask("third", itemOf("s", 1)), logpb.Reason_REASON_EXHAUSTED)
	if r := w.do(renews(owner.Lease, 0)); r.GetRenewed() == nil {
		t.Fatalf("the new owner lost its slot: %v", r)
	}
}

// TestSlots_LeakedFreeOnTimeUnderTraffic: a slot that is never released becomes free at its time, however many requests come
// meanwhile (BerriAI/litellm pull request 28160, redis/redis 4548).
func TestSlots_LeakedFreeOnTimeUnderTraffic(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 2))
	w.granted(&logpb.Reserve{Holder: "crashed", Items: []*logpb.Item{itemOf("s", 1)}, TtlNs: 100 * second})
	for range 109 {
		w.now += second
		busy := w.granted(&logpb.Reserve{Holder: "busy", Items: []*logpb.Item{itemOf("s", 1)}, TtlNs: 100 * second})
		w.refused(ask("other", itemOf("s", 1)), logpb.Reason_REASON_EXHAUSTED)
		w.do(renews(busy.Lease, 0))
		w.do(releases(busy.Lease))
	}
	w.now += second
	w.granted(ask("other", itemOf("s", 2)))
}

// TestSettle_ReturnsAtZeroAndBelow: a returned amount counts at 0 and below (mailgun/gubernator 156).
func TestSettle_ReturnsAtZeroAndBelow(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	w.do(consumesAtOnce("a", itemOf("r", 6)))
	w.granted(ask("b", itemOf("r", 4)))
	if got := w.available("r"); got != 0 {
		t.Fatalf("available %d", got)
	}
	w.do(unspends(1, 1, itemOf("r", 2)))
	if got := w.available("r"); got != 2 {
		t.Fatalf("available %d after 2 went back at 0", got)
	}
	w.do(consumesAtOnce("c", itemOf("r", 2)))
	w.do(used(3, 1, itemOf("r", 12)))
	if got := w.available("r"); got != -10 {
		t.Fatalf("available %d after an overrun of 10", got)
	}
	w.do(releases(2))
	w.do(used(1, 1, itemOf("r", 1)))
	if got := w.available("r"); got != -3 {
		t.Fatalf("available %d after 4 and 3 went back below 0", got)
	}
}

// TestRefusal_ChangesNothing: a refused or failed command leaves the ledger unchanged (Portkey-AI/gateway rateLimiter.ts
// empties the bucket on a refusal).
func TestRefusal_ChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute), rateOf("full", 1, minute), rateOf("zero", 0, minute), rateOf("closed", 10, minute), slotsOf("s", 1),
		with(rateOf("clamped", 10, minute), func(q *logpb.Quota) { q.ClampHold = true }))
	w.do(consumesAtOnce("a", itemOf("full", 1), itemOf("closed", 1), itemOf("s", 1), itemOf("r", 2)))
	w.do(reports(1, 1, signal("closed", logpb.Cause_CAUSE_SATURATED, retryAfter(minute))))
	w.granted(ask("h", itemOf("r", 3)))
	for name, command := range map[string]*logpb.Command{
		"more than there is":        asks("b", 0, itemOf("r", 6), itemOf("clamped", 1)),
		"more than can be":          asks("b", 0, itemOf("r", 11)),
		"above a clamp":             asks("b", 0, itemOf("clamped", 6)),
		"suspended":                 asks("b", 0, itemOf("r", 1), itemOf("zero", 1)),
		"closed":                    asks("b", 0, itemOf("r", 1), itemOf("closed", 1)),
		"one of two is full":        asks("b", 0, itemOf("r", 1), itemOf("full", 1)),
		"no slot":                   asks("b", 0, itemOf("r", 1), itemOf("s", 1)),
		"a wait that cannot help":   waits("b", 0, second, itemOf("r", 11)),
		"an unknown quota":          asks("b", 0, itemOf("r", 1), itemOf("nowhere", 1)),
		"no holder":                 asks("", 0, itemOf("r", 1)),
		"no items":                  asks("b", 0),
		"a quota twice":             asks("b", 0, itemOf("r", 1), itemOf("r", 1)),
		"a length below a second":   asks("b", 1, itemOf("r", 1)),
		"a length above a day":      asks("b", 25*hour, itemOf("r", 1)),
		"a negative wait":           waits("b", 0, -1, itemOf("r", 1)),
		"consume too much":          consumes(2, 1, itemOf("r", 4)),
		"consume what is not held":  consumes(2, 1, itemOf("full", 1)),
		"consume with a dead fence": consumeCmd(&logpb.Consume{Lease: 2, Fence: 1, Op: 1}),
		"consume operation 0":       consumes(2, 0),
		"settle what is not":        used(2, 9, itemOf("r", 1)),
		"settle nothing":            settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1}),
		"unspend too much":          unspends(1, 1, itemOf("r", 3)),
		"a negative actual":         used(1, 1, itemOf("r", -1)),
		"release too much":          releases(2, itemOf("r", 4)),
		"release, another's fence":  release(&logpb.Release{Lease: 2, Fence: 1}),
		"renew, never issued":       renew(&logpb.Renew{Lease: 2, Fence: 99}),
		"withdraw nobody":           withdraw(77),
		"report nothing":            reports(1, 1),
		"report what is not held":   reports(2, 1, signal("s", logpb.Cause_CAUSE_SATURATED)),
		"report a negative number":  reports(1, 1, signal("r", logpb.Cause_CAUSE_OK, remaining(-1))),
		"an unknown session":        numbered(9, 1, 0, asks("b", 0, itemOf("r", 1))),
		"a quota that cannot work":  applyQuotas(rateOf("r", 20, minute), rateOf("x", 1, 0)),
		"another kind":              applyQuotas(slotsOf("r", 1)),
		"delete what is in use": {Kind: &logpb.Command_DeleteQuota{
			DeleteQuota: &logpb.DeleteQuota{Quota: "r"},
		}},
		"revoke nothing":      {Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: 99}}},
		"an epoch not raised": {Kind: &logpb.Command_RaiseEpoch{RaiseEpoch: &logpb.RaiseEpoch{}}},
		"a check, not a change": {Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{rateOf("r", 99,
			minute)}, DryRun: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := w.m.State().Hash()
			r := w.do(command)
			if r.GetFailure() == nil && r.GetRefusal() == nil && r.GetQuotasApplied() == nil {
				t.Fatalf("not refused: %v", r)
			}
			if after, _ := w.m.State().Hash(); after != before {
				t.Fatalf("%v changed the ledger", r)
			}
		})
	}
}

// TestReserve_StricterLimitBinds: for any pair, in any order, and a refused request takes nothing of the other quota
// (Kuadrant/limitador 513).
func TestReserve_StricterLimitBinds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		limits := map[string]int64{"a": rapid.Int64Range(1, 20).Draw(rt, "a"), "b": rapid.Int64Range(1, 20).Draw(rt, "b")}
		w.quotas(slotsOf("a", limits["a"]), slotsOf("b", limits["b"]))
		inUse, open := map[string]int64{}, map[uint64]map[string]int64{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			if len(open) > 0 && rapid.IntRange(0, 2).Draw(rt, "release") == 0 {
				id := rapid.Uint64Range(1, w.m.lastLease).Draw(rt, "lease")
				if amounts, live := open[id]; live {
					w.do(releases(id))
					inUse["a"] -= amounts["a"]
					inUse["b"] -= amounts["b"]
					delete(open, id)
				}
				continue
			}
			amounts := map[string]int64{"a": rapid.Int64Range(1, 8).Draw(rt, "of a"), "b": rapid.Int64Range(1, 8).Draw(rt, "of b")}
			items := []*logpb.Item{itemOf("a", amounts["a"]), itemOf("b", amounts["b"])}
			if rapid.Bool().Draw(rt, "order") {
				items[0], items[1] = items[1], items[0]
			}
			r := w.do(reserve(ask("h", items...)))
			fits := inUse["a"]+amounts["a"] <= limits["a"] && inUse["b"]+amounts["b"] <= limits["b"]
			if granted := r.GetGranted(); (granted != nil) != fits {
				rt.Fatalf("%v of %v with %v in use: %v", amounts, limits, inUse, r)
			} else if fits {
				open[granted.Lease] = amounts
				inUse["a"] += amounts["a"]
				inUse["b"] += amounts["b"]
			} else if q := r.GetRefusal().Quota; inUse[q]+amounts[q] <= limits[q] {
				rt.Fatalf("%q does not bind: %v", q, r)
			}
			for name := range limits {
				if got := w.available(name); got != limits[name]-inUse[name] {
					rt.Fatalf("%d of %q are available, want %d", got, name, limits[name]-inUse[name])
				}
			}
		}
	})
}

// TestViews_StayInRange: however a limit or its parent's changes, for any kind, while amounts are held and counted
// (Kuadrant/limitador 522).
func TestViews_StayInRange(t *testing.T) {
	kinds := map[string]func(name string, limit int64) *logpb.Quota{
		"rate": func(name string, limit int64) *logpb.Quota { return rateOf(name, limit, minute) }, "slots": slotsOf, "window": hourly,
	}
	for kind, define := range kinds {
		t.Run(kind, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				w := newWorld(rt)
				w.quotas(define("parent", 80), under(define("r", 50), "parent"))
				limits := rapid.SampledFrom([]int64{0, 1, 10, 1000, fixed.MaxAmount})
				for range rapid.IntRange(1, 40).Draw(rt, "steps") {
					w.now += rapid.SampledFrom([]int64{0, second, 20 * second, 2 * minute, 50 * minute}).Draw(rt, "sleep")
					switch rapid.IntRange(0, 4).Draw(rt, "kind") {
					case 0:
						w.quotas(under(define("r", limits.Draw(rt, "limit")), "parent"))
					case 1:
						w.quotas(define("parent", limits.Draw(rt, "the parent's")))
					case 2:
						w.do(releases(rapid.Uint64Range(1, 9).Draw(rt, "lease")))
					default:
						a := ask("h", itemOf("r", rapid.Int64Range(1, 60).Draw(rt, "amount")))
						a.Consume = kind != "slots" && rapid.Bool().Draw(rt, "consume")
						if refusal := w.do(reserve(a)).GetRefusal(); refusal != nil && refusal.RetryAtNs != 0 && refusal.RetryAtNs <= w.now {
							rt.Fatalf("come back in the past: %v at %d", refusal, w.now)
						}
					}
					for _, name := range []string{"r", "parent"} {
						v, _ := w.m.State().Quota(name, w.clock())
						if v.Usable < 0 || v.Held < 0 || v.Consumed < 0 || v.Available != v.Usable-v.Held-v.Consumed {
							rt.Fatalf("%s: %+v", name, v)
						}
					}
				}
			})
		})
	}
}

// TestWallClock_MovesNoLease: wall clocks that jump by hours, or stand still, end no lease early or late (etcd-io/etcd
// 13019).
func TestWallClock_MovesNoLease(t *testing.T) {
	for name, wrong := range map[string]int64{"an hour ahead": hour, "an hour behind": -hour, "a year ahead": 365 * day} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("r", 10, minute), hourly("h", 10))
			g := w.granted(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("r", 1)}, TtlNs: 100 * second})
			w.sleep(50 * second)
			w.early, w.late = wrong, wrong
			w.sleep(49 * second)
			if r := w.do(renews(g.Lease, 100*second)); r.GetRenewed().GetDeadlineNs() != 199*second {
				t.Fatalf("%v", r)
			}
			w.early, w.late = 0, 0
			w.sleep(100*second - 1)
			if r := w.do(renews(g.Lease, 100*second)); r.GetRenewed() == nil {
				t.Fatalf("%v", r)
			}
			w.sleep(100 * second)
			w.fails(renews(g.Lease, 0), logpb.Reason_REASON_STALE_FENCE)
		})
	}
}

// TestExpiry_OfManyIsBoundedAndOrdered: of 20,000 leases that fall due at once each entry ends no more than its bound, in
// order, and carries out its own commands too (tigerbeetle/tigerbeetle 315).
func TestExpiry_OfManyIsBoundedAndOrdered(t *testing.T) {
	const leases = 20_000
	s := bigState(leases)
	s.apply(applyQuotas(rateOf("other", 1<<40, minute)))
	s.now = day
	ended, last := 0, uint64(0)
	for entries := 0; ended < leases; entries++ {
		if entries > leases/maxDuePerEntry+1 {
			t.Fatalf("%d leases have ended after %d entries", ended, entries)
		}
		s.index++
		data, err := proto.Marshal(&logpb.Entry{
			Version: EntryVersion, StampNs: s.now, WallEarlyNs: epochStart, WallLateNs: epochStart,
			Commands: []*logpb.Command{asks("h", 0, itemOf("other", 1)), renews(leases, 0)},
		})
		if err != nil {
			t.Fatal(err)
		}
		applied := s.m.Apply(s.index, 1, data)
		inEntry := 0
		for i := range applied.Events {
			e := &applied.Events[i]
			if e.Kind == effect.EventExpired && e.Lease == leases { // ended by a command
				ended++
			} else if e.Kind == effect.EventExpired {
				if e.Lease <= last {
					t.Fatalf("lease %d ended after lease %d", e.Lease, last)
				}
				last = e.Lease
				inEntry++
			}
		}
		ended += inEntry
		if inEntry > maxDuePerEntry {
			t.Fatalf("%d leases ended in one entry", inEntry)
		}
		if applied.Results[0].GetGranted() == nil {
			t.Fatalf("another command meanwhile: %v", applied.Results[0])
		}
		if applied.Results[1].GetFailure().GetReason() != logpb.Reason_REASON_STALE_FENCE {
			t.Fatalf("a lease that is due but not ended yet: %v", applied.Results[1])
		}
	}
}

// TestSession_RedeliveryHasOneEffect: any repeated request of a session, late and out of order, gets the same answer
// and changes nothing (named in TigerBeetle's documents on reliable submission).
func TestSession_RedeliveryHasOneEffect(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		h := &history{T: rt, seq: map[uint64]uint64{}}
		w.quotas(randomWorldQuotas()...)
		w.do(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "x"}}})
		var sent []*logpb.Command
		var answers []*logpb.Result
		for range rapid.IntRange(1, 60).Draw(rt, "requests") {
			w.now += rapid.SampledFrom([]int64{0, millisecond, second, minute}).Draw(rt, "sleep")
			command := h.command()
			command.Session, command.Seq, command.IdempotencyKey = 1, uint64(len(sent)+1), ""
			if command.GetOpenSession() != nil {
				continue
			}
			w.apply(command)
			h.learn(w.last)
			sent, answers = append(sent, command), append(answers, w.last.Results[0])
			w.apply() // carries out due work, so that only the redelivery is seen
			i := rapid.IntRange(0, len(sent)-1).Draw(rt, "again")
			before, _ := w.m.State().Hash()
			again := w.do(sent[i])
			if after, _ := w.m.State().Hash(); after != before {
				rt.Fatalf("request %d came again and changed the ledger: %v", i+1, sent[i])
			}
			if answers[i].GetWaiting() == nil && !proto.Equal(again, answers[i]) {
				rt.Fatalf("request %d: %v, and again: %v", i+1, answers[i], again)
			}
		}
	})
}

// TestParent_BindsChildren: a full parent limits its children, also when its limit falls below their sum; a removed child
// leaves its parent's count correct (two releases of BerriAI/litellm differed in this).
func TestParent_BindsChildren(t *testing.T) {
	child := func(name string, limit int64) *logpb.Quota {
		return with(rateOf(name, limit, minute), func(q *logpb.Quota) { q.Parent = "org" })
	}
	w := newWorld(t)
	w.quotas(rateOf("org", 100, minute), child("org/a", 80), child("org/b", 80))
	a := w.granted(ask("a", itemOf("org/a", 60)))
	b := w.granted(ask("b", itemOf("org/b", 40)))
	if r := w.refused(ask("a", itemOf("org/a", 1)), logpb.Reason_REASON_EXHAUSTED); r.Quota != "org" {
		t.Fatalf("%v", r)
	}
	w.quotas(rateOf("org", 50, minute))
	if got := w.available("org"); got != -50 {
		t.Fatalf("available %d", got)
	}
	w.do(releases(a.Lease))
	w.refused(ask("c", itemOf("org/a", 11)), logpb.Reason_REASON_EXHAUSTED)
	c := w.granted(ask("c", itemOf("org/a", 10)))
	if r := w.do(&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{
		Quota: "org/b", Force: true,
	}}}); r.GetQuotasApplied() == nil {
		t.Fatalf("%v", r)
	}
	if got := w.available("org"); got != 0 {
		t.Fatalf("available %d: what leases of a deleted child hold of its parent stays until they end", got)
	}
	w.do(releases(b.Lease))
	w.do(releases(c.Lease))
	if got := w.available("org"); got != 50 {
		t.Fatalf("available %d at the end", got)
	}
	for _, name := range []string{"org", "org/a"} {
		if v, ok := w.m.State().Quota(name, w.clock()); !ok || v.Held != 0 || v.Leases != 0 {
			t.Fatalf("%s: %+v", name, v)
		}
	}
}
