package fsm

import (
	"math"
	"strings"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Clock returns the state's own clock: that of the last entry.
func (s *State) Clock() Clock { return s.clock }

// Index returns the index of the last entry applied.
func (s *State) Index() uint64 { return s.index }

// Term returns the term of the last entry applied.
func (s *State) Term() uint64 { return s.term }

// FenceCounter returns the newest fence.
func (s *State) FenceCounter() uint64 { return s.fence() }

// Epoch returns the epoch of fences.
func (s *State) Epoch() uint32 { return s.epoch }

// ClusterID returns the cluster's id, empty before Found.
func (s *State) ClusterID() string { return s.clusterID }

// Holders returns the holder rules. They must not be changed.
func (s *State) Holders() []*logpb.HolderRule { return s.rules.list }

// Members returns the API addresses of nodes, by id.
func (s *State) Members() []MemberView {
	members := make([]MemberView, 0, s.members.Len())
	s.members.Scan(func(id, address string) bool {
		members = append(members, MemberView{ID: id, APIAddress: address})
		return true
	})
	return members
}

// Limits returns the bounds that are part of the replicated state; all are set.
func (s *State) Limits() *logpb.SetLimits {
	l := &s.accounts.Limits
	return &logpb.SetLimits{
		MaxSessions: &l.Sessions, MaxResultBytes: &l.ResultBytes, SessionIdleNs: &l.SessionIdle,
		KeyLifeNs: &l.KeyLife, MaxWaiters: &l.Waiters, MaxTasks: &l.Tasks, TaskLifeNs: &l.TaskLife,
		MaxKeys: &l.Keys, MaxLeases: &l.Leases, MaxReports: &l.Reports,
		MaxHolderBytes: &l.HolderBytes, MaxOperationBytes: &l.OperationBytes,
		OperatorsPpm: &l.OperatorsPPM, CallerMinPpm: &l.CallerMinPPM,
		MaxCalls: &l.Calls, MaxStreams: &l.Streams, MaxConnections: &l.Connections,
	}
}

// FullMemory returns the memory that the state takes with every budget full, in bytes.
func (s *State) FullMemory() int64 { return s.accounts.Limits.Memory() }

// Counts returns the sizes of the state's tables.
func (s *State) Counts() Counts {
	requests := s.requests.Counts()
	tasks, underWay, shelved := s.tasks.Counts()
	return Counts{
		Quotas: int64(s.quotas.byNumber.Len()), Leases: int64(s.leases.Len()), Operations: s.records.count,
		Holders: int64(s.holders.byName.Len()),
		Waiting: int64(s.queue.waiters.Len()), Sessions: int64(requests.Sessions), ResultBytes: requests.Bytes,
		Tasks: tasks, TasksUnderWay: underWay, TasksShelved: shelved,
	}
}

// LongestWaits returns how long the oldest waiting Reserve of each class has waited (nanoseconds); 0: none waits.
func (s *State) LongestWaits(at Clock) (longest [ledger.Classes]int64) {
	s.queue.waiters.Scan(func(_ uint64, w *waiter) bool {
		longest[w.class] = max(longest[w.class], at.Now-(w.until-w.req.WaitNs))
		return true
	})
	return longest
}

// Waiting reports whether a ticket is in the queue.
func (s *State) Waiting(ticket uint64) bool {
	w, ok := s.queue.waiters.Get(ticket)
	return ok && !s.queue.gone(w)
}

// NextDue returns the cluster time at which an entry should be written because something is due: an expiry, the end of
// a wait, a cooldown or a baton, or a timer of a waiter. It also returns whether anything is pending. While it is, some
// entry is wanted at least every tick, so that little time is lost when the leader fails.
func (s *State) NextDue() (at int64, pending bool) {
	return s.NextDueBy(func() (Clock, bool) { return s.clock, true })
}

// NextDueBy is NextDue for a caller with clocks: present returns cluster time and a live sample of Unix time, if there
// is one. The state's own views may stand still if they are ahead, and then a window seems to open too early.
func (s *State) NextDueBy(present func() (Clock, bool)) (at int64, pending bool) {
	at, pending = s.firstDue(), s.Pending()
	return min(at, s.quotas.nextTimer(present)), pending
}

// Awaited reports whether any Reserve waits.
func (s *State) Awaited() bool { return s.queue.waiters.Len() > 0 }

// Pending reports whether the passing of cluster time changes anything.
func (s *State) Pending() bool {
	// Records of ended leases are not checked for their own sake: they can wait for the next entry.
	_, _, tasks := s.tasks.NextDue(s.clock.Now)
	return s.firstDue() != math.MaxInt64 || s.clock.Now < s.amounts.busyUntil || tasks
}

// firstDue returns the first cluster time at which something is due, without timers; the largest int64: nothing is.
func (s *State) firstDue() int64 {
	at := int64(math.MaxInt64)
	for _, first := range []func() (due, bool){s.queue.waitEnds.Min, s.queue.promotions.Min, s.quotas.cooldowns.Min, s.quotas.overrides.Min} {
		if d, ok := first(); ok {
			at = min(at, d.At)
		}
	}
	if s.unfinished() {
		at = min(at, s.clock.Now)
	}
	if deadline, ok := s.deadlines.First(); ok {
		at = min(at, int64(deadline))
	}
	if lost, due, _ := s.tasks.NextDue(s.clock.Now); due {
		at = min(at, lost)
	}
	if review, pending := s.workflows.FirstReview(); pending {
		at = min(at, review)
	}
	return at
}

// Quota returns one quota as it stands at a clock.
func (s *State) Quota(name string, at Clock) (QuotaView, bool) {
	q := s.quotas.named(name)
	if q == nil {
		return QuotaView{}, false
	}
	return s.viewQuota(q, at), true
}

// Quotas returns up to limit quotas in name order whose names start with prefix and come after the name after.
func (s *State) Quotas(prefix, after string, limit int, at Clock) []QuotaView {
	var views []QuotaView
	s.quotas.names.Ascend(max(prefix, after), func(name string, number uint32) bool {
		if len(views) >= limit || !strings.HasPrefix(name, prefix) {
			return false
		}
		if name > after || after == "" {
			q, _ := s.quotas.byNumber.Get(number)
			views = append(views, s.viewQuota(q, at))
		}
		return true
	})
	return views
}

// ledgerAt returns a quota's ledger as it stands at a clock.
func (q *quota) ledgerAt(at Clock) ledger.Ledger {
	g := q.ledger.Clone()
	g.Advance(&q.rule, q.rule.At(at))
	return g
}

// maxBrokenShown bounds how many holders with an open breaker a quota lists.
const maxBrokenShown = 100

func (s *State) viewQuota(q *quota, at Clock) QuotaView {
	if q.rule.Kind == ledger.KindPool {
		return s.viewPool(q, at)
	}
	g := q.ledgerAt(at)
	v := QuotaView{
		Definition: q.definition, Usable: g.Usable(&q.rule), Held: g.Held, Consumed: g.Consumed(),
		Available: g.Available(&q.rule), CooldownLeft: max(q.cooldown-at.Now, 0), WindowLeft: -1, CappedTo: -1,
		Waiting: q.waiting, Leases: q.leases, Overrun: g.Overrun(),
	}
	if left, ok := g.Closes(&q.rule, q.rule.At(at)); ok {
		v.WindowLeft = max(left, 0)
	}
	if g.Capped != ledger.NoCap {
		v.CappedTo = g.Capped
	}
	v.Zone, _, _ = q.zone(&g, q.rule.At(at))
	v.Classes = q.classUses(&g, at)
	v.ReopensIn, v.Observed, v.Broken = q.reopens(at.Now), q.observed, s.holders.broken(q, at.Now, maxBrokenShown)
	if q.sampledIn == g.Window {
		v.Samples = len(q.samples)
	}
	v.Forecast = q.forecast(&g, at)
	v.Circuit = q.circuit(v.Forecast, at.Now)
	if over := q.override; over != nil {
		v.Override = &OverrideView{Limit: over.limit, Left: max(over.until-at.Now, 0), Note: over.note}
	}
	v.ObservedLimit = -1
	if q.providerLimit.known {
		v.ObservedLimit, v.ObservedAgo = q.providerLimit.limit, max(at.Now-q.providerLimit.at, 0)
	}
	v.Others, v.KeptForOthers = g.Others.Left(&q.rule, at.Now), g.Others.Kept
	v.Pacer = q.viewPacer(&g, at.Now)
	v.AvailableWithParents, v.ClosedFor = v.Available, q.closedFor(at.Now)
	for number := q.parent; number != 0; {
		parent, _ := s.quotas.byNumber.Get(number)
		above := parent.ledgerAt(at)
		v.AvailableWithParents = min(v.AvailableWithParents, above.Available(&parent.rule))
		v.ClosedFor = max(v.ClosedFor, parent.closedFor(at.Now))
		parent.boundTakes(v.Classes, &above, at.Now)
		number = parent.parent
	}
	if v.ClosedFor > 0 {
		for i := range v.Classes {
			v.Classes[i].Takes = 0
		}
	}
	return v
}

// viewPool returns a pool as it stands at a clock.
func (s *State) viewPool(p *quota, at Clock) QuotaView {
	v := QuotaView{
		Definition: p.definition, WindowLeft: -1, CappedTo: -1, ObservedLimit: -1, Waiting: p.waiting, AvailableWithParents: math.MinInt64,
		CooldownLeft: math.MaxInt64,
	}
	for _, member := range p.definition.GetPool().Members {
		its := s.viewQuota(s.quotas.named(member.Quota), at)
		v.Members = append(v.Members, PoolMemberView{Name: member.Name, Quota: its})
		v.Usable, v.Held = fixed.AddSaturated(v.Usable, its.Usable), fixed.AddSaturated(v.Held, its.Held)
		v.Consumed = fixed.AddSaturated(v.Consumed, its.Consumed)
		v.Available, v.Overrun = fixed.AddSaturated(v.Available, its.Available), fixed.AddSaturated(v.Overrun, its.Overrun)
		v.Leases += its.Leases
		if open := its.ClosedFor == 0; open == (v.CooldownLeft == 0) {
			v.AvailableWithParents = max(v.AvailableWithParents, its.AvailableWithParents)
		} else if open {
			v.AvailableWithParents = its.AvailableWithParents // all before it are closed
		}
		v.CooldownLeft = min(v.CooldownLeft, its.ClosedFor)
		if v.Circuit == 0 || its.Circuit < v.Circuit {
			v.Circuit = its.Circuit
		}
	}
	v.ClosedFor = v.CooldownLeft
	return v
}

// closedFor returns for how long a cooldown blocks calls to a quota (nanoseconds); 0: none does.
func (q *quota) closedFor(now int64) int64 {
	if q.rule.Policy.Observe {
		return 0
	}
	return max(q.cooldown-now, 0)
}

// CheckFence reports whether a lease lives and has this fence, and the time left until its deadline (nanoseconds).
func (s *State) CheckFence(lease, fence uint64, at Clock) (valid bool, left int64) {
	l, ok := s.leases.Get(lease)
	if !ok || l.fence != fence || l.deadline <= at.Now || s.gone(l) {
		return false, 0
	}
	return true, l.deadline - at.Now
}

// ItemsOf returns the names of the quotas that a lease holds or held, in the order of its items, and after them their
// ancestors: a report about the lease may name these. An ended lease has none.
func (s *State) ItemsOf(lease uint64) (names []string) {
	l, ok := s.leases.Get(lease)
	if !ok {
		return nil
	}
	for _, ancestors := range []bool{false, true} {
		for i := range l.items {
			if q, ok := s.quotas.byNumber.Get(l.items[i].quota); ok && l.items[i].ancestor == ancestors {
				names = append(names, q.name)
			}
		}
	}
	return names
}
