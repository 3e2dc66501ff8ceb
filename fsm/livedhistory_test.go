package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// livedOperation is an operation that was consumed and may still be settled.
type livedOperation struct {
	lease, fence, op uint64
	items            []*logpb.GrantedItem
}

// livedAttempt is a running attempt of a task.
type livedAttempt struct {
	task  string
	fence uint64
}

// livedDrawing draws commands and remembers the objects that answers name, the latest last.
type livedDrawing struct {
	*rand.Rand
	t          *testing.T
	m          *Machine
	index      uint64
	now, ahead time.Duration
	recorded   bytes.Buffer
	tally      livedTally

	leases     []*logpb.Granted
	operations []livedOperation
	tickets    []uint64
	sessions   []uint64
	attempts   []livedAttempt
	tasks      []string
	spares     []string
	flows      []string
	nextOp     uint64
	// left is the provider's remainder of a window.
	left  int64
	seq   map[uint64]uint64
	named int
	epoch uint32
	// doubted: one caller's report delayed a reset. repriced, kept: a rate's rule changed while its pacer was ahead,
	// with or without its price. bounded: an overrun moved a pacer as far ahead as possible. foreseen: a refusal behind
	// waiters had a forecast. opensFirst: the refusal of a pool was about another member than before
	// levels.FirstToOpen.
	doubted, repriced, kept, bounded, foreseen, opensFirst bool
}

func newLivedDrawing(t *testing.T, seed uint64) *livedDrawing {
	d := &livedDrawing{Rand: rand.New(rand.NewPCG(seed, 0)), t: t, m: New(), tally: newLivedTally(), nextOp: 1, seq: map[uint64]uint64{}}
	d.apply(d.applies(livedQuotas(0)...), livedHolders(), d.openSession())
	if d.left = 4000; d.tally.succeeded["apply_quotas"] != 2 {
		t.Fatal("the quotas cannot be applied")
	}
	return d
}

// round draws each kind of command once, the most frequent ones more often, in some order.
func (d *livedDrawing) round() {
	often := map[protoreflect.Name]int{
		"reserve": 7, "consume": 3, "settle": 4, "report": 3, "begin_task": 3, "end_task": 2, "renew_task": 2,
		"delete_quota": 2, "withdraw": 2, "apply_quotas": 2,
	}
	var kinds []protoreflect.Name
	for _, kind := range kindsOf(&logpb.Command{}) {
		if d.tally.succeeded[kind] > livedTimes+4 && d.IntN(4) > 0 && often[kind] == 0 {
			continue // there are enough of them
		}
		for range max(often[kind], 1) {
			kinds = append(kinds, kind)
		}
	}
	d.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for len(kinds) > 0 {
		n := min(1+d.IntN(2), len(kinds))
		var commands []*logpb.Command
		for _, kind := range kinds[:n] {
			if c := d.command(kind); c != nil {
				commands = append(commands, c)
			}
		}
		kinds = kinds[n:]
		d.now += pick(d.Rand, []time.Duration{0, 0, time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second})
		d.apply(commands...)
	}
	if d.IntN(6) == 0 {
		d.now += pick(d.Rand, []time.Duration{time.Minute, 10 * time.Minute, 2 * time.Hour})
		d.apply()
	}
}

