package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/rangeset"
	"github.com/quotad/quotad/fsm/snapshot"
)

// Restore reads a snapshot that WriteSnapshot wrote. It returns ErrNewerSnapshot or ErrCorruptSnapshot, wrapped, for
// what it cannot take; a state whose totals do not fit its parts is corrupt too (Verify, which takes a fifth of the time).
func Restore(r io.Reader) (*Machine, error) {
	m := New()
	err := snapshot.Read(r, func(version uint32, record *logpb.SnapshotRecord) error {
		if m.requests.DropLeftover(version, record) {
			return nil
		}
		switch err := m.take(record); {
		case errors.Is(err, ErrNewerSnapshot):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", ErrCorruptSnapshot, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := m.link(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorruptSnapshot, err)
	}
	if err := m.Verify(); err != nil {
		return nil, fmt.Errorf("%w: it is well-formed, and does not add up: %w", ErrCorruptSnapshot, err)
	}
	return m, nil
}

// DroppedResults returns how many results without a session Restore left out.
func (m *Machine) DroppedResults() int { return m.requests.Dropped() }

// take enters one record.
func (m *Machine) take(record *logpb.SnapshotRecord) error {
	switch kind := record.Kind.(type) {
	case *logpb.SnapshotRecord_Head:
		return m.takeHead(kind.Head)
	case *logpb.SnapshotRecord_Account:
		return m.accounts.Enter(kind.Account, m.clock.Now)
	case *logpb.SnapshotRecord_Page:
		m.takePage(kind.Page)
	case *logpb.SnapshotRecord_Quota:
		return m.takeQuota(kind.Quota)
	case *logpb.SnapshotRecord_Lease:
		return m.takeLease(kind.Lease)
	case *logpb.SnapshotRecord_Retiring:
		return m.takeRetiring(kind.Retiring)
	case *logpb.SnapshotRecord_Operation:
		return m.takeOperation(kind.Operation)
	case *logpb.SnapshotRecord_Holder:
		return m.takeHolder(kind.Holder)
	case *logpb.SnapshotRecord_Demand:
		q, ok := m.quotas.Get(kind.Demand.Quota)
		if !ok || len(kind.Demand.TriedNs) > ledger.Classes {
			return fmt.Errorf("demand for quota %d, which does not exist, or of %d classes", kind.Demand.Quota, len(kind.Demand.TriedNs))
		}
		copy(q.tried[:], kind.Demand.TriedNs)
		if err := q.takeAsked(kind.Demand.Asked); err != nil {
			return err
		}
		q.first, q.firstSince = kind.Demand.First, kind.Demand.FirstNs
		q.wakeup, q.wakeNext = kind.Demand.AgainNs, kind.Demand.Touched
	case *logpb.SnapshotRecord_Samples:
		return m.takeSamples(kind.Samples)
	case *logpb.SnapshotRecord_Override:
		return m.takeOverride(kind.Override)
	case *logpb.SnapshotRecord_Tally:
		return m.takeStats(kind.Tally)
	case *logpb.SnapshotRecord_Meter:
		return m.takeMeter(kind.Meter)
	case *logpb.SnapshotRecord_Waiter:
		return m.takeWaiter(kind.Waiter)
	case *logpb.SnapshotRecord_Session:
		return m.requests.EnterSession(requestHost{m}.Moment(), kind.Session)
	case *logpb.SnapshotRecord_Result:
		return m.requests.EnterResult(requestHost{m}.Moment(), &m.cache.names, kind.Result)
	case *logpb.SnapshotRecord_Key:
		return m.requests.EnterKey(requestHost{m}.Moment(), &m.cache.names, kind.Key)
	case *logpb.SnapshotRecord_Member:
		m.members.Set(kind.Member.Id, kind.Member.ApiAddress)
	case *logpb.SnapshotRecord_Rule:
		return m.takeRule(kind.Rule)
	case *logpb.SnapshotRecord_Task:
		return m.tasks.Enter(taskHost{m}, kind.Task)
	case *logpb.SnapshotRecord_Resume:
		m.resumed.Set(kind.Resume.Holder, kind.Resume.UpTo)
	case *logpb.SnapshotRecord_Lane:
		m.takeWaitSet(kind.Lane)
	case *logpb.SnapshotRecord_Moving:
		m.moving.Set(kind.Moving.Holder, moving{from: kind.Moving.From, again: kind.Moving.Again})
	case *logpb.SnapshotRecord_DeletedQuota:
		m.deleted.Set(kind.DeletedQuota.Number, kind.DeletedQuota.Name)
	case *logpb.SnapshotRecord_Reopening:
		m.reopening.Set(kind.Reopening.Quota, kind.Reopening.Workflow)
	case *logpb.SnapshotRecord_Sweep:
		swept, err := decodeSweep(kind.Sweep)
		m.sweep = swept
		return err
	case *logpb.SnapshotRecord_Workflow:
		return m.workflows.Restore(kind.Workflow, m.clock.Now)
	default:
		return fmt.Errorf("a record of unknown kind")
	}
	return nil
}

// takeWaitSet enters a wait set. Where no pools were asked for, what was asked for is not recorded.
func (m *Machine) takeWaitSet(encoded *logpb.SnapshotLane) {
	l := &waitSet{
		Made: cow.In(m.generation), number: encoded.Number, asked: encoded.Asked, quotas: encoded.Quotas, pooled: len(encoded.Asked) > 0,
	}
	if !l.pooled {
		l.asked = l.quotas
	}
	m.enterWaitSet(l)
}

// takeAsked enters what the higher classes asked for of a rate with shares.
func (q *quota) takeAsked(asked []*logpb.SnapshotAsked) error {
	if len(asked) > len(q.pacer.size) {
		return fmt.Errorf("%d classes asked for quota %d", len(asked), q.number)
	}
	for class, a := range asked {
		q.pacer.era[class], q.pacer.size[class], q.pacer.sizeOld[class] = a.Era, a.Size, a.SizeOld
	}
	return nil
}

func (m *Machine) takeStats(encoded *logpb.SnapshotTally) error {
	h, known := m.holders.Get(encoded.Holder)
	if !known {
		return fmt.Errorf("a tally is of holder %q, of whom nothing is remembered", encoded.Holder)
	}
	t := &holderStats{
		Made: cow.In(m.generation), holder: h.name, quota: encoded.Quota, grants: encoded.Grants,
		granted: encoded.GrantedNs, failures: encoded.Failures, denied: encoded.DeniedNs, member: encoded.MemberQuota,
	}
	m.stats.Set(t)
	m.closeFor(t, encoded.ClosedUntilNs)
	return m.accounts.Charge(h.account, accounts.Holders, statsSize)
}

func (m *Machine) takeMeter(encoded *logpb.SnapshotMeter) error {
	h, known := m.holders.Get(encoded.Holder)
	if !known {
		return fmt.Errorf("a meter is of holder %q, of whom nothing is remembered", encoded.Holder)
	}
	t := decodeMeter(encoded, m.generation)
	t.holder = h.name
	m.meters.Set(t)
	return m.accounts.Charge(h.account, accounts.Holders, t.size())
}

func (m *Machine) takeHead(head *logpb.SnapshotHead) error {
	if head.Level > EntryVersion {
		return fmt.Errorf("%w (it is at feature level %d, this build applies up to %d)", ErrNewerSnapshot, head.Level, EntryVersion)
	}
	m.index, m.term, m.featureLevel = head.Index, head.Term, head.Level
	m.clock = Clock{Now: head.NowNs, WallEarly: head.WallEarlyNs, WallLate: head.WallLateNs, Shift: head.WallShiftNs}
	m.clusterID, m.epoch, m.grants = head.ClusterId, head.Epoch, head.Grants
	m.lastLease, m.lastTicket, m.requests.Last = head.LastLease, head.LastTicket, head.LastSession
	m.lastQuota, m.busyUntil, m.accounts.Last, m.lastWaitSet = head.LastQuota, head.BusyUntilNs, head.LastAccount, head.LastLane
	m.movedLast, m.lookedFrom, m.retiredLast = head.MovedLast, head.LookedFrom, head.RetiredLast
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
	}
	if ppm := head.Limits.GetOperatorsPpm(); head.Limits != nil && head.Limits.OperatorsPpm != nil { // 0 is a part too
		m.accounts.Limits.OperatorsPPM = ppm
	}
	if ppm := head.Limits.GetCallerMinPpm(); head.Limits != nil && head.Limits.CallerMinPpm != nil {
		m.accounts.Limits.CallerMinPPM = ppm
	}
	return m.checkHead()
}

func (m *Machine) takeQuota(encoded *logpb.SnapshotQuota) error {
	if encoded.Definition == nil || encoded.Number == 0 || !ledger.ValidName(encoded.Definition.Name) { // number 0 is no parent's
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
	m.setDefinition(q, encoded.Definition)
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
		q.ledger.CapEnd, q.ledger.CapTeller = encoded.CapEndNs, encoded.CapTeller
	}
	if len(encoded.Served) > ledger.Classes {
		return fmt.Errorf("quota %d has turns of %d classes", encoded.Number, len(encoded.Served))
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
	if err := m.takeLog(q, encoded); err != nil {
		return err
	}
	m.quotas.Set(q.number, q)
	m.names.Set(q.name, q.number)
	if q.cooldown != 0 {
		m.cooldowns.Set(due{At: q.cooldown, ID: uint64(q.number)})
	}
	return nil
}

// takeLog enters what counts of a quota, and what was dropped of it lately.
func (m *Machine) takeLog(q *quota, encoded *logpb.SnapshotQuota) error {
	for _, e := range encoded.Log {
		q.ledger.Log = append(q.ledger.Log, ledger.Entry{
			End: e.EndNs, Amount: e.Amount, Closed: e.Closed, Overrun: e.Overrun,
			Until: m.untilOf(q, e),
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

// untilOf returns when the last exposure of an entry ends. Snapshots before version 3 do not say: it is no later than what is consumed now.
func (m *Machine) untilOf(q *quota, e *logpb.SnapshotEntry) int64 {
	if q.rule.Kind == ledger.KindWindow && e.UntilNs == 0 {
		return fixed.AddSaturated(m.clock.Now, max(q.rule.SpendBy, q.rule.MaxCall))
	}
	return e.UntilNs
}

func (m *Machine) takeOverride(encoded *logpb.SnapshotOverride) error {
	q, ok := m.quotas.Get(encoded.Quota)
	if !ok {
		return fmt.Errorf("an override of quota %d, which does not exist", encoded.Quota)
	}
	over := &override{limit: encoded.Limit, until: encoded.UntilNs, note: encoded.Note}
	worked, failure := ruleUnder(q.definition, over, m.featureLevel)
	if failure != nil {
		return fmt.Errorf("%s", failure.Message)
	}
	worked.Shift = m.clock.Shift
	q.rule = worked
	m.replaceOverride(q, over)
	return nil
}

func (m *Machine) takeLease(encoded *logpb.SnapshotLease) error {
	l := &lease{
		Made: cow.In(m.generation), id: encoded.Id, fence: encoded.Fence, holder: encoded.Holder, class: encoded.Class,
		deadline: encoded.DeadlineNs, ttl: encoded.TtlNs, provisional: encoded.Tentative,
		digest: entry.DigestHolder(encoded.Holder), account: encoded.Account,
	}
	l.items = l.single[:0]
	for _, it := range encoded.Items {
		l.items = append(l.items, item{quota: it.Quota, ancestor: it.Ancestor, window: it.Window, held: it.Held})
		if q, ok := m.quotas.Get(it.Quota); ok {
			q.leases++
		}
	}
	switch {
	case l.class < 0 || l.class >= ledger.Classes:
		return fmt.Errorf("lease %d is of class %d", l.id, l.class)
	case l.id == 0 || l.deadline < 0:
		return fmt.Errorf("lease %d, until %d, which there cannot be", l.id, l.deadline)
	}
	if len(l.items) > 0 && l.items[0].ancestor {
		return fmt.Errorf("lease %d begins with an ancestor's share", l.id)
	}
	if encoded.DoneBelow != 0 {
		m.editOperations(l).doneBelow = encoded.DoneBelow
	}
	if err := m.accounts.Charge(l.account, accounts.Leases, accounts.WeightOf(len(l.items))); err != nil {
		return err
	}
	m.leases.Load(l.id, l) // a snapshot has them in order
	m.deadlines.Add(uint64(l.deadline), l.id)
	return nil
}

func (m *Machine) takeHolder(encoded *logpb.SnapshotHolder) error {
	h := &holder{
		Made: cow.In(m.generation), name: encoded.Name, virtualTime: encoded.Turn, rest: encoded.Rest, seen: encoded.SeenNs, account: encoded.Account,
	}
	if err := m.accounts.Charge(h.account, accounts.Holders, h.size()); err != nil {
		return err
	}
	m.holders.Set(h.name, h)
	m.seen.Set(dueByName{At: h.seen, ID: h.name})
	return nil
}

// takePage begins a page of detached records, which follow.
func (m *Machine) takePage(encoded *logpb.SnapshotPage) {
	m.enterPage(&page{Made: cow.In(m.generation), from: operationKey{encoded.Lease, encoded.Op}, check: math.MaxInt64})
}

func (m *Machine) takeOperation(encoded *logpb.SnapshotOperation) error {
	l, lives := m.leases.Get(encoded.Lease)
	r, _ := m.retiring.Get(encoded.Lease)
	retires := r.retires(encoded.Op, lives) && !encoded.Orphan
	if lives == encoded.Orphan && !retires {
		return fmt.Errorf("operation %d of lease %d, which lives: %t; it is an orphan: %t", encoded.Op, encoded.Lease, lives, encoded.Orphan)
	}
	o := new(operation)
	if lives && !retires {
		o = m.newOperation(l)
	}
	*o = operation{
		lease: encoded.Lease, op: encoded.Op, fence: encoded.Fence, holder: encoded.Holder,
		spendBy: encoded.SpendByNs, spendByWall: encoded.SpendByWallNs, transit: encoded.TransitNs,
		asked: encoded.Asked, unspent: encoded.Unspent, actual: encoded.Actual, detached: encoded.Orphan,
		check: encoded.CheckNs, beganWall: encoded.BeganWallNs, began: encoded.BeganNs, Made: cow.In(m.generation), account: encoded.Account,
	}
	if lives { // and one string for all of them
		o.account, o.holder = l.account, l.holder
	} else if retires {
		o.account = r.account
	}
	if o.account != 0 && m.accounts.Get(o.account) == nil {
		return fmt.Errorf("operation %d of lease %d is charged to account %d, which does not exist", o.op, o.lease, o.account)
	}
	o.charges = o.single[:0]
	for _, c := range encoded.Charges {
		if c.Class < 0 || c.Class >= ledger.Classes {
			return fmt.Errorf("operation %d of lease %d is of class %d", o.op, o.lease, c.Class)
		}
		o.charges = append(o.charges, charge{
			quota: c.Quota, ancestor: c.Ancestor, overrun: c.Overrun, amount: c.Amount, consumed: c.Consumed,
			unspent: c.Unspent, end: c.EndNs, window: c.Window, before: c.SettledBefore, class: int8(c.Class), total: c.Total,
		})
	}
	switch {
	case retires:
		r.list = append(r.list, o)
		m.countRecord(o, 1)
	case lives:
		m.keepRecord(l, o)
	default:
		m.keepDetached(o)
	}
	return nil
}

// takeWaiter enters a waiting Reserve. Its wait set is made in link, when all quotas know their parents.
func (m *Machine) takeWaiter(encoded *logpb.SnapshotWaiter) error {
	h, ok := m.holders.Get(encoded.Reserve.GetHolder())
	if !ok {
		return fmt.Errorf("ticket %d of a holder that does not exist", encoded.Ticket)
	}
	if encoded.Class < 0 || encoded.Class >= ledger.Classes || encoded.Rank < 0 || encoded.Rank > encoded.Class {
		return fmt.Errorf("ticket %d is of class %d and counts as %d", encoded.Ticket, encoded.Class, encoded.Rank)
	}
	if encoded.Account != 0 && m.accounts.Get(encoded.Account) == nil {
		return fmt.Errorf("ticket %d is charged to account %d, which does not exist", encoded.Ticket, encoded.Account)
	}
	virtualTime := h.virtualTime
	if encoded.Turn != nil {
		virtualTime = *encoded.Turn
	}
	m.waiters.Set(encoded.Ticket, &waiter{
		Made: cow.In(m.generation), ticket: encoded.Ticket, req: encoded.Reserve,
		priority: priority{class: encoded.Class, rank: encoded.Rank}, starved: encoded.Saved, promotedAt: encoded.Floor, promoteAt: encoded.AgesNs, virtualTime: virtualTime, until: encoded.UntilNs,
		from:    dedup.RequestID{Session: encoded.Session, Seq: encoded.Seq, Key: encoded.Key},
		account: encoded.Account, waitSet: encoded.Lane, shares: int(encoded.Shares),
	})
	return nil
}

// link makes what follows from the records: parents, wait sets.
func (m *Machine) link() error {
	for _, q := range m.quotas.Values() {
		failure := m.checkAncestors(q.definition, nil, nil)
		if failure == nil {
			failure = m.checkMembers(q.definition, nil)
		}
		if failure != nil {
			return errors.New(failure.Message)
		}
		if parent := m.quotaNamed(q.definition.Parent); parent != nil {
			q.parent = parent.number
			parent.children++
		}
	}
	if last, ok := m.checks.Max(); ok && last.at == math.MaxInt64 {
		return fmt.Errorf("page %v has no records", last.from)
	}
	m.listLeases()
	for _, w := range m.waiters.Values() {
		numbers, err := m.lineOf(w)
		if err != nil {
			return err
		}
		h, _ := m.holders.Get(w.req.Holder)
		h.waiting++
		m.insertWaiter(w, numbers)
	}
	m.scheduleChanged()
	m.accounts.Link(m.clock.Now)
	return nil
}

// lineOf returns the numbers of what a restored waiter asked for when it came.
func (s *State) lineOf(w *waiter) ([]uint32, error) {
	if w.waitSet == 0 {
		return s.askedBy(w.req)
	}
	l, ok := s.waitSets.Get(w.waitSet)
	if !ok {
		return nil, fmt.Errorf("ticket %d stands in lane %d, which does not exist", w.ticket, w.waitSet)
	}
	return l.asked, nil
}

// listLeases lists leases under their holders, in the order of that table: to enter a million as they come took 0.8 s more.
func (m *Machine) listLeases() {
	all := make([]rangeset.Run, 0, m.leases.Len())
	m.leases.Scan(func(id uint64, l *lease) bool {
		all = append(all, rangeset.Run{Key: l.digest, From: id, To: id})
		return true
	})
	slices.SortFunc(all, func(a, b rangeset.Run) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.From, b.From)) })
	for _, one := range all {
		m.leasesOf.Add(one.Key, one.From)
	}
	m.leasesOf.Flush()
	m.deadlines.Flush()
}
