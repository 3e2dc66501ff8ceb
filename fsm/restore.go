package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
)

// Restore reads a snapshot that WriteSnapshot wrote. It returns ErrNewerSnapshot or ErrCorruptSnapshot, wrapped, for a
// snapshot that it cannot accept. A state whose totals do not fit its parts is corrupt too (Verify, which takes a fifth
// of the time).
func Restore(r io.Reader) (*Machine, error) {
	restored := &restoring{m: New()}
	if err := snapshot.Read(r, restored.enter); err != nil {
		return nil, err
	}
	if err := restored.link(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorruptSnapshot, err)
	}
	m := restored.m
	if err := m.Verify(); err != nil {
		return nil, fmt.Errorf("%w: it is well-formed, and does not add up: %w", ErrCorruptSnapshot, err)
	}
	return m, nil
}

// DroppedResults returns how many results without a session Restore left out.
func (m *Machine) DroppedResults() int { return m.requests.Dropped() }

// restoring is a machine during a restore. Records fill its tables one by one; link derives the rest at the end.
type restoring struct {
	m *Machine
}

// enter enters one record of a snapshot of some version, or leaves it out.
func (r *restoring) enter(version uint32, record *logpb.SnapshotRecord) error {
	if r.m.requests.DropLeftover(version, record) {
		return nil
	}
	switch err := r.take(record); {
	case errors.Is(err, ErrNewerSnapshot):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrCorruptSnapshot, err)
	}
	return nil
}

// take enters one record.
func (r *restoring) take(record *logpb.SnapshotRecord) error {
	m := r.m
	switch kind := record.Kind.(type) {
	case *logpb.SnapshotRecord_Head:
		return r.takeHead(kind.Head)
	case *logpb.SnapshotRecord_Account:
		return m.accounts.Enter(kind.Account, m.clock.Now)
	case *logpb.SnapshotRecord_Page:
		r.takePage(kind.Page)
	case *logpb.SnapshotRecord_Quota:
		return r.takeQuota(kind.Quota)
	case *logpb.SnapshotRecord_Lease:
		return r.takeLease(kind.Lease)
	case *logpb.SnapshotRecord_Retiring:
		return r.takeRetiring(kind.Retiring)
	case *logpb.SnapshotRecord_Operation:
		return r.takeOperation(kind.Operation)
	case *logpb.SnapshotRecord_Holder:
		return m.holders.takeHolder(kind.Holder)
	case *logpb.SnapshotRecord_Demand:
		return r.takeDemand(kind.Demand)
	case *logpb.SnapshotRecord_Samples:
		return r.takeSamples(kind.Samples)
	case *logpb.SnapshotRecord_Override:
		return r.takeOverride(kind.Override)
	case *logpb.SnapshotRecord_HolderStats:
		return m.holders.takeStats(kind.HolderStats)
	case *logpb.SnapshotRecord_Meter:
		return m.holders.takeMeter(kind.Meter)
	case *logpb.SnapshotRecord_Waiter:
		return r.takeWaiter(kind.Waiter)
	case *logpb.SnapshotRecord_Session:
		return m.requests.EnterSession(requestHost{m}.Moment(), kind.Session)
	case *logpb.SnapshotRecord_Result:
		return m.requests.EnterResult(requestHost{m}.Moment(), &m.quotas.cache.names, kind.Result)
	case *logpb.SnapshotRecord_Key:
		return m.requests.EnterKey(requestHost{m}.Moment(), &m.quotas.cache.names, kind.Key)
	case *logpb.SnapshotRecord_Member:
		m.members.Set(kind.Member.Id, kind.Member.ApiAddress)
	case *logpb.SnapshotRecord_Rule:
		return r.takeRule(kind.Rule)
	case *logpb.SnapshotRecord_Task:
		return m.tasks.Enter(taskHost{m}, kind.Task)
	case *logpb.SnapshotRecord_Resume:
		m.resumed.Set(kind.Resume.Holder, kind.Resume.UpTo)
	case *logpb.SnapshotRecord_WaitSet:
		r.takeWaitSet(kind.WaitSet)
	case *logpb.SnapshotRecord_Moving:
		m.queue.moving.Set(kind.Moving.Holder, moving{from: kind.Moving.From, again: kind.Moving.Again})
	case *logpb.SnapshotRecord_DeletedQuota:
		m.quotas.deleted.Set(kind.DeletedQuota.Number, kind.DeletedQuota.Name)
	case *logpb.SnapshotRecord_Reopening:
		m.reopening.Set(kind.Reopening.Quota, kind.Reopening.Workflow)
	case *logpb.SnapshotRecord_Sweep:
		swept, err := decodeSweep(kind.Sweep)
		m.holders.sweep = swept
		return err
	case *logpb.SnapshotRecord_Workflow:
		return m.workflows.Restore(kind.Workflow, m.clock.Now)
	default:
		return fmt.Errorf("a record of unknown kind")
	}
	return nil
}