func (d *livedDrawing) encoded(entry *logpb.Entry) []byte {
	data, err := proto.Marshal(entry)
	if err != nil {
		d.t.Fatal(err)
	}
	return data
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// latest draws one of the latest; false: none.
func latest[T any](r *rand.Rand, from []T) (one T, ok bool) {
	if ok = len(from) > 0; ok {
		one = from[len(from)-1-r.IntN(min(len(from), 4))]
	}
	return one, ok
}

// command draws a command of a kind, with its sender; nil: there is no object for it.
func (d *livedDrawing) command(kind protoreflect.Name) *logpb.Command {
	draw, ok := map[protoreflect.Name]func() *logpb.Command{
		"open_session": d.openSession, "close_session": d.closeSession, "reserve": d.reserve, "consume": d.consume, "settle": d.settle,
		"release": d.release, "renew": d.renew, "withdraw": d.withdraw, "report": d.report,
		"begin_task": d.beginTask, "renew_task": d.renewTask, "end_task": d.endTask, "retry_task": d.retryTask, "forget_task": d.forgetTask,
		"apply_quotas": d.applyQuotas, "delete_quota": d.deleteQuota, "delete_workflow": d.deleteWorkflow, "revoke_lease": d.revokeLease,
		"put_member": d.putMember, "delete_member": d.deleteMember, "found": d.found, "raise_epoch": d.raiseEpoch, "set_limits": d.setLimits,
		"set_override": d.setOverride, "reopen_quota": d.reopenQuota, "reset_clock": d.resetClock,
	}[kind]
	if !ok {
		d.t.Fatalf("nothing draws a %s", kind)
	}
	c := draw()
	if c == nil {
		return nil
	}
	c.Caller = pick(d.Rand, []string{"", "token:a", "token:b", "address:192.0.2.1"})
	c.PerHolder, c.Operator = c.Caller == "address:192.0.2.1", d.IntN(6) == 0
	switch session, some := latest(d.Rand, d.sessions); {
	case c.Session != 0:
	case some && d.IntN(4) == 0:
		d.seq[session]++
		c.Session, c.Seq = session, d.seq[session]
		c.AckedBelow = c.Seq - min(c.Seq, uint64(d.IntN(6)))
	case d.IntN(12) == 0:
		d.named++
		c.IdempotencyKey = fmt.Sprintf("k%d", d.named)
	case d.IntN(8) == 0:
		c.By = "*"
	}
	return c
}

// apply applies an entry and learns from it.
func (d *livedDrawing) apply(commands ...*logpb.Command) {
	const birth = 1_795_168_800 * time.Second // 2026-11-20 10:00 UTC
	d.index++
	wall := birth + d.now + d.ahead
	early, late := time.Duration(d.IntN(200))*time.Millisecond, time.Duration(d.IntN(200))*time.Millisecond
	entry := &logpb.Entry{
		Version: EntryVersion, StampNs: int64(d.now), WallEarlyNs: int64(wall - early), WallLateNs: int64(wall + late), Commands: commands,
	}
	data := d.encoded(entry)
	d.recorded.Write(binary.AppendUvarint(nil, uint64(len(data))))
	d.recorded.Write(data)
	for _, c := range commands {
		d.notices(c)
	}
	var before Applied
	if !d.opensFirst && slices.ContainsFunc(commands, func(c *logpb.Command) bool {
		return slices.ContainsFunc(c.GetReserve().GetItems(), func(it *logpb.Item) bool { return it.Quota == "keys" })
	}) {
		before = d.before(entry)
	}
	applied := d.m.Apply(d.index, 1, data)
	for i, result := range before.Results {
		is, was := applied.Results[i].GetRefusal(), result.GetRefusal()
		d.opensFirst = d.opensFirst || is != nil && was != nil && is.Quota != was.Quota
	}
	if reported := d.m.quotas.named("reported"); reported != nil {
		d.doubted = d.doubted || reported.ledger.Later != 0
	}
	if tight := d.m.quotas.named("tight"); tight != nil {
		d.bounded = d.bounded || tight.rule.Paced() && tight.pacer.paidUntil == d.m.clock.Now+tight.rule.Counting()
	}
	d.tally.count(commands, applied)
	for i, result := range applied.Results {
		refusal := result.GetRefusal()
		d.foreseen = d.foreseen || refusal.GetReason() == logpb.Reason_REASON_BEHIND_WAITERS && refusal.Forecast != nil
		d.learn(commands[i], result)
	}
	for _, event := range applied.Events {
		d.learnEvent(event)
	}
}

// learn records the objects that a result names, and removes those that its command ended.
func (d *livedDrawing) learn(c *logpb.Command, result *logpb.Result) {
	switch r := result.Kind.(type) {
	case *logpb.Result_Granted:
		d.learnGranted(r.Granted)
	case *logpb.Result_Waiting:
		d.tickets = append(d.tickets, r.Waiting.Ticket)
	case *logpb.Result_Consumed:
		k := c.GetConsume()
		d.operations = append(d.operations, livedOperation{lease: k.Lease, fence: k.Fence, op: r.Consumed.Op, items: r.Consumed.Items})
	case *logpb.Result_TaskBegun:
		if name := c.GetBeginTask().GetTask(); r.TaskBegun.Attempt != 0 {
			d.attempts = append(d.attempts, livedAttempt{task: name, fence: r.TaskBegun.Fence})
			d.tasks = append(without(d.tasks, name), name)
		}
	case *logpb.Result_SessionOpened:
		d.sessions = append(d.sessions, r.SessionOpened.Session)
	case *logpb.Result_TaskEnded:
		k := c.GetEndTask()
		d.attempts = without(d.attempts, livedAttempt{task: k.Task, fence: k.Fence})
	}
}

func (d *livedDrawing) learnGranted(g *logpb.Granted) {
	d.leases = append(d.leases, g)
	if g.Consumed != nil {
		d.operations = append(d.operations, livedOperation{lease: g.Lease, fence: g.Fence, op: g.Consumed.Op, items: g.Consumed.Items})
	}
}

func (d *livedDrawing) learnEvent(event effect.Event) {
	if g := event.Result.GetGranted(); g != nil {
		d.learnGranted(g)
	}
	switch event.Kind {
	case effect.EventGranted, effect.EventWaitEnded:
		d.tickets = without(d.tickets, event.Ticket)
	case effect.EventReleased, effect.EventExpired, effect.EventRevoked:
		d.leases = slices.DeleteFunc(d.leases, func(g *logpb.Granted) bool { return g.Lease == event.Lease })
		d.operations = slices.DeleteFunc(d.operations, func(o livedOperation) bool { return o.lease == event.Lease })
	case effect.EventTaskEnded:
		d.attempts = without(d.attempts, livedAttempt{task: event.Task, fence: event.Fence})
	default:
	}
}

func without[T comparable](from []T, one T) []T {
	return slices.DeleteFunc(from, func(other T) bool { return other == one })
}

// holder draws a holder, mostly one of the workflow's.
func (d *livedDrawing) holder() string { return fmt.Sprintf("h%d", min(d.IntN(8), d.IntN(8))) }

// quota draws a quota, sometimes one that will be deleted.
func (d *livedDrawing) quota() string {
	if spare, ok := latest(d.Rand, d.spares); ok && d.IntN(8) == 0 {
		return spare
	}
	return pick(d.Rand, livedNames)
}

func (d *livedDrawing) openSession() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: d.holder()}}}
}

