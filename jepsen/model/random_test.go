package model

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

const (
	sec = int64(time.Second)
	mil = int64(time.Millisecond)
	// birth is the Unix time at which a random cluster is formed. Half an hour later a month, a day and an hour end, so that histories cross
	// all of them.
	birth = int64(1_795_995_000) * sec // 2026-11-29 23:30 UTC
)

// draws is the source of random histories: rapid or, for long ones, a random number generator.
type draws interface {
	intn(n int, what string) int
}

type fromRapid struct{ t *rapid.T }

func (d fromRapid) intn(n int, what string) int { return rapid.IntRange(0, n-1).Draw(d.t, what) }

// drive draws commands that mostly make sense, applies them to the state machine, and has the model judge the results.
type drive struct {
	draws
	machine *fsm.Machine
	judge   *Judge
	index   uint64
	now     int64
	wall    int64 // Unix time minus cluster time
	leases  []*logpb.Granted
	tickets []uint64
	opened  []uint64
	seq     map[uint64]uint64
	sent    []*logpb.Command
	ops     uint64
	last    fsm.Applied
	entries []*logpb.Entry
	trace   bool
	// defined are the quotas' definitions, names their names.
	defined func() []*logpb.Quota
	names   []string
	// withPolicy says that there are policies, workflows, tasks and overrides too; attempts are those of tasks.
	withPolicy bool
	attempts   []*logpb.EndTask
	// version is that of entries: some histories begin with the version before the newest.
	version uint32
}

func newDrive(d draws, withPolicy bool) *drive {
	made := &drive{
		draws: d, machine: fsm.New(), judge: New(), seq: map[uint64]uint64{}, wall: birth, trace: true, defined: quotasOf, withPolicy: withPolicy,
		version: fsm.EntryVersion,
	}
	if made.oneIn(2, "an earlier level") {
		made.version--
	}
	if withPolicy {
		made.defined = policiesOf
	}
	made.names = names1(made.defined())
	return made
}

// found applies the definitions.
func (d *drive) found() []Violation {
	apply := &logpb.ApplyQuotas{Quotas: d.defined()}
	if d.withPolicy {
		apply.Workflows, apply.ReplaceWorkflows = workflowsOf(), true
		apply.Holders, apply.ReplaceHolders = []*logpb.HolderRule{{Pattern: "boss", Class: 0}, {Pattern: "low-*", Class: 2}}, true
	}
	return d.apply(&logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: apply}})
}

func pick[T any](d draws, from []T, what string) T { return from[d.intn(len(from), what)] }

// oneIn is true once in n draws.
func (d *drive) oneIn(n int, what string) bool { return d.intn(n, what) == n-1 }

func (d *drive) between(least, most int64, what string) int64 {
	return least + int64(d.intn(int(most-least+1), what))
}

func (d *drive) apply(commands ...*logpb.Command) []Violation {
	d.index++
	early, late := d.between(0, sec, "early"), d.between(0, sec, "late")
	if d.index > 20 && d.oneIn(150, "clocks are ahead once") {
		ahead := d.between(2*sec, 400*24*3600*sec, "ahead")
		early, late = early-ahead, late+ahead
	}
	if d.version < fsm.EntryVersion && d.oneIn(60, "the level rises") {
		d.version++
	}
	entry := &logpb.Entry{
		Version: d.version, StampNs: d.now, WallEarlyNs: d.wall + d.now - early, WallLateNs: d.wall + d.now + late, Commands: commands,
	}
	if d.oneIn(10, "no sample") && d.index > 1 {
		entry.WallEarlyNs, entry.WallLateNs = 0, 0
	}
	payload, err := proto.Marshal(entry)
	if err != nil {
		panic(err)
	}
	if d.trace {
		d.entries = append(d.entries, entry)
	}
	d.last = d.machine.Apply(d.index, 1, payload)
	violations := d.judge.Entry(entry, &d.last)
	d.learn()
	return violations
}