// takeWaitSet enters a wait set. If it has no pools, asked is not recorded: it equals quotas.
func (r *restoring) takeWaitSet(encoded *logpb.SnapshotWaitSet) {
	ws := &waitSet{
		Made: cow.In(r.m.generation), number: encoded.Number, asked: encoded.Asked, quotas: encoded.Quotas, pooled: len(encoded.Asked) > 0,
	}
	if !ws.pooled {
		ws.asked = ws.quotas
	}
	r.m.queue.enterWaitSet(ws)
}

// takeDemand enters the recent demand for a quota, and its first waiter.
func (r *restoring) takeDemand(encoded *logpb.SnapshotDemand) error {
	q, ok := r.m.quotas.byNumber.Get(encoded.Quota)
	if !ok || len(encoded.TriedNs) > ledger.Classes {
		return fmt.Errorf("demand for quota %d, which does not exist, or of %d classes", encoded.Quota, len(encoded.TriedNs))
	}
	copy(q.tried[:], encoded.TriedNs)
	if err := q.takeAsked(encoded.Asked); err != nil {
		return err
	}
	q.first, q.firstSince = encoded.First, encoded.FirstNs
	q.wakeup, q.wakeNext = encoded.AgainNs, encoded.Touched
	return nil
}

// takeAsked enters the largest requests of the higher classes of a rate with shares.
func (q *quota) takeAsked(asked []*logpb.SnapshotAsked) error {
	if len(asked) > len(q.pacer.size) {
		return fmt.Errorf("%d classes asked for quota %d", len(asked), q.number)
	}
	for class, a := range asked {
		q.pacer.era[class], q.pacer.size[class], q.pacer.sizeOld[class] = a.Era, a.Size, a.SizeOld
	}
	return nil
}

func (r *restoring) takeHead(head *logpb.SnapshotHead) error {
	m := r.m
	if head.Level > EntryVersion {
		return fmt.Errorf("%w (it is at feature level %d, this build applies up to %d)", ErrNewerSnapshot, head.Level, EntryVersion)
	}
	m.index, m.term, m.featureLevel = head.Index, head.Term, head.Level
	m.clock = Clock{Now: head.NowNs, WallEarly: head.WallEarlyNs, WallLate: head.WallLateNs, Shift: head.WallShiftNs}
	m.clusterID, m.epoch, m.grants = head.ClusterId, head.Epoch, head.Grants
	m.lastLease, m.queue.lastTicket, m.requests.Last = head.LastLease, head.LastTicket, head.LastSession
	m.quotas.last, m.amounts.busyUntil, m.accounts.Last = head.LastQuota, head.BusyUntilNs, head.LastAccount
	m.queue.lastWaitSet = head.LastWaitSet
	m.queue.movedLast, m.queue.scannedFrom, m.records.retiredLast = head.MovedLast, head.ScannedFrom, head.RetiredLast
	m.accounts.Limits = accounts.Limits{
		Sessions: head.Limits.GetMaxSessions(), ResultBytes: head.Limits.GetMaxResultBytes(),
		SessionIdle: head.Limits.GetSessionIdleNs(), KeyLife: head.Limits.GetKeyLifeNs(), Waiters: head.Limits.GetMaxWaiters(),
		Tasks: cmp.Or(head.Limits.GetMaxTasks(), accounts.DefaultMaxTasks), TaskLife: cmp.Or(head.Limits.GetTaskLifeNs(),
			accounts.DefaultTaskLife),
		Keys: cmp.Or(head.Limits.GetMaxKeys(), accounts.DefaultMaxKeys), Leases: cmp.Or(head.Limits.GetMaxLeases(), accounts.DefaultMaxLeases),
		Reports:        cmp.Or(head.Limits.GetMaxReports(), accounts.DefaultMaxReports),
		HolderBytes:    cmp.Or(head.Limits.GetMaxHolderBytes(), accounts.DefaultMaxHolders),
		OperationBytes: cmp.Or(head.Limits.GetMaxOperationBytes(), accounts.DefaultMaxRecords),
		OperatorsPPM:   accounts.DefaultOperatorsPPM, CallerMinPPM: accounts.DefaultCallerMinPPM,
		Calls:       cmp.Or(head.Limits.GetMaxCalls(), accounts.DefaultMaxCalls),
		Streams:     cmp.Or(head.Limits.GetMaxStreams(), accounts.DefaultMaxStreams),
		Connections: cmp.Or(head.Limits.GetMaxConnections(), accounts.DefaultMaxConnections),
	}
	if ppm := head.Limits.GetOperatorsPpm(); head.Limits != nil && head.Limits.OperatorsPpm != nil { // 0 is a valid part
		m.accounts.Limits.OperatorsPPM = ppm
	}
	if ppm := head.Limits.GetCallerMinPpm(); head.Limits != nil && head.Limits.CallerMinPpm != nil {
		m.accounts.Limits.CallerMinPPM = ppm
	}
	return r.checkHead()
}

