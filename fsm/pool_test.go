package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// poolOf returns the definition of a pool whose members a, b, c, ... are these quotas.
func poolOf(name string, quotas ...string) *logpb.Quota {
	pool := &logpb.Pool{}
	for i, quota := range quotas {
		pool.Members = append(pool.Members, &logpb.PoolMember{Name: string(rune('a' + i)), Quota: quota})
	}
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Pool{Pool: pool}}
}

func sticky(pool *logpb.Quota) *logpb.Quota {
	pool.GetPool().Sticky = true
	return pool
}

// livedPool are the quotas of two keys, and the pool of both.
func livedPool(rate func(name string, limit int64, per time.Duration) *logpb.Quota) []*logpb.Quota {
	return []*logpb.Quota{rate("key/a", 14, 10*time.Second), rate("key/b", 20, 10*time.Second), sticky(poolOf("keys", "key/a", "key/b"))}
}

// pins returns a Reserve that pins a member of pools.
func pins(holder, member string, items ...*logpb.Item) *logpb.Reserve {
	r := ask(holder, items...)
	r.Member = member
	return r
}

// keysWorld has requests and tokens of two keys, and a pool of each.
func keysWorld(t tester) *world {
	w := newWorld(t)
	w.quotas(rateOf("a/requests", 10, minute), rateOf("b/requests", 10, minute), rateOf("a/tokens", 1000, minute), rateOf("b/tokens", 1000,
		minute),
		poolOf("requests", "a/requests", "b/requests"), poolOf("tokens", "a/tokens", "b/tokens"))
	return w
}

// members returns the members of a grant's items, one letter each.
func members(g *logpb.Granted) (names string) {
	for _, item := range g.Items {
		names += item.Member
	}
	return names
}

func TestPool_DrawsOnTheMemberWithMostRoom(t *testing.T) {
	w := keysWorld(t)
	got := ""
	for _, amount := range []int64{6, 4, 3, 1, 1} { // left: a4 b10, a4 b6, a4 b3, a3 b3, a2 b3
		got += members(w.granted(ask("x", itemOf("requests", amount))))
	}
	if got != "abbaa" {
		t.Fatalf("drew on %s", got)
	}
	g := w.granted(ask("x", itemOf("requests", 1)))
	if item := g.Items[0]; item.Quota != "b/requests" || item.Pool != "requests" || item.Member != "b" || item.Amount != 1 {
		t.Fatalf("granted %v", item)
	}
	if a, b := w.available("a/requests"), w.available("b/requests"); a != 2 || b != 2 {
		t.Fatalf("%d and %d are left", a, b)
	}
}

func TestPool_DrawsByShareOfUsable(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("small", 4), slotsOf("large", 10), poolOf("pool", "small", "large"))
	got := ""
	for range 14 { // the free share decides: 4/4, 3/4 and 10/10, 9/10, ...
		got += members(w.granted(ask("x", itemOf("pool", 1))))
	}
	if got != "abbbabbabbbabb" {
		t.Fatalf("drew on %s", got)
	}
	w.refused(ask("x", itemOf("pool", 1)), logpb.Reason_REASON_EXHAUSTED)
}

// TestPool_AllPoolsDrawOnOneMember: requests and tokens are of one key, all or nothing.
func TestPool_AllPoolsDrawOnOneMember(t *testing.T) {
	w := keysWorld(t)
	w.quotas(slotsOf("streams", 1))
	w.granted(ask("x", itemOf("a/tokens", 950))) // a has more requests, and not the tokens
	w.granted(ask("x", itemOf("b/requests", 5)))
	if got := members(w.granted(ask("x", itemOf("tokens", 100), itemOf("requests", 1)))); got != "bb" {
		t.Fatalf("drew on %s", got)
	}
	if got := members(w.granted(ask("x", itemOf("tokens", 50), itemOf("requests", 6)))); got != "aa" {
		t.Fatalf("drew on %s", got)
	}
	w.granted(ask("x", itemOf("streams", 1)))
	before, _ := w.m.State().Hash()
	w.refused(ask("x", itemOf("tokens", 1), itemOf("requests", 1), itemOf("streams", 1)), logpb.Reason_REASON_EXHAUSTED)
	if after, _ := w.m.State().Hash(); after != before {
		t.Fatal("a refusal took something")
	}
}

