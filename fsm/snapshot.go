package fsm

import (
	"io"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
)

// ErrNewerSnapshot means that a snapshot has a newer version than this build knows.
var ErrNewerSnapshot = snapshot.ErrNewer

// ErrCorruptSnapshot means that a snapshot is damaged or truncated.
var ErrCorruptSnapshot = snapshot.ErrCorrupt

// WriteSnapshot writes the state in the form of package snapshot.
func (s *State) WriteSnapshot(w io.Writer) error {
	out := snapshot.NewWriter(w, s.snapshotVersion())
	s.eachRecord(out.Record)
	return out.Finish()
}

// eachRecord calls fn for every record of the state in a fixed order, until it returns false.
func (s *State) eachRecord(fn func(*logpb.SnapshotRecord) bool) {
	going := fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Head{Head: s.encodeHead()}})
	for _, section := range []func(func(*logpb.SnapshotRecord) bool) bool{
		s.accountRecords, s.records.encodePages, s.ledgerRecords, s.policyRecords, s.requestRecords, s.memberRecords, s.tasks.Records,
		s.resumeRecords,
		s.deletedRecords, s.queue.encodeMoving, s.reopeningRecords,
	} {
		going = going && section(fn)
	}
}

// accountRecords are the accounts; the records that refer to them follow.
func (s *State) accountRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.accounts.ByNumber.Scan(func(_ uint64, a *accounts.Account) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Account{Account: &logpb.SnapshotAccount{
			Number: a.Number, Parent: a.Parent, Name: a.Name, Minute: a.Minute, Reports: a.Used[accounts.Reports],
		}}})
		return going
	})
	return going
}

// encodePages encodes where pages of detached records begin, because an entry drops records page by page.
func (rs *records) encodePages(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	rs.detached.Scan(func(p keptPage) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Page{Page: &logpb.SnapshotPage{Lease: p.from.lease, Op: p.from.op}}})
		return going
	})
	return going
}

// ledgerRecords are the quotas, leases and operations.
func (s *State) ledgerRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.quotas.byNumber.Scan(func(_ uint32, q *quota) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Quota{Quota: encodeQuota(q, &q.ledger)}})
		return going
	})
	if going {
		s.leases.Scan(func(_ uint64, l *lease) bool {
			going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Lease{Lease: encodeLease(l)}})
			return going
		})
	}
	if going {
		going = s.records.encodeRetiring(fn)
	}
	if going {
		going = s.eachOperation(func(o *operation) bool {
			return fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Operation{Operation: encodeOperation(o)}})
		})
	}
	return going
}

func encodeWaitSet(number uint32, ws *waitSet) *logpb.SnapshotWaitSet {
	encoded := &logpb.SnapshotWaitSet{Number: number, Quotas: ws.quotas}
	if ws.pooled {
		encoded.Asked = ws.asked
	}
	return encoded
}

// policyRecords are the holders with their stats and meters, and the queue.
func (s *State) policyRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.holders.byName.Scan(func(_ string, h *holder) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Holder{Holder: h.encode()}})
		return going
	})
	if going {
		s.quotas.byNumber.Scan(func(number uint32, q *quota) bool {
			if q.tried != [ledger.Classes]int64{} || q.first != 0 || q.wakeup != 0 || q.wakeNext {
				going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Demand{
					Demand: &logpb.SnapshotDemand{
						Quota: number, TriedNs: q.tried[:], First: q.first, FirstNs: q.firstSince, AgainNs: q.wakeup, Touched: q.wakeNext,
						Asked: encodeAsked(&q.pacer),
					},
				}})
			}
			if going && len(q.samples) > 0 {
				going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Samples{Samples: encodeSamples(q)}})
			}
			if over := q.override; going && over != nil {
				going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Override{Override: &logpb.SnapshotOverride{
					Quota: number, Limit: over.limit, UntilNs: over.until, Note: over.note,
				}}})
			}
			return going
		})
	}
	if going {
		s.holders.stats.Scan(func(t *holderStats) bool {
			going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_HolderStats{HolderStats: t.encode()}})
			return going
		})
	}
	if going {
		s.holders.meters.Scan(func(t *meter) bool {
			going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Meter{Meter: encodeMeter(t)}})
			return going
		})
	}
	if going {
		s.queue.waitSets.Scan(func(number uint32, ws *waitSet) bool {
			going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_WaitSet{WaitSet: encodeWaitSet(number, ws)}})
			return going
		})
	}
	if going {
		s.queue.waiters.Scan(func(_ uint64, w *waiter) bool {
			var virtualTime *uint64
			if h, ok := s.holders.byName.Get(w.req.Holder); ok && h.virtualTime != w.virtualTime {
				virtualTime = &w.virtualTime
			}
			going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Waiter{Waiter: &logpb.SnapshotWaiter{
				Ticket: w.ticket, Reserve: w.req, Class: w.class, Rank: w.rank, AgesNs: w.promoteAt, UntilNs: w.until, Saved: w.starved,
				Floor:   w.promotedAt,
				Session: w.from.Session, Seq: w.from.Seq, Key: w.from.Key, Account: w.account,
				WaitSet: w.waitSet, VirtualTime: virtualTime, Shares: uint32(w.shares),
			}}})
			return going
		})
	}
	return going && s.workflows.Records(fn)
}

