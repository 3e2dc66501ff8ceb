package model

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// teller plays commands on an anchored window of a minute, a calendar hour and a rate, one per entry.
type teller struct {
	t       *testing.T
	machine *fsm.Machine
	judge   *Judge
	index   uint64
	now     int64
	found   []Violation
}

func newTeller(t *testing.T) *teller {
	l := &teller{t: t, machine: fsm.New(), judge: New(), now: sec}
	window := &logpb.Quota{Name: "p", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 100, EveryNs: 60 * sec, Anchored: true}}}
	day := &logpb.Quota{Name: "d", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 100, Every: logpb.Every_EVERY_DAY}}}
	free := &logpb.Quota{Name: "r", Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: 1000, PerNs: 60 * sec}}}
	l.do(0, &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{window, day, free}}}}, nil)
	return l
}

// do applies one command after a while. Before it is judged, spoil may change its outcome.
func (l *teller) do(after int64, command *logpb.Command, spoil func(*fsm.Applied)) *logpb.Result {
	l.t.Helper()
	l.now += after
	l.index++
	entry := &logpb.Entry{
		Version: fsm.EntryVersion, StampNs: l.now, WallEarlyNs: birth + l.now, WallLateNs: birth + l.now, Commands: []*logpb.Command{command},
	}
	payload, err := proto.Marshal(entry)
	if err != nil {
		l.t.Fatal(err)
	}
	applied := l.machine.Apply(l.index, 1, payload)
	result := proto.CloneOf(applied.Results[0])
	if spoil != nil {
		applied.Results[0] = proto.CloneOf(applied.Results[0])
		spoil(&applied)
	}
	l.found = append(l.found, l.judge.Entry(entry, &applied)...)
	return result
}

func spends(holder string, items ...*logpb.Item) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{Holder: holder, Items: items, Consume: true, TtlNs: 600 * sec}}}
}

func item1(quota string, amount int64) *logpb.Item { return &logpb.Item{Quota: quota, Amount: &amount} }

func tellsReset(lease uint64, after int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{Lease: lease, Fence: lease, Op: 1, Signals: []*logpb.Signal{
		{Quota: "p", Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: &after},
	}}}}
}

func used(lease uint64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Settle{Settle: &logpb.Settle{Lease: lease, Fence: lease, Op: 1, Final: true}}}
}

func isLearned(a *fsm.Applied) { a.Results[0].GetReported().Quotas[0].ResetLearned = true }

// TestClockResets_AreJudged: the model allows what one caller's report, a second one's and an operator's command free, and finds any
// excess.
func TestClockResets_AreJudged(t *testing.T) {
	grants := func(lease uint64, amount int64) func(*fsm.Applied) {
		return func(a *fsm.Applied) {
			a.Results[0] = &logpb.Result{Kind: &logpb.Result_Granted{Granted: &logpb.Granted{
				Lease: lease, Fence: lease, Class: 1, Items: []*logpb.GrantedItem{{Quota: "p", Amount: amount}}, DeadlineNs: 1 << 50,
			}}}
			a.Events = []effect.Event{{Kind: effect.EventGranted, Quota: "p", Holder: "a", Lease: lease, Fence: lease, Amount: amount}}
		}
	}
	plain := func(amount int64) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{Holder: "a", Items: []*logpb.Item{item1("p", amount)}}}}
	}
	reopen := &logpb.Command{Kind: &logpb.Command_ReopenQuota{ReopenQuota: &logpb.ReopenQuota{Quota: "p"}}}
	early := func(l *teller) {
		l.do(0, spends("a", item1("p", 50)), nil)
		l.do(0, spends("b", item1("p", 50)), nil)
		l.do(0, used(1), nil)
		l.do(0, used(2), nil)
		l.do(0, tellsReset(1, 10*sec), nil)
	}
	for name, c := range map[string]struct {
		play func(l *teller)
		rule string
	}{
		"a second caller's report frees": {func(l *teller) {
			early(l)
			l.do(0, tellsReset(2, 10*sec), nil)
			if r := l.do(15*sec, plain(100), nil); r.GetGranted() == nil {
				l.t.Fatalf("not freed: %v", r)
			}
		}, ""},
		"so does the operator's": {func(l *teller) {
			early(l)
			l.do(0, reopen, nil)
			if r := l.do(15*sec, plain(100), nil); r.GetGranted() == nil {
				l.t.Fatalf("not freed: %v", r)
			}
		}, ""},
		"one caller's report does not": {func(l *teller) {
			early(l)
			l.do(15*sec, plain(100), grants(3, 100))
		}, "ceiling"},
		"an early reset is learned of one caller": {func(l *teller) {
			early(l)
			l.do(15*sec, spends("a", item1("p", 1)), nil)
			l.do(0, tellsReset(1, 10*sec), isLearned)
		}, "reset"},
		"a window that has closed is left out": {func(l *teller) {
			l.do(0, &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
				Holder: "a", Items: []*logpb.Item{item1("r", 1), item1("p", 1)}, TtlNs: 600 * sec,
			}}}, nil)
			l.do(0, spends("a", item1("p", 1)), nil)
			l.do(0, tellsReset(2, 10*sec), nil)
			l.do(11*sec, spends("a", item1("p", 1)), nil)
			l.do(0, &logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{Lease: 1, Fence: 1, Op: 1}}}, func(a *fsm.Applied) {
				if a.Results[0].GetFailure().GetReason() != logpb.Reason_REASON_ITEM_CLOSED {
					l.t.Fatalf("consumed: %v", a.Results[0])
				}
				a.Results[0] = &logpb.Result{Kind: &logpb.Result_Consumed{Consumed: &logpb.Consumed{
					Op: 1, Items: []*logpb.GrantedItem{{Quota: "r", Amount: 1, UntilNs: l.now + 2*sec}}, SpendByNs: l.now + 2*sec, TransitNs: sec,
				}}}
			})
		}, "item-closed"},
		"one caller closes a day's quota for longer than an hour": {func(l *teller) {
			l.do(0, spends("a", item1("d", 1)), nil)
			wait := 10 * 3600 * sec
			l.do(0, &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{Lease: 1, Fence: 1, Op: 1, Signals: []*logpb.Signal{
				{Quota: "d", Cause: logpb.Cause_CAUSE_EXHAUSTED, RetryAfterNs: &wait},
			}}}}, func(a *fsm.Applied) {
				for i := range a.Events {
					if a.Events[i].Kind == effect.EventCooldown {
						a.Events[i].Duration = 2 * 3600 * sec
					}
				}
			})
		}, "cooldown"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTeller(t)
			c.play(l)
			switch {
			case c.rule == "" && len(l.found) > 0:
				t.Errorf("%+v", l.found)
			case c.rule != "" && !slices.ContainsFunc(l.found, func(v Violation) bool { return v.Name == c.rule }):
				t.Errorf("%s did not find it, but %+v", c.rule, l.found)
			}
		})
	}
}