func TestPool_MemberIsPinned(t *testing.T) {
	w := keysWorld(t)
	first := pins("x", "b", itemOf("requests", 4), itemOf("tokens", 10))
	first.Consume = true
	if got := members(w.granted(first)); got != "bb" {
		t.Fatalf("drew on %s", got)
	}
	w.fails(reserve(pins("x", "c", itemOf("requests", 1))), logpb.Reason_REASON_INVALID)
	w.fails(reserve(pins("x", "a", itemOf("a/requests", 1))), logpb.Reason_REASON_INVALID)
	w.fails(reserve(pins("x", "a", itemOf("a/requests", 1), itemOf("requests", 1))), logpb.Reason_REASON_INVALID)
	pinned := pins("x", "b", itemOf("requests", 7))
	if left := w.refused(pinned, logpb.Reason_REASON_EXHAUSTED).Quota; left != "b/requests" {
		t.Fatalf("%q stands in the way", left)
	}
	pinned.WaitNs = 5 * minute
	ticket := w.queued(pinned)
	w.reborn()
	for range 120 {
		w.sleep(second)
		if got, served := w.served()[ticket]; served {
			if got != "b" {
				t.Fatalf("served by %q", got)
			}
			return
		}
	}
	t.Fatal("never served")
}

func waitsFor(holder string, wait int64, items ...*logpb.Item) *logpb.Reserve {
	r := ask(holder, items...)
	r.WaitNs = wait
	return r
}

// TestPool_NamesThatMeanNothing: requests without a meaning are refused.
func TestPool_NamesThatMeanNothing(t *testing.T) {
	w := keysWorld(t)
	w.quotas(poolOf("other", "a/tokens"), &logpb.Quota{Name: "far", Rule: &logpb.Quota_Pool{Pool: &logpb.Pool{
		Members: []*logpb.PoolMember{{Name: "z", Quota: "a/tokens"}},
	}}})
	w.fails(reserve(ask("x", itemOf("requests", 1), itemOf("far", 1))), logpb.Reason_REASON_INVALID)
	w.fails(reserve(ask("x", itemOf("requests", 1), itemOf("a/requests", 1))), logpb.Reason_REASON_INVALID)
	w.fails(reserve(ask("x", itemOf("tokens", 1), itemOf("other", 1))), logpb.Reason_REASON_INVALID)
	if got := members(w.granted(ask("x", itemOf("requests", 1), itemOf("other", 1)))); got != "aa" {
		t.Fatalf("drew on %s, only a is in both", got)
	}
}

func TestPool_Definitions(t *testing.T) {
	w := keysWorld(t)
	w.quotas(hourly("window", 10), slotsOf("slots", 1))
	many := make([]string, ledger.MaxMembers+1)
	for i := range many {
		many[i] = fmt.Sprintf("q%d", i)
	}
	named := poolOf("p", "window")
	named.GetPool().Members[0].Name = "a b"
	for name, bad := range map[string]*logpb.Quota{
		"no members":           poolOf("p"),
		"too many members":     poolOf("p", many...),
		"a member twice":       poolOf("p", "window", "window"),
		"no such member":       poolOf("p", "nothing"),
		"a pool as a member":   poolOf("p", "requests"),
		"itself as a member":   poolOf("p", "p"),
		"kinds apart":          poolOf("p", "window", "slots"),
		"a name with a space":  named,
		"a parent":             under(poolOf("p", "window"), "a/tokens"),
		"a policy":             policed(poolOf("p", "window"), &logpb.Policy{Observe: true}),
		"a fallback":           insteadOf(poolOf("p", "window"), "a/tokens"),
		"a pool as a parent":   under(rateOf("p", 1, minute), "requests"),
		"a pool as a fallback": insteadOf(rateOf("p", 1, minute), "requests"),
		"headroom":             {Name: "p", HeadroomPpm: 1, Rule: poolOf("p", "window").Rule},
		"a default of its own": {Name: "p", DefaultEstimate: 1, Rule: poolOf("p", "window").Rule},
		"nothing but its rule": {Name: "p", Rule: &logpb.Quota_Pool{}},
		"a clamp of its own":   {Name: "p", ClampHold: true, Rule: poolOf("p", "window").Rule},
		"two members, one name": {Name: "p", Rule: &logpb.Quota_Pool{Pool: &logpb.Pool{Members: []*logpb.PoolMember{{
			Name:  "a",
			Quota: "window",
		}, {Name: "a", Quota: "slots"}}}}},
	} {
		if r := w.do(applyQuotas(bad)); r.GetFailure().GetReason() != logpb.Reason_REASON_IMPOSSIBLE_QUOTA {
			t.Errorf("%s: %v", name, r)
		}
	}
	w.fails(applyQuotas(poolOf("window", "a/tokens")), logpb.Reason_REASON_KIND_CHANGE)
	w.fails(applyQuotas(rateOf("requests", 1, minute)), logpb.Reason_REASON_KIND_CHANGE)
	w.fails(overrides("requests", 1, minute), logpb.Reason_REASON_INVALID)
	w.fails(reopens("requests"), logpb.Reason_REASON_INVALID)
	for _, force := range []bool{false, true} {
		w.fails(deletesQuota("a/requests", force), logpb.Reason_REASON_QUOTA_IN_USE)
	}
}