// learn records the objects that results and events name.
func (d *drive) learn() {
	for _, r := range d.last.Results {
		if g := r.GetGranted(); g != nil {
			d.leases = append(d.leases, g)
		}
		if w := r.GetWaiting(); w != nil {
			d.tickets = append(d.tickets, w.Ticket)
		}
		if s := r.GetSessionOpened(); s != nil {
			d.opened = append(d.opened, s.Session)
		}
	}
	d.learnTasks()
	for _, e := range d.last.Events {
		if g := e.Result.GetGranted(); g != nil {
			d.leases = append(d.leases, g)
		}
	}
}

func rate(name, parent string, limit, per int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Parent: parent, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit, PerNs: per}}}
}

func window(name, parent string, w *logpb.Window) *logpb.Quota {
	return &logpb.Quota{Name: name, Parent: parent, Rule: &logpb.Quota_Window{Window: w}}
}

func slots(name, parent string, limit, grace int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Parent: parent, Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: limit, GraceNs: grace}}}
}

// quotasOf are quotas of every kind, alone and in trees, mixed ones included.
func quotasOf() []*logpb.Quota {
	burst := rate("burst", "", 600, 60*sec)
	burst.GetRate().Burst = 40
	clamped := rate("clamped", "", 30, 10*sec)
	clamped.ClampHold, clamped.HeadroomPpm, clamped.DefaultEstimate = true, 200_000, 2
	ends := rate("ends", "", 40, 10*sec)
	ends.Charged, ends.MaxCallNs = logpb.Charged_CHARGED_END, 5*sec
	most := rate("most", "", 40, 20*sec)
	most.Settle = logpb.SettleMode_SETTLE_MODE_MAX
	during := window("during", "", &logpb.Window{Limit: 60, EveryNs: 40 * sec, SkewNs: 300 * mil})
	during.Charged, during.MaxCallNs = logpb.Charged_CHARGED_DURING, 30*sec
	return []*logpb.Quota{
		clamped, burst, ends, most, during,
		rate("org", "", 60, 10*sec), rate("org/team", "org", 40, 10*sec), rate("org/team/agent", "org/team", 25, 5*sec),
		window("hour", "", &logpb.Window{Limit: 200, Every: logpb.Every_EVERY_HOUR}),
		window("month", "", &logpb.Window{Limit: 500, Every: logpb.Every_EVERY_MONTH}),
		window("minute", "", &logpb.Window{Limit: 60, EveryNs: 60 * sec, SkewNs: 200 * mil}),
		window("minute/part", "minute", &logpb.Window{Limit: 40, EveryNs: 20 * sec, SkewNs: 100 * mil}),
		rate("minute/rate", "minute", 30, 10*sec),
		window("reset", "", &logpb.Window{Limit: 80, EveryNs: 60 * sec, Anchored: true, SkewNs: 200 * mil}),
		slots("slots", "", 6, 0), slots("slots/part", "slots", 4, 2*sec),
		rate("key/a", "", 30, 10*sec), rate("key/b", "", 30, 10*sec), pool("keys", false, "key/a", "key/b"),
		slots("seat/a", "", 2, sec), slots("seat/b", "", 3, sec), pool("seats", true, "seat/a", "seat/b"),
	}
}

// pool makes a pool whose members a and b are two quotas.
func pool(name string, sticky bool, a, b string) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Pool{Pool: &logpb.Pool{
		Members: []*logpb.PoolMember{{Name: "a", Quota: a}, {Name: "b", Quota: b}}, Sticky: sticky,
	}}}
}

func names1(quotas []*logpb.Quota) (names []string) {
	for _, q := range quotas {
		names = append(names, q.Name)
	}
	return names
}

var allHolders = []string{"boss", "std-1", "std-2", "std-3", "low-1", "low-2"}

func (d *drive) item() *logpb.Item {
	it := &logpb.Item{Quota: pick(d, d.names, "quota")}
	if !d.oneIn(6, "estimate") {
		it.Amount = new(d.between(1, 9, "amount"))
		if d.oneIn(40, "huge") {
			it.Amount = new(d.between(20, 90, "much"))
		}
	}
	return it
}

