package model

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

const ms = int64(time.Millisecond)

// step is an entry of a story: some time passes, then one command follows.
type step struct {
	after   int64
	command *logpb.Command
}

func reserve(holder, quota string, amount, ttl int64, change ...func(*logpb.Reserve)) *logpb.Command {
	r := &logpb.Reserve{Holder: holder, Items: []*logpb.Item{{Quota: quota, Amount: &amount}}, TtlNs: ttl}
	for _, f := range change {
		f(r)
	}
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: r}}
}

func waits(r *logpb.Reserve)    { r.WaitNs = int64(5 * time.Second) }
func consumes(r *logpb.Reserve) { r.Consume = true }
func inClass(class int32) func(*logpb.Reserve) {
	return func(r *logpb.Reserve) { r.Class = &class }
}

func numbered(seq uint64, command *logpb.Command) *logpb.Command {
	command.IdempotencyKey = string(rune('a' + seq))
	return command
}

func nothing() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_PutMember{PutMember: &logpb.PutMember{Id: "n"}}}
}

// story has a part for every rule. Leases are numbered in the order of their grants.
func story() []step {
	rate := func(name, parent string, limit int64) *logpb.Quota {
		return &logpb.Quota{Name: name, Parent: parent, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit, PerNs: int64(2 * time.Second)}}}
	}
	apply := &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
		rate("org", "", 20), rate("org/a", "org", 15),
		{Name: "s", Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: 1, GraceNs: 500 * ms}}},
	}}
	return []step{
		{0, &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: apply}}},
		// entry 2: lease 1, which expires
		{ms, reserve("h", "org/a", 5, int64(time.Second))},
		// 3: lease 2, operation 1
		{ms, numbered(1, reserve("h", "org/a", 4, int64(time.Minute), consumes))},
		// 4: the same request again
		{ms, numbered(1, reserve("h", "org/a", 4, int64(time.Minute), consumes))},
		// 5
		{ms, &logpb.Command{Kind: &logpb.Command_Settle{Settle: &logpb.Settle{
			Lease: 2, Fence: 2, Op: 1, Unspent: []*logpb.Item{{Quota: "org/a", Amount: proto.Int64(1)}},
		}}}},
		// 6: closed
		{ms, &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{
			Lease: 2, Fence: 2, Op: 1, Signals: []*logpb.Signal{{Quota: "org/a", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(300 * ms)}},
		}}}},
		// 7: refused
		{ms, reserve("h", "org/a", 1, int64(time.Minute))},
		// 8: lease 3
		{400 * ms, reserve("h", "org/a", 1, int64(time.Minute))},
		// 9: lease 4
		{ms, reserve("slow", "s", 1, int64(time.Second))},
		// 10: waits as 1
		{ms, reserve("low", "s", 1, int64(time.Second), waits, inClass(2))},
		// 11: waits as 2
		{ms, reserve("high", "s", 1, int64(time.Second), waits, inClass(0))},
		// 12: leases 1 and 4 expire
		{int64(time.Second), nothing()},
		// 13: dead
		{ms, &logpb.Command{Kind: &logpb.Command_Renew{Renew: &logpb.Renew{Lease: 1, Fence: 1, TtlNs: int64(time.Minute)}}}},
		// 14: the grace is over, the first waiter is served
		{600 * ms, nothing()},
		// 15
		{ms, &logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: 3, Fence: 3}}}},
	}
}

// play applies the story to the state machine. Before an entry is judged, spoil may change its outcome.
func play(t *testing.T, spoil func(index uint64, entry *logpb.Entry, applied *fsm.Applied)) ([]Violation, Stats) {
	t.Helper()
	machine, judge := fsm.New(), New()
	var all []Violation
	at := int64(time.Second)
	for i, s := range story() {
		at += s.after
		entry := &logpb.Entry{Version: fsm.EntryVersion, StampNs: at, Commands: []*logpb.Command{s.command}}
		payload, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		index := uint64(i + 1)
		applied := machine.Apply(index, 1, payload)
		// The machine may keep these results.
		for k := range applied.Results {
			applied.Results[k] = proto.CloneOf(applied.Results[k])
		}
		spoil(index, entry, &applied)
		all = append(all, judge.Entry(entry, &applied)...)
	}
	return all, judge.Stats()
}

func TestStory_IsAllowed(t *testing.T) {
	violations, stats := play(t, func(uint64, *logpb.Entry, *fsm.Applied) {})
	for _, v := range violations {
		t.Errorf("%+v", v)
	}
	want := Stats{
		Granted: 5, Refused: 1, Failed: 1, Consumed: 1, Settled: 1, Released: 1, Expired: 2, DeadFences: 1, Repeated: 1, Waited: 2,
		WaitsGranted: 1, Cooldowns: 1, Most: 100,
	}
	if stats != want {
		t.Errorf("the story has\n%+v, wanted\n%+v", stats, want)
	}
}

func granted(applied *fsm.Applied) *logpb.Granted { return applied.Results[0].GetGranted() }