func (d *livedDrawing) closeSession() *logpb.Command {
	session, ok := latest(d.Rand, d.sessions)
	if !ok {
		return nil
	}
	d.sessions = without(d.sessions, session)
	return &logpb.Command{Session: session, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}}
}

func (d *livedDrawing) reserve() *logpb.Command {
	r := &logpb.Reserve{
		Holder: d.holder(), Consume: d.IntN(3) == 0, Fallback: d.IntN(4) == 0, Resume: d.IntN(40) == 0, Emergency: d.IntN(20) == 0,
	}
	scarce := d.IntN(4) == 0
	for range 1 + d.IntN(3) {
		name := d.quota()
		if scarce {
			name = pick(d.Rand, []string{"slots", "tight", "keys"})
		}
		if !slices.ContainsFunc(r.Items, func(it *logpb.Item) bool { return it.Quota == name }) {
			r.Items = append(r.Items, &logpb.Item{Quota: name, Amount: new(1 + d.Int64N(4))})
		}
	}
	if d.IntN(3) == 0 {
		r.TtlNs = int64(pick(d.Rand, []time.Duration{10 * time.Second, time.Minute}))
	}
	if scarce || d.IntN(3) == 0 {
		r.WaitNs = int64(pick(d.Rand, []time.Duration{5 * time.Second, time.Minute}))
	}
	if d.IntN(5) == 0 {
		r.Class = proto.Int32(2)
	}
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: r}}
}