func (d *drive) items(most int) []*logpb.Item {
	var items []*logpb.Item
next:
	for range d.intn(most, "items") + 1 {
		it := d.item()
		for _, other := range items {
			if other.Quota == it.Quota {
				continue next
			}
		}
		items = append(items, it)
	}
	return items
}

// named draws a lease, mostly a recent one, sometimes with a wrong fence.
func (d *drive) named() (g *logpb.Granted, fence uint64) {
	if len(d.leases) == 0 {
		return &logpb.Granted{Lease: 1}, 1
	}
	g = d.leases[len(d.leases)-1-min(d.intn(30, "lease"), len(d.leases)-1)]
	if d.intn(5, "alive") > 0 {
		for range 10 {
			if valid, _ := d.machine.State().CheckFence(g.Lease, g.Fence, d.machine.State().Clock()); valid {
				break
			}
			g = d.leases[len(d.leases)-1-min(d.intn(40, "lease"), len(d.leases)-1)]
		}
	}
	fence = g.Fence
	if d.oneIn(25, "wrong fence") {
		fence += uint64(d.intn(3, "which")) - 1
	}
	return g, fence
}

func (d *drive) op() uint64 {
	switch d.intn(8, "op") {
	case 0:
		d.ops++
		return d.ops
	case 1, 2:
		return uint64(d.intn(5, "old op"))
	}
	return uint64(d.intn(2, "first op")) + 1
}

// some draws items of a grant, with amounts from 0 to slightly too many.
func (d *drive) some(items []*logpb.GrantedItem) []*logpb.Item {
	var some []*logpb.Item
	for _, it := range items {
		switch d.intn(4, "this item") {
		case 1, 2:
			some = append(some, &logpb.Item{Quota: it.Quota, Amount: new(min(d.between(1, it.Amount+1, "part"), d.between(0, 9, "less")))})
		case 3:
			some = append(some, &logpb.Item{Quota: it.Quota})
		}
	}
	return some
}

func (d *drive) reserve() *logpb.Command {
	r := &logpb.Reserve{Holder: pick(d, allHolders, "holder"), Items: d.items(3)}
	r.Consume = d.oneIn(2, "consume")
	r.TtlNs = pick(d, []int64{0, sec, 3 * sec, 10 * sec, 20 * sec}, "ttl")
	if d.oneIn(2, "waits") {
		r.WaitNs = pick(d, []int64{sec, 10 * sec, 60 * sec}, "wait")
	}
	r.Resume = d.oneIn(40, "resume")
	if d.withPolicy {
		r.Emergency, r.Fallback = d.oneIn(4, "emergency"), d.oneIn(3, "fallback")
	}
	if d.oneIn(12, "pins") {
		r.Member = pick(d, []string{"a", "b"}, "member")
	}
	if d.oneIn(6, "classed") {
		r.Class = new(int32(d.intn(3, "class")))
	}
	return d.charged(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: r}})
}

// charged gives a command a caller, or none.
func (d *drive) charged(command *logpb.Command) *logpb.Command {
	command.Caller = pick(d, []string{"", "token:a", "token:b", "address:192.0.2.1"}, "caller")
	command.PerHolder = command.Caller == "address:192.0.2.1"
	if strings.HasPrefix(command.Caller, "token:") && d.oneIn(4, "reach") {
		command.By = "*"
	}
	command.Operator = d.oneIn(6, "operator")
	return command
}