func deletesQuota(name string, force bool) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: name, Force: force}}}
}

// TestPool_NeedsTheFeatureLevel: entries before version 7 have no pools.
func TestPool_NeedsTheFeatureLevel(t *testing.T) {
	if _, failure := ledger.NewRule(poolOf("p", "q"), levels.Pools-1); failure.GetReason() != logpb.Reason_REASON_IMPOSSIBLE_QUOTA {
		t.Fatalf("worked out: %v", failure)
	}
	if _, failure := ledger.NewRule(poolOf("p", "q"), levels.Pools); failure != nil {
		t.Fatal(failure)
	}
}

// TestPool_OfFewItems: from version 8 on a Reserve of a pool has few items, since each is judged for each member.
func TestPool_OfFewItems(t *testing.T) {
	w := newWorld(t)
	items := []*logpb.Item{itemOf("pool", 1)}
	quotas := []*logpb.Quota{slotsOf("m", 1), poolOf("pool", "m")}
	for i := range maxPoolItems {
		quotas = append(quotas, slotsOf(fmt.Sprint("q", i), 1))
		items = append(items, itemOf(fmt.Sprint("q", i), 1))
	}
	w.quotas(quotas...)
	failure := w.fails(reserve(ask("x", items...)), logpb.Reason_REASON_INVALID)
	if failure.Message != "9 items with a pool among them; at most 8" {
		t.Fatal(failure)
	}
	w.granted(ask("x", items[:maxPoolItems]...))
	w.granted(ask("x", items[maxPoolItems]))
	w.m.featureLevel = levels.PoolItems - 1
	if _, failure := w.m.judge.needs(ask("x", items...)); failure != nil {
		t.Fatal("an entry before version 8:", failure)
	}
}

// TestPool_NeverFits: an amount above every member's usable can never fit, and the advice names the largest that can.
func TestPool_NeverFits(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("small", 4), slotsOf("large", 10), slotsOf("off", 0), poolOf("pool", "off", "small", "large"))
	if refusal := w.refused(ask("x", itemOf("pool", 11)), logpb.Reason_REASON_NEVER_FITS); refusal.Advice != "ask for at most 10" {
		t.Fatal(refusal)
	}
	if got := members(w.granted(ask("x", itemOf("pool", 9)))); got != "c" {
		t.Fatalf("drew on %s", got)
	}
	w.quotas(slotsOf("small", 0), slotsOf("large", 0))
	w.refused(ask("x", itemOf("pool", 1)), logpb.Reason_REASON_SUSPENDED)
}

// closes reports a cooldown of a quota in a lease.
func (w *world) closes(g *logpb.Granted, quota string, after int64) {
	w.t.Helper()
	r := w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: quota, Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: &after},
	}}))
	if r.GetReported() == nil {
		w.t.Fatalf("not reported: %v", r)
	}
}

// TestPool_CooldownClosesOneMember: the others continue, and when all are closed a refusal names the first to open.
func TestPool_CooldownClosesOneMember(t *testing.T) {
	w := keysWorld(t)
	draw := func(member string) *logpb.Granted {
		r := pins("x", member, itemOf("requests", 1))
		r.Consume = true
		return w.granted(r)
	}
	onA, onB := draw("a"), draw("b")
	w.closes(onA, "a/requests", 30*second)
	for range 3 {
		if got := members(w.granted(ask("x", itemOf("requests", 1)))); got != "b" {
			t.Fatalf("drew on %s", got)
		}
	}
	w.closes(onB, "b/requests", 10*second)
	refusal := w.refused(ask("x", itemOf("requests", 1)), logpb.Reason_REASON_COOLDOWN)
	if refusal.Quota != "b/requests" || refusal.ReopensAtNs-w.now != 10*second {
		t.Fatal(refusal)
	}
	if v, _ := w.m.State().Quota("requests", w.clock()); v.CooldownLeft != 10*second || v.Members[0].Quota.CooldownLeft != 30*second {
		t.Fatalf("shown as closed for %d", v.CooldownLeft)
	}
}