func (d *livedDrawing) consume() *logpb.Command {
	g, ok := latest(d.Rand, d.leases)
	if !ok {
		return nil
	}
	d.nextOp++
	c := &logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: d.nextOp}
	if it := pick(d.Rand, g.Items); d.IntN(2) == 0 && it.Quota != "slots" {
		c.Items = []*logpb.Item{{Quota: it.Quota, Amount: proto.Int64(1)}}
	}
	return &logpb.Command{Kind: &logpb.Command_Consume{Consume: c}}
}

// settle draws a Settle of an operation: first the unspent part, at the end the actual use.
func (d *livedDrawing) settle() *logpb.Command {
	o, ok := latest(d.Rand, d.operations)
	if !ok || len(o.items) == 0 {
		return nil
	}
	it := pick(d.Rand, o.items)
	s := &logpb.Settle{Lease: o.lease, Fence: o.fence, Op: o.op}
	switch d.IntN(4) {
	case 0:
		s.Unspent = []*logpb.Item{{Quota: it.Quota, Amount: new(1 + d.Int64N(it.Amount))}}
	case 1:
		s.Unspent = []*logpb.Item{{Quota: it.Quota, Amount: new(it.Amount)}}
		s.Final = true
	case 2:
		s.Actual = []*logpb.Item{{Quota: it.Quota, Amount: new(d.Int64N(it.Amount + 3))}}
		s.Final = d.IntN(2) == 0
		if q := d.m.quotas.named(it.Quota); q != nil && q.rule.Paced() && d.IntN(3) == 0 {
			s.Actual[0].Amount = new(100 * q.rule.Usable)
		}
	default:
		s.Final, s.Release = true, d.IntN(3) == 0
		s.DoneBelow = o.op
	}
	if s.Final || d.IntN(2) == 0 {
		d.operations = slices.DeleteFunc(d.operations, func(other livedOperation) bool { return other.lease == o.lease && other.op == o.op })
	}
	return &logpb.Command{Kind: &logpb.Command_Settle{Settle: s}}
}

func (d *livedDrawing) release() *logpb.Command {
	g, ok := latest(d.Rand, d.leases)
	if !ok {
		return nil
	}
	r := &logpb.Release{Lease: g.Lease, Fence: g.Fence}
	if d.IntN(3) == 0 {
		r.Items = []*logpb.Item{{Quota: pick(d.Rand, g.Items).Quota, Amount: proto.Int64(1)}}
	}
	return &logpb.Command{Kind: &logpb.Command_Release{Release: r}}
}

func (d *livedDrawing) renew() *logpb.Command {
	g, ok := latest(d.Rand, d.leases)
	if !ok {
		return nil
	}
	ttl := pick(d.Rand, []time.Duration{0, time.Minute, 10 * time.Minute})
	return &logpb.Command{Kind: &logpb.Command_Renew{Renew: &logpb.Renew{Lease: g.Lease, Fence: g.Fence, TtlNs: int64(ttl)}}}
}

func (d *livedDrawing) withdraw() *logpb.Command {
	ticket, ok := latest(d.Rand, d.tickets)
	if !ok {
		return nil
	}
	d.tickets = without(d.tickets, ticket)
	return &logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: ticket}}}
}