func (d *drive) settle(g *logpb.Granted, fence uint64) *logpb.Command {
	s := &logpb.Settle{Lease: g.Lease, Fence: fence, Op: d.op(), Final: d.oneIn(4, "final"), Release: d.oneIn(8, "release")}
	items := g.Items
	if g.Consumed != nil {
		items = g.Consumed.Items
	}
	if d.oneIn(2, "unspent") {
		s.Unspent = d.some(items)
	}
	if d.oneIn(2, "actual") {
		s.Actual = d.some(items)
		for _, it := range s.Actual {
			if it.Amount == nil {
				it.Amount = new(d.between(0, 12, "actual amount"))
			}
		}
	}
	return &logpb.Command{Kind: &logpb.Command_Settle{Settle: s}}
}

func (d *drive) report(g *logpb.Granted, fence uint64) *logpb.Command {
	r := &logpb.Report{Lease: g.Lease, Fence: fence, Op: 1}
	if d.oneIn(5, "other op") {
		r.Op = d.op()
	}
	for _, it := range g.Items {
		s := &logpb.Signal{Quota: it.Quota, Cause: logpb.Cause(d.intn(7, "cause") + 1)}
		if d.intn(3+d.often(-1), "ok") > 0 {
			s.Cause = logpb.Cause_CAUSE_OK // otherwise everything would be closed all the time
		}
		if d.oneIn(3, "remaining") {
			s.Remaining = new(d.between(0, 60, "left"))
		}
		if d.oneIn(8, "names a limit") {
			s.Limit = new(d.between(0, 60, "limit"))
		}
		if d.oneIn(2, "reset") {
			s.ResetAfterNs = new(pick(d, []int64{d.between(0, 70*sec, "after"), 10 * sec, 60 * sec}, "which"))
		}
		if d.oneIn(2, "retry") {
			s.RetryAfterNs = new(d.between(0, 5*sec, "retry after"))
		}
		r.Signals = append(r.Signals, s)
	}
	return &logpb.Command{Kind: &logpb.Command_Report{Report: r}}
}

func (d *drive) admin(lease uint64) *logpb.Command {
	apply := func(quotas ...*logpb.Quota) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: quotas, DryRun: d.oneIn(8, "dry")}}}
	}
	switch d.intn(11, "admin") {
	case 0:
		return &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: lease}}}
	case 1:
		rules := []*logpb.HolderRule{{Pattern: "boss", Class: 0}, {Pattern: "low-*", Class: 2, Weight: int32(d.between(1, 4, "weight"))}}
		return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Holders: rules, ReplaceHolders: true}}}
	case 2:
		return apply(rate("clamped", "", d.between(0, 60, "limit"), 10*sec))
	case 3:
		q := d.defined()[1+d.intn(len(d.names)-1, "changed")]
		limit := d.between(2, 80, "new limit")
		if r := q.GetRate(); r != nil {
			r.Limit = limit
		} else if w := q.GetWindow(); w != nil {
			w.Limit = limit
		} else if s := q.GetSlots(); s != nil {
			s.Limit = limit / 10
		}
		return apply(q)
	case 4, 5:
		return apply(d.defined()...)
	case 6:
		return &logpb.Command{Kind: &logpb.Command_RaiseEpoch{RaiseEpoch: &logpb.RaiseEpoch{Epoch: uint32(d.intn(6, "epoch"))}}}
	case 7:
		return &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{
			SessionIdleNs: new(pick(d, []int64{20 * sec, 3600 * sec}, "idle")), MaxWaiters: new(d.between(3, 100, "waiters")),
			KeyLifeNs: new(pick(d, []int64{5 * sec, 100 * sec}, "key life")),
			MaxLeases: new(d.between(20, 1000, "leases")), OperatorsPpm: new(pick(d, []int64{0, 62_500, 500_000}, "operators")),
		}}}
	}
	if d.oneIn(3, "reset the clock") {
		return &logpb.Command{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}}
	}
	if d.oneIn(2, "reopen") {
		return &logpb.Command{Kind: &logpb.Command_ReopenQuota{ReopenQuota: &logpb.ReopenQuota{Quota: pick(d, d.names, "reopened")}}}
	}
	return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{
		Quota: pick(d, d.names, "deleted"), Force: d.oneIn(2, "force"),
	}}}
}