func (r *restoring) takeQuota(encoded *logpb.SnapshotQuota) error {
	m := r.m
	if encoded.Definition == nil || encoded.Number == 0 || !ledger.ValidName(encoded.Definition.Name) { // number 0 means no parent
		return fmt.Errorf("quota %d has no definition, name or number", encoded.Number)
	}
	worked, failure := ledger.NewRule(encoded.Definition, m.featureLevel)
	if failure != nil {
		return fmt.Errorf("%s", failure.Message)
	}
	worked.Shift = m.clock.Shift
	q := &quota{
		Made: cow.In(m.generation), number: encoded.Number, name: encoded.Definition.Name, rule: worked,
		cooldown: encoded.CooldownNs, attempt: encoded.Attempt, closer: encoded.Closer, closedSince: encoded.ClosedSinceNs,
		reopened: encoded.ReopenedNs, ramped: encoded.Ramped, rampLease: encoded.RampLease,
		observed: encoded.Observed, pacer: pacer{paidUntil: encoded.PaidUntilNs, shutUntil: encoded.ShutUntilNs},
		ledger: ledger.Ledger{
			Held: encoded.Held, Open: encoded.Open, Cutoff: encoded.CutoffNs,
			Closing: encoded.Closing, Disputed: encoded.Disputed, Opened: encoded.OpenedNs,
			Capped: ledger.NoCap, Settled: encoded.Settled, Arrival: encoded.ArrivalNs, Total: encoded.Total,
		},
	}
	q.ledger.TakeDraws(encoded)
	if err := q.takeReports(encoded); err != nil {
		return err
	}
	m.quotas.setDefinition(q, encoded.Definition)
	if err := q.ledger.TakeWindow(&q.rule, encoded.Window); err != nil {
		return fmt.Errorf("quota %d: %w", encoded.Number, err)
	}
	if err := q.ledger.TakeResets(encoded); err != nil {
		return err
	}
	if encoded.Cap != nil {
		if q.rule.Kind != ledger.KindWindow && q.rule.Kind != ledger.KindRate {
			return fmt.Errorf("quota %d is neither a window nor a rate, and a report lowered it", encoded.Number)
		}
		q.ledger.Capped, q.ledger.CappedIn = *encoded.Cap, encoded.CapWindow
		q.ledger.CapEnd, q.ledger.CappedBy = encoded.CapEndNs, encoded.CappedBy
	}
	if len(encoded.Served) > ledger.Classes {
		return fmt.Errorf("quota %d has virtual times of %d classes", encoded.Number, len(encoded.Served))
	}
	copy(q.servedTo[:], encoded.Served)
	if len(encoded.Used) > ledger.Classes {
		return fmt.Errorf("quota %d has the use of %d classes", encoded.Number, len(encoded.Used))
	}
	for class, amount := range encoded.Used {
		q.ledger.Used[class].Amount = amount
	}
	for _, e := range encoded.UsedEnds {
		if e.Class < 0 || e.Class >= ledger.Classes {
			return fmt.Errorf("quota %d has the use of class %d", encoded.Number, e.Class)
		}
		q.ledger.Used[e.Class].List(e.EndNs, e.Amount)
	}
	if err := r.takeLog(q, encoded); err != nil {
		return err
	}
	m.quotas.byNumber.Set(q.number, q)
	m.quotas.names.Set(q.name, q.number)
	if q.cooldown != 0 {
		m.quotas.cooldowns.Set(due{At: q.cooldown, ID: uint64(q.number)})
	}
	return nil
}

// takeLog enters the counted amounts of a quota, and those dropped lately.
func (r *restoring) takeLog(q *quota, encoded *logpb.SnapshotQuota) error {
	for _, e := range encoded.Log {
		q.ledger.Log = append(q.ledger.Log, ledger.Entry{
			End: e.EndNs, Amount: e.Amount, Closed: e.Closed, Overrun: e.Overrun,
			Until: r.untilOf(q, e),
		})
		q.ledger.Counted += e.Amount
	}
	if len(encoded.Past) > ledger.MaxPast {
		return fmt.Errorf("quota %d remembers %d amounts that it dropped", encoded.Number, len(encoded.Past))
	}
	for _, p := range encoded.Past {
		q.ledger.Past = append(q.ledger.Past, ledger.Past{Until: p.UntilNs, Amount: p.Amount})
	}
	return nil
}

