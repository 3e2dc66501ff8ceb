package fsm

import (
	"bytes"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// A lived history is searched for each decision that has no kind of command, result or event of its own.

// burn reports three calls: each lowers the remainder of one window and names the reset of another.
func (d *livedDrawing) burn() {
	if d.IntN(4) > 0 {
		return
	}
	for left := range 3 {
		d.now += 20 * time.Second
		d.apply(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
			Holder: "h0", Consume: true, Items: []*logpb.Item{{Quota: "daily"}, {Quota: "reported"}},
		}}})
		if len(d.leases) == 0 {
			return
		}
		g := d.leases[len(d.leases)-1]
		d.now += 100 * time.Millisecond
		d.apply(&logpb.Command{Caller: pick(d.Rand, []string{"token:a", "token:a", "token:b"}), Kind: &logpb.Command_Report{Report: &logpb.Report{
			Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
				{Quota: "daily", Cause: logpb.Cause_CAUSE_OK, Remaining: new(int64(3900 - 1900*left))},
				{Quota: "reported", Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: new(int64(30*time.Minute + d.error()))},
			},
		}}})
	}
}

// foresee reports that a window will not last, and then asks for a little of it behind a waiter for more.
func (d *livedDrawing) foresee() {
	if d.foreseen || d.IntN(8) > 0 {
		return
	}
	for left := int64(1000); left > 0; left -= 300 {
		d.now += 5 * time.Second
		d.apply(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
			Holder: "h0", Consume: true, Items: []*logpb.Item{{Quota: "foreseen"}},
		}}})
		if len(d.leases) == 0 {
			return
		}
		g := d.leases[len(d.leases)-1]
		d.apply(&logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{
			Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{{Quota: "foreseen", Cause: logpb.Cause_CAUSE_OK, Remaining: new(left)}},
		}}})
	}
	ask := func(amount int64, wait time.Duration) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
			Holder: "h0", WaitNs: int64(wait), Items: []*logpb.Item{{Quota: "foreseen", Amount: &amount}},
		}}}
	}
	d.apply(ask(60, 0), ask(90, 5*time.Minute), ask(1, 0))
}

// error draws the error of a reported reset: mostly none.
func (d *livedDrawing) error() time.Duration {
	return pick(d.Rand, []time.Duration{0, 0, 0, 900 * time.Millisecond, -900 * time.Millisecond, 4 * time.Minute, 12 * time.Minute})
}

// notices records the effects that a command is about to have.
func (d *livedDrawing) notices(c *logpb.Command) {
	for _, definition := range c.GetApplyQuotas().GetQuotas() {
		q := d.m.quotas.named(definition.Name)
		if q == nil || !q.rule.Paced() || q.pacer.paidUntil <= d.m.clock.Now {
			continue
		}
		same := definition.GetRate().GetLimit() == q.definition.GetRate().GetLimit()
		d.kept, d.repriced = d.kept || same, d.repriced || !same
	}
}

// everyWay reports whether every decision without a command or event of its own occurred.
func (d *livedDrawing) everyWay() bool {
	return d.doubted && d.repriced && d.kept && d.bounded && d.foreseen && d.opensFirst
}

// before applies an entry to a copy of the state at the level before levels.FirstToOpen.
func (d *livedDrawing) before(entry *logpb.Entry) Applied {
	copied, err := Restore(bytes.NewReader(snapshotOf(d.t, d.m.Freeze())))
	if err != nil {
		d.t.Fatal(err)
	}
	older := proto.CloneOf(entry)
	older.Version, copied.featureLevel = levels.FirstToOpen-1, levels.FirstToOpen-1
	return copied.Apply(d.index, 1, d.encoded(older))
}