func (d *drive) command() *logpb.Command {
	if d.withPolicy && d.oneIn(4, "of policy") {
		return d.ofPolicy()
	}
	g, fence := d.named()
	switch d.intn(24, "kind") {
	case 0, 1, 2, 3, 4, 5, 6, 7:
		return d.reserve()
	case 8, 9, 10:
		return &logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
			Lease: g.Lease, Fence: fence, Op: d.op(), Items: d.some(g.Items), DoneBelow: uint64(max(d.intn(12, "done below")-8, 0)),
		}}}
	case 11, 12, 13:
		return d.settle(g, fence)
	case 14, 15:
		return &logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: g.Lease, Fence: fence, Items: d.some(g.Items)}}}
	case 16:
		return &logpb.Command{Kind: &logpb.Command_Renew{Renew: &logpb.Renew{
			Lease: g.Lease, Fence: fence, TtlNs: pick(d, []int64{0, sec, 30 * sec}, "renewed"),
		}}}
	case 17:
		if len(d.tickets) > 0 {
			ticket := d.tickets[len(d.tickets)-1-min(d.intn(8, "ticket"), len(d.tickets)-1)]
			return &logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: ticket}}}
		}
	case 18, 19:
		return d.report(g, fence)
	case 20:
		if d.oneIn(4, "admin now") {
			return d.admin(g.Lease)
		}
	case 21:
		if d.oneIn(3, "session now") {
			return d.session()
		}
	case 22:
		if len(d.sent) > 0 {
			return d.again()
		}
	}
	return d.identified(d.reserve())
}

// session opens or closes a session.
func (d *drive) session() *logpb.Command {
	if len(d.opened) > 0 && d.oneIn(4, "close") {
		closes := &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}
		return d.charged(&logpb.Command{Session: pick(d, d.opened, "closed"), Kind: closes})
	}
	return d.charged(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "x"}}})
}

// identified gives a command an identity: a session's number or a key.
func (d *drive) identified(command *logpb.Command) *logpb.Command {
	if len(d.opened) > 0 && d.oneIn(2, "in a session") {
		command.Session = d.opened[len(d.opened)-1-min(d.intn(3, "session"), len(d.opened)-1)]
		d.seq[command.Session]++
		command.Seq = d.seq[command.Session]
		if d.oneIn(10, "acknowledges") && command.Seq > 3 {
			command.AckedBelow = command.Seq - 3
		}
	} else {
		command.IdempotencyKey = fmt.Sprint("key-", len(d.sent))
	}
	d.sent = append(d.sent, command)
	return command
}

// again repeats a request, sometimes with other content.
func (d *drive) again() *logpb.Command {
	old := d.sent[len(d.sent)-1-min(d.intn(20, "again"), len(d.sent)-1)]
	if d.oneIn(8, "changed") {
		old = proto.CloneOf(old)
		old.Kind = d.reserve().Kind
	}
	if old.By != "" && d.oneIn(4, "another caller") {
		old = proto.CloneOf(old)
		old.Caller = pick(d, []string{"token:a", "token:b"}, "caller")
	}
	return old
}

// step lets some time pass and applies an entry of a few commands.
func (d *drive) step() []Violation {
	d.now += pick(d, []int64{0, mil, 40 * mil, 100 * mil, 300 * mil, sec}, "sleep")
	if d.oneIn(40+d.often(160), "sleeps long") {
		d.now += d.between(10, 400, "long") * sec
	}
	var commands []*logpb.Command
	for range d.intn(5, "commands") {
		commands = append(commands, d.command())
	}
	return d.apply(commands...)
}