func TestPool_Sticky(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("k1", 10), slotsOf("k2", 10), sticky(poolOf("pool", "k1", "k2")))
	got := ""
	for _, holder := range []string{"x", "y", "x", "x", "y", "y"} {
		got += members(w.granted(ask(holder, itemOf("pool", 1))))
		w.reborn()
	}
	if got != "abaabb" {
		t.Fatalf("drew on %s", got)
	}
	w.granted(pins("z", "a", itemOf("pool", 7)))                            // a is full
	if got := members(w.granted(ask("x", itemOf("pool", 1)))); got != "b" { // x switches
		t.Fatalf("drew on %s", got)
	}
	w.quotas(sticky(poolOf("pool", "k1"))) // the member that it drew on last is gone
	w.refused(ask("x", itemOf("pool", 1)), logpb.Reason_REASON_EXHAUSTED)
}

// TestPool_MembersHaveParents: a parent of all members bounds the pool, a parent of one member only that member.
func TestPool_MembersHaveParents(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("account", 12, minute), under(rateOf("a", 10, minute), "account"), rateOf("b", 10, minute), poolOf("pool", "a", "b"))
	w.granted(ask("x", itemOf("account", 8)))
	if got := members(w.granted(ask("x", itemOf("pool", 5)))); got != "b" {
		t.Fatalf("drew on %s", got)
	}
	if got := members(w.granted(ask("x", itemOf("pool", 4)))); got != "a" {
		t.Fatalf("drew on %s", got)
	}
	if v, _ := w.m.State().Quota("pool", w.clock()); v.Available != 11 || v.AvailableWithParents != 5 || v.Usable != 20 {
		t.Fatalf("shown: %+v", v)
	}
}

// TestPool_ShowsWhatOpenMembersHave: amounts of members that are closed, themselves or by a parent, are not available.
func TestPool_ShowsWhatOpenMembersHave(t *testing.T) {
	for name, c := range map[string]struct {
		cause             logpb.Cause
		order             []string
		available, closed int64
	}{
		"itself":            {logpb.Cause_CAUSE_SATURATED, []string{"a", "b"}, 2, 0},
		"by its parent":     {logpb.Cause_CAUSE_ACCOUNT, []string{"a", "b"}, 2, 0},
		"in another order":  {logpb.Cause_CAUSE_ACCOUNT, []string{"b", "a"}, 2, 0},
		"all of its parent": {logpb.Cause_CAUSE_ACCOUNT, []string{"a", "c"}, 9, 30 * second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("account", 100, minute), under(rateOf("a", 10, minute), "account"), rateOf("b", 3, minute),
				under(rateOf("c", 8, minute), "account"), poolOf("pool", c.order...))
			w.granted(consumesAtOnce("x", itemOf("b", 1)).GetReserve())
			g := w.granted(consumesAtOnce("x", itemOf("a", 1)).GetReserve())
			after := 30 * second
			w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
				{Quota: "a", Cause: c.cause, RetryAfterNs: &after},
			}}))
			v := w.view("pool")
			if v.AvailableWithParents != c.available || v.CooldownLeft != c.closed || v.ClosedFor != c.closed {
				t.Fatalf("%d available, closed for %d, %d", v.AvailableWithParents, v.CooldownLeft, v.ClosedFor)
			}
			if a := w.view("a"); a.ClosedFor != after {
				t.Fatalf("a is closed for %d", a.ClosedFor)
			}
		})
	}
}

// TestPool_ObserveMode: a member that only observes grants everything.
func TestPool_ObserveMode(t *testing.T) {
	w := newWorld(t)
	w.quotas(policed(slotsOf("a", 1), &logpb.Policy{Observe: true}), slotsOf("b", 1), poolOf("pool", "a", "b"))
	got := ""
	for range 4 {
		got += members(w.granted(ask("x", itemOf("pool", 1))))
	}
	if got != "abaa" {
		t.Fatalf("drew on %s", got)
	}
}

// TestPool_LeaseIsOfTheMember: all commands after the grant name the member's quota.
func TestPool_LeaseIsOfTheMember(t *testing.T) {
	w := keysWorld(t)
	g := w.granted(ask("x", itemOf("tokens", 100)))
	w.fails(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1, Items: []*logpb.Item{itemOf("tokens", 100)}}),
		logpb.Reason_REASON_NOT_HELD)
	if r := w.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1})); r.GetConsumed().GetItems()[0].Quota != "a/tokens" {
		t.Fatal(r)
	}
	r := w.do(settle(&logpb.Settle{
		Lease: g.Lease, Fence: g.Fence, Op: 1, Actual: []*logpb.Item{itemOf("a/tokens", 40)}, Final: true,
		Release: true,
	}))
	if r.GetSettled() == nil || w.available("a/tokens") != 960 {
		t.Fatalf("%v, %d are left", r, w.available("a/tokens"))
	}
}