// encodeAsked returns nil where nobody asked.
func encodeAsked(p *pacer) (asked []*logpb.SnapshotAsked) {
	if p.size == [ledger.ClassBackground]int64{} && p.sizeOld == p.size {
		return nil
	}
	for class := range p.size {
		asked = append(asked, &logpb.SnapshotAsked{Era: p.era[class], Size: p.size[class], SizeOld: p.sizeOld[class]})
	}
	return asked
}

func encodeSamples(q *quota) *logpb.SnapshotSamples {
	encoded := &logpb.SnapshotSamples{Quota: q.number, Window: q.sampledIn, Stage: int32(q.stage)}
	for _, s := range q.samples {
		encoded.Samples = append(encoded.Samples, &logpb.SnapshotSample{AtNs: s.at, WallNs: s.wall, Left: s.left})
	}
	return encoded
}

// memberRecords are the members and holder rules.
func (s *State) memberRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	s.members.Scan(func(id, address string) bool {
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Member{
			Member: &logpb.SnapshotMember{Id: id, ApiAddress: address},
		}})
		return going
	})
	for _, rule := range s.rules.list {
		going = going && fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Rule{Rule: rule}})
	}
	return going
}

func (s *State) encodeHead() *logpb.SnapshotHead {
	return &logpb.SnapshotHead{
		Index: s.index, Term: s.term, NowNs: s.clock.Now, WallEarlyNs: s.clock.WallEarly, WallLateNs: s.clock.WallLate,
		ClusterId: s.clusterID, Epoch: s.epoch, Grants: s.grants, LastLease: s.lastLease, LastTicket: s.queue.lastTicket,
		LastSession: s.requests.Last, LastQuota: s.quotas.last, BusyUntilNs: s.amounts.busyUntil,
		Limits: s.encodeLimits(), Level: s.featureLevel, LastAccount: s.accounts.Last,
		LastWaitSet: s.queue.lastWaitSet, WallShiftNs: s.clock.Shift,
		MovedLast: s.queue.movedLast, ScannedFrom: s.queue.scannedFrom, RetiredLast: s.records.retiredLast,
	}
}

func encodeQuota(q *quota, g *ledger.Ledger) *logpb.SnapshotQuota {
	encoded := &logpb.SnapshotQuota{
		Number: q.number, Definition: q.definition, Held: g.Held, Open: g.Open, CutoffNs: g.Cutoff, Window: g.Window,
		Known: g.Known, Closing: g.Closing, Disputed: g.Disputed, CloseBeginNs: g.CloseBegin, CloseEndNs: g.CloseEnd, LaterNs: g.Later,
		OpenedNs: g.Opened, Settled: g.Settled, ArrivalNs: g.Arrival, CooldownNs: q.cooldown, Attempt: q.attempt,
		Closer: q.closer, ClosedSinceNs: q.closedSince, Served: encodeServed(q.servedTo),
		ReopenedNs: q.reopened, Ramped: q.ramped, RampLease: q.rampLease, Observed: q.observed, Used: encodeUsed(g), UsedEnds: encodeUsedEnds(g),
		PaidUntilNs: q.pacer.paidUntil, ShutUntilNs: q.pacer.shutUntil, Draws: ledger.EncodeDraws(g), Loose: ledger.EncodeLoose(g),
		DrawnFromNs: g.DrawnFrom,
		Foreign:     g.Others.Amount, ForeignAtNs: g.Others.At, ForeignSeenNs: g.Others.Seen, CountsFromNs: g.Others.CountsFrom,
		LastCaller: g.Others.LastCaller, LastBeganNs: g.Others.LastBegan,
		Burnt: encodeBurn(&q.burn), BurntLast: q.burn.last, Total: g.Total,
		OthersTrust: ledger.EncodeTrust(&g.Others.Trust), LimitTrust: ledger.EncodeTrust(&g.LimitTrust),
	}
	if q.providerLimit.known {
		encoded.ProviderLimit, encoded.ProviderLimitNs = new(q.providerLimit.limit), q.providerLimit.at
	}
	if g.Capped != ledger.NoCap {
		capped := g.Capped
		encoded.Cap, encoded.CapWindow, encoded.CapEndNs, encoded.CappedBy = &capped, g.CappedIn, g.CapEnd, g.CappedBy
	}
	encoded.SinceNs, encoded.PassedNs, encoded.NamedBy, encoded.Confirmed, encoded.Uncut = g.Since, g.Passed, g.NamedBy, g.Confirmed, g.Uncut
	if c := g.Claim; c != (ledger.Claim{}) {
		encoded.Claim = &logpb.SnapshotClaim{BeginNs: c.Begin, EndNs: c.End, Caller: c.By, Confirmed: c.Confirmed}
	}
	for _, e := range g.Log {
		encoded.Log = append(encoded.Log, &logpb.SnapshotEntry{
			EndNs: e.End, Amount: e.Amount, Closed: e.Closed, Overrun: e.Overrun, UntilNs: e.Until,
		})
	}
	for _, p := range g.Past {
		encoded.Past = append(encoded.Past, &logpb.SnapshotPast{UntilNs: p.Until, Amount: p.Amount})
	}
	return encoded
}