// audit compares the model's books with the state machine's view of its quotas.
func (d *drive) audit() error {
	for name, q := range d.judge.quotas {
		view, ok := d.machine.State().Quota(name, d.machine.State().Clock())
		if !ok {
			return fmt.Errorf("quota %s is gone", name)
		}
		if q.rule.kind == poolKind {
			if int(view.Waiting) != q.waiting {
				return fmt.Errorf("%s has %d waiting, the model %d", name, view.Waiting, q.waiting)
			}
			continue // it counts nothing
		}
		q.advance(d.judge.clock)
		held := q.held
		if q.rolls(d.judge.clock) {
			held = 0 // the view closes it
		}
		if view.Held != held && !q.rule.anchored { // its holds end with the next view
			return fmt.Errorf("%s has %d held, the model %d", name, view.Held, held)
		}
		if view.Consumed < q.surely.sum || view.Consumed > q.perhaps.sum && !q.rule.anchored {
			return fmt.Errorf("%s has %d counted, the model %d to %d", name, view.Consumed, q.surely.sum, q.perhaps.sum)
		}
		if int(view.Leases) != q.leases || int(view.Waiting) != q.waiting {
			return fmt.Errorf("%s has %d leases and %d waiting, the model %d and %d", name, view.Leases, view.Waiting, q.leases, q.waiting)
		}
	}
	if counts := d.machine.State().Counts(); int(counts.Leases) != len(d.judge.leases) || int(counts.Waiting) != len(d.judge.waiting) {
		return fmt.Errorf("%d leases, %d waiting, the model has %d and %d", counts.Leases, counts.Waiting, len(d.judge.leases),
			len(d.judge.waiting))
	}
	return nil
}

// answered formats the last entries.
func (d *drive) answered(most int) string {
	var b bytes.Buffer
	for i := max(0, len(d.entries)-most); i < len(d.entries); i++ {
		e := d.entries[i]
		fmt.Fprintf(&b, "entry %d at %v, wall %d to %d: %v\n", i+1, time.Duration(e.StampNs), e.WallEarlyNs, e.WallLateNs, e.Commands)
	}
	fmt.Fprintf(&b, "the results are %v\nevents %+v\n", d.last.Results, d.last.Events)
	return b.String()
}

// TestRandomHistories: the model allows all results of the state machine for random commands.
func TestRandomHistories(t *testing.T) { checkRandom(t, false) }

func checkRandom(t *testing.T, withPolicy bool) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		d := newDrive(fromRapid{rt}, withPolicy)
		check := func(violations []Violation) {
			if len(violations) > 0 {
				rt.Fatalf("%+v\n%s", violations[0], d.answered(60))
			}
			if err := d.audit(); err != nil {
				rt.Fatalf("%v\n%s", err, d.answered(60))
			}
		}
		check(d.found())
		for range rapid.IntRange(1, 150).Draw(rt, "entries") {
			check(d.step())
		}
	})
}

// seeded draws from a random number generator.
type seeded struct{ *rand.Rand }

func (s seeded) intn(n int, _ string) int { return s.IntN(n) }

// TestLongHistories: as above, for so long that quotas fill up, windows close and sessions expire, and each rule has cases.
func TestLongHistories(t *testing.T) { checkLong(t, false) }

func checkLong(t *testing.T, withPolicy bool) (sum Stats) {
	t.Helper()
	steps := 20_000
	if testing.Short() {
		steps = 3000
	}
	for seed := range uint64(3) {
		d := newDrive(seeded{rand.New(rand.NewPCG(seed, 1))}, withPolicy)
		violations := d.found()
		for i := 0; i < steps && len(violations) == 0; i++ {
			violations = d.step()
			if i%50 == 0 {
				if err := d.audit(); err != nil {
					t.Fatalf("seed %d, entry %d: %v", seed, d.index, err)
				}
			}
		}
		if len(violations) > 0 {
			t.Fatalf("seed %d: %+v\n%s", seed, violations[0], d.answered(40))
		}
		stats := d.judge.Stats()
		t.Logf("seed %d: %+v", seed, stats)
		of, to := reflect.ValueOf(stats), reflect.ValueOf(&sum).Elem()
		for i := range of.NumField() {
			to.Field(i).SetInt(to.Field(i).Int() + of.Field(i).Int())
		}
	}
	return sum
}