// report draws a provider's answer to a call of an open operation.
func (d *livedDrawing) report() *logpb.Command {
	o, ok := latest(d.Rand, d.operations)
	if !ok || len(o.items) == 0 {
		return nil
	}
	about := pick(d.Rand, o.items)
	for _, it := range o.items {
		if it.Quota == "daily" || it.Quota == "minutely" {
			about = it
		}
	}
	s := &logpb.Signal{Quota: about.Quota, Cause: pick(d.Rand, []logpb.Cause{
		logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_ACCOUNT,
		logpb.Cause_CAUSE_PLAN, logpb.Cause_CAUSE_OVERLOADED, logpb.Cause_CAUSE_NOT_A_LIMIT,
	})}
	if d.IntN(2) == 0 {
		if d.left -= 20 + d.Int64N(300); d.left < 0 {
			d.left = 4000
		}
		s.Remaining, s.Limit = new(d.left), proto.Int64(5000)
	}
	if d.IntN(2) == 0 {
		s.ResetAfterNs, s.ResetResolutionNs = new(int64(time.Duration(1+d.IntN(50))*time.Minute)), int64(time.Second)
	}
	if d.IntN(3) > 0 && s.Cause != logpb.Cause_CAUSE_OK {
		s.RetryAfterNs = new(int64(pick(d.Rand, []time.Duration{time.Second, 3 * time.Second, 6 * time.Hour})))
	}
	return &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{
		Lease: o.lease, Fence: o.fence, Op: o.op, Signals: []*logpb.Signal{s},
	}}}
}

func (d *livedDrawing) beginTask() *logpb.Command {
	name, ok := latest(d.Rand, d.tasks)
	if !ok || d.IntN(3) > 0 {
		d.named++
		name = fmt.Sprintf("t%d", d.named)
	}
	b := &logpb.BeginTask{
		Task: name, Holder: d.holder(), MaxFailures: d.Int32N(3), TtlNs: int64(pick(d.Rand, []time.Duration{0, 20 * time.Second})),
	}
	if d.IntN(2) == 0 {
		b.Quotas = []string{pick(d.Rand, livedNames)}
	}
	return &logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: b}}
}

func (d *livedDrawing) renewTask() *logpb.Command {
	a, ok := latest(d.Rand, d.attempts)
	if !ok {
		return nil
	}
	return &logpb.Command{Kind: &logpb.Command_RenewTask{RenewTask: &logpb.RenewTask{
		Task: a.task, Fence: a.fence, TtlNs: int64(d.IntN(2)) * int64(time.Minute),
	}}}
}

func (d *livedDrawing) endTask() *logpb.Command {
	a, ok := latest(d.Rand, d.attempts)
	if !ok {
		return nil
	}
	e := &logpb.EndTask{Task: a.task, Fence: a.fence, Outcome: logpb.TaskOutcome(1 + d.Int32N(5)), Detail: "seen"}
	if d.IntN(3) == 0 {
		e.Report, e.WaitNs = logpb.Cause_CAUSE_SATURATED, proto.Int64(int64(2*time.Second))
	}
	return &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: e}}
}

func (d *livedDrawing) retryTask() *logpb.Command {
	name, ok := latest(d.Rand, d.tasks)
	if !ok {
		return nil
	}
	return &logpb.Command{Kind: &logpb.Command_RetryTask{RetryTask: &logpb.RetryTask{Task: name}}}
}

func (d *livedDrawing) forgetTask() *logpb.Command {
	name, ok := latest(d.Rand, d.tasks)
	if !ok {
		return nil
	}
	d.tasks = without(d.tasks, name)
	return &logpb.Command{Kind: &logpb.Command_ForgetTask{ForgetTask: &logpb.ForgetTask{Task: name}}}
}

func (*livedDrawing) applies(quotas ...*logpb.Quota) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: quotas}}}
}

// applyQuotas draws a quota that will be deleted, together with another limit of one of the others, or a workflow in
// addition to the lasting one.
func (d *livedDrawing) applyQuotas() *logpb.Command {
	d.named++
	if len(d.flows) == 0 && d.IntN(2) == 0 {
		name := fmt.Sprintf("flow%d", d.named)
		d.flows = append(d.flows, name)
		return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{
			ReplaceWorkflows: true, Workflows: []*logpb.Workflow{livedWorkflow("lasting"), livedWorkflow(name)},
		}}}
	}
	name := fmt.Sprintf("spare%d", d.named)
	d.spares = append(d.spares, name)
	spare := &logpb.Quota{Name: name, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: 20, PerNs: int64(10 * time.Second)}}}
	if d.IntN(2) == 0 {
		spare.Parent = "org"
	}
	changed := pick(d.Rand, livedQuotas(d.Int64N(9)))
	if tight := d.m.quotas.named("tight"); tight != nil && d.IntN(4) == 0 { // a change that keeps its price
		changed = proto.CloneOf(tight.definition)
		changed.Policy.AgeingNs += int64(time.Second)
	}
	return d.applies(spare, changed)
}