func encodeLease(l *lease) *logpb.SnapshotLease {
	encoded := &logpb.SnapshotLease{
		Id: l.id, Fence: l.fence, Holder: l.holder, Class: l.class, DeadlineNs: l.deadline, TtlNs: l.ttl,
		Provisional: l.provisional, DoneBelow: l.doneBelow(), Account: l.account,
	}
	for i := range l.items {
		it := &l.items[i]
		encoded.Items = append(encoded.Items, &logpb.SnapshotItem{
			Quota: it.quota, Ancestor: it.ancestor, Window: it.window, Held: it.held,
		})
	}
	return encoded
}

func encodeOperation(o *operation) *logpb.SnapshotOperation {
	encoded := &logpb.SnapshotOperation{
		Lease: o.lease, Op: o.op, Fence: o.fence, Holder: o.holder, SpendByNs: o.spendBy, SpendByWallNs: o.spendByWall,
		TransitNs: o.transit, Asked: o.asked, Unspent: o.unspent, Actual: o.actual, Detached: o.detached, CheckNs: o.check,
		BeganWallNs: o.beganWall,
	}
	if o.detached { // for others the lease has the account
		encoded.Account = o.account
	} else {
		encoded.BeganNs = o.began
	}
	for i := range o.charges {
		c := &o.charges[i]
		encoded.Charges = append(encoded.Charges, &logpb.SnapshotCharge{
			Quota: c.quota, Ancestor: c.ancestor, Overrun: c.overrun, Amount: c.amount, Consumed: c.consumed,
			Unspent: c.unspent, EndNs: c.end, Window: c.window, SettledBefore: c.before, Class: int32(c.class), Total: c.total,
		})
	}
	return encoded
}

// encodeUsed returns nil where nothing is used.
func encodeUsed(g *ledger.Ledger) []int64 {
	if g.UsedByAll() == 0 {
		return nil
	}
	used := make([]int64, ledger.Classes)
	for class := range used {
		used[class] = g.Used[class].Amount
	}
	return used
}

func encodeUsedEnds(g *ledger.Ledger) (ends []*logpb.SnapshotEnding) {
	for class := range int32(ledger.Classes) {
		ends = ledger.EncodeEnds(ends, class, &g.Used[class])
	}
	return ends
}

// encodeServed returns nil where nothing was served.
func encodeServed(served [ledger.Classes]uint64) []uint64 {
	if served == [ledger.Classes]uint64{} {
		return nil
	}
	return served[:]
}

func (s *State) encodeLimits() *logpb.SetLimits {
	limits := s.Limits()
	limits.MaxTasks, limits.TaskLifeNs = unlessDefault(s.accounts.Limits.Tasks,
		accounts.DefaultMaxTasks), unlessDefault(s.accounts.Limits.TaskLife, accounts.DefaultTaskLife)
	limits.MaxKeys, limits.MaxLeases = unlessDefault(s.accounts.Limits.Keys,
		accounts.DefaultMaxKeys), unlessDefault(s.accounts.Limits.Leases, accounts.DefaultMaxLeases)
	limits.MaxReports = unlessDefault(s.accounts.Limits.Reports, accounts.DefaultMaxReports)
	limits.MaxHolderBytes = unlessDefault(s.accounts.Limits.HolderBytes, accounts.DefaultMaxHolders)
	limits.MaxOperationBytes = unlessDefault(s.accounts.Limits.OperationBytes, accounts.DefaultMaxRecords)
	limits.OperatorsPpm = unlessDefault(s.accounts.Limits.OperatorsPPM, accounts.DefaultOperatorsPPM)
	limits.CallerMinPpm = unlessDefault(s.accounts.Limits.CallerMinPPM, accounts.DefaultCallerMinPPM)
	limits.MaxCalls = unlessDefault(s.accounts.Limits.Calls, accounts.DefaultMaxCalls)
	limits.MaxStreams = unlessDefault(s.accounts.Limits.Streams, accounts.DefaultMaxStreams)
	limits.MaxConnections = unlessDefault(s.accounts.Limits.Connections, accounts.DefaultMaxConnections)
	return limits
}

// unlessDefault leaves out a limit with its default value, like snapshots from before it was a limit.
func unlessDefault(limit, born int64) *int64 {
	if limit == born {
		return nil
	}
	return &limit
}