// untilOf returns when the last exposure of an entry ends. Snapshots before version 3 lack it: it is at most that of an
// amount consumed now.
func (r *restoring) untilOf(q *quota, e *logpb.SnapshotEntry) int64 {
	if q.rule.Kind == ledger.KindWindow && e.UntilNs == 0 {
		return fixed.AddSaturated(r.m.clock.Now, max(q.rule.SpendBy, q.rule.MaxCall))
	}
	return e.UntilNs
}

func (r *restoring) takeOverride(encoded *logpb.SnapshotOverride) error {
	q, ok := r.m.quotas.byNumber.Get(encoded.Quota)
	if !ok {
		return fmt.Errorf("an override of quota %d, which does not exist", encoded.Quota)
	}
	over := &override{limit: encoded.Limit, until: encoded.UntilNs, note: encoded.Note}
	worked, failure := ruleUnder(q.definition, over, r.m.featureLevel)
	if failure != nil {
		return fmt.Errorf("%s", failure.Message)
	}
	worked.Shift = r.m.clock.Shift
	q.rule = worked
	r.m.quotas.replaceOverride(q, over)
	return nil
}

// takeWaiter enters a waiting Reserve. Its wait set is made in link, when all quotas know their parents.
func (r *restoring) takeWaiter(encoded *logpb.SnapshotWaiter) error {
	h, ok := r.m.holders.byName.Get(encoded.Reserve.GetHolder())
	if !ok {
		return fmt.Errorf("ticket %d of a holder that does not exist", encoded.Ticket)
	}
	if encoded.Class < 0 || encoded.Class >= ledger.Classes || encoded.Rank < 0 || encoded.Rank > encoded.Class {
		return fmt.Errorf("ticket %d is of class %d and counts as %d", encoded.Ticket, encoded.Class, encoded.Rank)
	}
	if encoded.Account != 0 && r.m.accounts.Get(encoded.Account) == nil {
		return fmt.Errorf("ticket %d is charged to account %d, which does not exist", encoded.Ticket, encoded.Account)
	}
	virtualTime := h.virtualTime
	if encoded.VirtualTime != nil {
		virtualTime = *encoded.VirtualTime
	}
	r.m.queue.waiters.Set(encoded.Ticket, &waiter{
		Made: cow.In(r.m.generation), ticket: encoded.Ticket, req: encoded.Reserve,
		priority: priority{class: encoded.Class, rank: encoded.Rank}, starved: encoded.Saved, promotedAt: encoded.Floor,
		promoteAt: encoded.AgesNs, virtualTime: virtualTime, until: encoded.UntilNs,
		from:    dedup.RequestID{Session: encoded.Session, Seq: encoded.Seq, Key: encoded.Key},
		account: encoded.Account, waitSet: encoded.WaitSet, shares: int(encoded.Shares),
	})
	return nil
}

// link derives parents and wait sets from the records.
func (r *restoring) link() error {
	m := r.m
	for _, q := range m.quotas.byNumber.Values() {
		failure := m.checkAncestors(q.definition, nil, nil)
		if failure == nil {
			failure = m.checkMembers(q.definition, nil)
		}
		if failure != nil {
			return errors.New(failure.Message)
		}
		if parent := m.quotas.named(q.definition.Parent); parent != nil {
			q.parent = parent.number
			parent.children++
		}
	}
	if last, ok := m.records.checks.Max(); ok && last.at == math.MaxInt64 {
		return fmt.Errorf("page %v has no records", last.from)
	}
	r.listLeases()
	for _, w := range m.queue.waiters.Values() {
		numbers, err := r.askedBy(w)
		if err != nil {
			return err
		}
		h, _ := m.holders.byName.Get(w.req.Holder)
		h.waiting++
		m.queue.insert(w, numbers)
	}
	m.quotas.rescheduleChanged()
	m.accounts.Link(m.clock.Now)
	return nil
}

// askedBy returns the numbers of the quotas that a restored waiter requested when it was queued.
func (r *restoring) askedBy(w *waiter) ([]uint32, error) {
	if w.waitSet == 0 {
		return r.m.quotas.askedBy(w.req)
	}
	ws, ok := r.m.queue.waitSets.Get(w.waitSet)
	if !ok {
		return nil, fmt.Errorf("ticket %d stands in wait set %d, which does not exist", w.ticket, w.waitSet)
	}
	return ws.asked, nil
}