func livedWorkflow(name string) *logpb.Workflow {
	return &logpb.Workflow{
		Name: name, Threshold: 2, WithinNs: int64(time.Minute),
		CalmNs: int64(5 * time.Second), BatonTimeNs: int64(5 * time.Second), PauseNs: int64(5 * time.Second),
		Steps: []*logpb.WorkflowStep{
			{Holder: "h1"}, {Holder: "h2", After: []string{"h1"}}, {Holder: "h3", After: []string{"h1", "h2"}}, {Holder: "h0"},
		},
	}
}

func (d *livedDrawing) deleteQuota() *logpb.Command {
	name, ok := latest(d.Rand, d.spares)
	if !ok {
		return nil
	}
	d.spares = without(d.spares, name)
	return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: name, Force: d.IntN(4) > 0}}}
}

func (d *livedDrawing) deleteWorkflow() *logpb.Command {
	if len(d.flows) == 0 {
		return nil
	}
	name := d.flows[len(d.flows)-1] // the others were replaced by it
	d.flows = nil
	return &logpb.Command{Kind: &logpb.Command_DeleteWorkflow{DeleteWorkflow: &logpb.DeleteWorkflow{Workflow: name}}}
}

func (d *livedDrawing) revokeLease() *logpb.Command {
	g, ok := latest(d.Rand, d.leases)
	if !ok {
		return nil
	}
	return &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: g.Lease}}}
}

func (d *livedDrawing) putMember() *logpb.Command {
	id := fmt.Sprintf("n%d", d.IntN(5))
	return putMember(id, fmt.Sprintf("%s:%d", id, d.IntN(100)))
}

func (d *livedDrawing) deleteMember() *logpb.Command {
	return deleteMember(fmt.Sprintf("n%d", d.IntN(5)))
}

// found founds the cluster, and later repeats that: both succeed.
func (*livedDrawing) found() *logpb.Command {
	return founds("lived")
}

func (d *livedDrawing) raiseEpoch() *logpb.Command {
	d.epoch += 1 + uint32(d.IntN(3))
	return raisesEpoch(d.epoch)
}

// setLimits draws limits that are never reached.
func (d *livedDrawing) setLimits() *logpb.Command {
	most := func() *int64 { return new(100_000 + d.Int64N(1000)) }
	return &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{
		MaxSessions: most(), MaxKeys: most(), MaxWaiters: most(), MaxTasks: most(), MaxLeases: most(), MaxReports: most(),
		KeyLifeNs: new(int64(pick(d.Rand, []time.Duration{time.Minute, time.Hour}))), OperatorsPpm: new(50_000 + d.Int64N(100)),
		MaxCalls: most(), MaxStreams: most(), MaxConnections: most(),
	}}}
}

func (d *livedDrawing) setOverride() *logpb.Command {
	o := &logpb.SetOverride{Quota: pick(d.Rand, livedNames)}
	if d.IntN(3) > 0 {
		o.Limit, o.ForNs, o.Note = new(300+d.Int64N(300)), int64(pick(d.Rand, []time.Duration{2 * time.Second, time.Minute})), "for a while"
	}
	return &logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: o}}
}

func (d *livedDrawing) reopenQuota() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ReopenQuota{ReopenQuota: &logpb.ReopenQuota{Quota: pick(d.Rand, livedNames)}}}
}

// resetClock draws a reset of a clock that its own entry has just carried ahead.
func (d *livedDrawing) resetClock() *logpb.Command {
	d.ahead = time.Duration(1+d.IntN(30)) * time.Minute
	d.apply()
	d.ahead = 0
	return &logpb.Command{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}}
}