// TestStory_EachLieIsFound: the judge finds each change to one entry of the story.
func TestStory_EachLieIsFound(t *testing.T) {
	type lie struct {
		rule  string
		index uint64
		tell  func(applied *fsm.Applied)
	}
	replaceEvent := func(change func(*effect.Event)) func(*fsm.Applied) {
		return func(a *fsm.Applied) {
			for i := range a.Events {
				change(&a.Events[i])
			}
		}
	}
	for name, l := range map[string]lie{
		"more than usable is granted": {"ceiling", 8, func(a *fsm.Applied) { granted(a).Items[0].Amount = 30 }},
		"less is granted than asked":  {"all-or-nothing", 8, func(a *fsm.Applied) { granted(a).Items = nil }},
		"a fence comes again": {"fence-order", 8, func(a *fsm.Applied) {
			granted(a).Fence = 2
			replaceEvent(func(e *effect.Event) { e.Fence = 2 })(a)
		}},
		"a lease's number comes again": {"fence-order", 8, func(a *fsm.Applied) {
			granted(a).Lease = 2
			replaceEvent(func(e *effect.Event) { e.Lease = 2 })(a)
		}},
		"a lease ends early": {"early-expiry", 8, func(a *fsm.Applied) {
			a.Events = append(a.Events, effect.Event{Kind: effect.EventExpired, Lease: 2, Fence: 2})
		}},
		"a lease does not end": {"late-expiry", 12, func(a *fsm.Applied) {
			a.Events = slices.DeleteFunc(a.Events, func(e effect.Event) bool { return e.Lease == 1 })
		}},
		"a dead fence renews": {"dead-fence", 13, func(a *fsm.Applied) {
			a.Results[0] = &logpb.Result{Kind: &logpb.Result_Renewed{Renewed: &logpb.Renewed{DeadlineNs: 1 << 60}}}
		}},
		"a lease ends twice": {"dead-fence", 13, func(a *fsm.Applied) {
			a.Events = append(a.Events, effect.Event{Kind: effect.EventExpired, Lease: 1, Fence: 1})
		}},
		"a request is carried out again": {"once", 4, func(a *fsm.Applied) {
			granted(a).Lease, granted(a).Fence = 9, 9
		}},
		"a result is missing":           {"once", 8, func(a *fsm.Applied) { a.Results = nil }},
		"more comes back than went out": {"conservation", 5, func(a *fsm.Applied) { a.Results[0].GetSettled().Returned[0].Amount = 9 }},
		"more is consumed than is held": {"conservation", 3, func(a *fsm.Applied) { granted(a).Consumed.Items[0].Amount = 9 }},
		"more is released than is held": {"conservation", 15, func(a *fsm.Applied) { a.Results[0].GetReleased().Returned[0].Amount = 9 }},
		"a closed quota grants": {"cooldown", 7, func(a *fsm.Applied) {
			a.Results[0] = &logpb.Result{Kind: &logpb.Result_Granted{Granted: &logpb.Granted{
				Lease: 3, Fence: 3, Items: []*logpb.GrantedItem{{Quota: "org/a", Amount: 1}}, DeadlineNs: 1 << 60,
			}}}
			a.Events = []effect.Event{{Kind: effect.EventGranted, Lease: 3, Fence: 3}}
		}},
		"a slot comes free before its grace is over": {"grace", 13, func(a *fsm.Applied) { *a = serve(a, 1) }},
		"a lower class is served first":              {"class-order", 14, func(a *fsm.Applied) { *a = serve(a, 1) }},
		"time goes back":                             {"clock", 8, func(a *fsm.Applied) { a.Clock.Now -= int64(time.Second) }},
		"time is not the entry's":                    {"clock", 8, func(a *fsm.Applied) { a.Clock.Now++ }},
	} {
		t.Run(name, func(t *testing.T) {
			violations, _ := play(t, func(index uint64, _ *logpb.Entry, applied *fsm.Applied) {
				if index == l.index {
					l.tell(applied)
				}
			})
			if !slices.ContainsFunc(violations, func(v Violation) bool { return v.Name == l.rule && v.Index >= l.index }) {
				t.Errorf("%s did not find it, but %+v", l.rule, violations)
			}
		})
	}
}

// serve grants the waiting ticket of the slot.
func serve(a *fsm.Applied, ticket uint64) fsm.Applied {
	served := *a
	granted := &logpb.Granted{
		Lease: 5, Fence: 5, Ticket: ticket, Class: 2, Items: []*logpb.GrantedItem{{Quota: "s", Amount: 1}}, DeadlineNs: 1 << 60,
		AskedTtlNs: int64(time.Second),
	}
	served.Events = []effect.Event{{
		Kind: effect.EventGranted, Quota: "s", Lease: 5, Fence: 5, Ticket: ticket, Amount: 1,
		Result: &logpb.Result{Kind: &logpb.Result_Granted{Granted: granted}},
	}}
	return served
}

// TestStory_EndlessWaitIsFound: the waiters are not served, and their time passes.
func TestStory_EndlessWaitIsFound(t *testing.T) {
	violations, _ := play(t, func(index uint64, entry *logpb.Entry, applied *fsm.Applied) {
		if index >= 14 { // as if nothing happened for six seconds
			entry.StampNs += int64(6 * time.Second)
			applied.Clock.Now = entry.StampNs
			applied.Events = nil
		}
	})
	if !slices.ContainsFunc(violations, func(v Violation) bool { return v.Name == "late-wait" && v.Index == 14 }) {
		t.Errorf("%+v", violations)
	}
}
