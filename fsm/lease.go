package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// lease holds amounts of quotas, reserved for a holder until a deadline.
type lease struct {
	cow.Made
	id, fence uint64
	holder    string
	// digest is the digest of its holder's name.
	digest uint64
	// class is the class in which it was granted.
	class int32
	// provisional: it was granted to a waiter that may be gone. The first deadline is short until its holder confirms
	// it.
	provisional bool
	deadline    int64
	// ttl is the longest length that was requested.
	ttl int64
	// operations are those that have a record; nil: none yet.
	operations *operations
	// account is charged with it.
	account uint64
	// items start in single, which avoids an allocation for one item.
	items  []item
	single [1]item
}

// item is the amount that a lease holds of a quota. With ancestor set, it is the share that an ancestor of the last
// real item's quota carries.
type item struct {
	quota    uint32
	ancestor bool
	// window is the window to which held belongs; in any other window it is void.
	window int64
	held   int64
}

// answer is a grant's result, allocated as a whole for one item, the usual case.
type answer struct {
	result  logpb.Result
	kind    logpb.Result_Granted
	granted logpb.Granted
	items   answerItems
}

// answerItems is the start of a list of items, with room for one.
type answerItems struct {
	list   [1]*logpb.GrantedItem
	single logpb.GrantedItem
}

// add appends an item to a list that started in a.list.
func (a *answerItems) add(items []*logpb.GrantedItem, quota string, amount, until int64) []*logpb.GrantedItem {
	next := &a.single
	if len(items) > 0 {
		next = new(logpb.GrantedItem)
	}
	next.Quota, next.Amount, next.UntilNs = quota, amount, until
	return append(items, next)
}

// grant makes a lease, charged to an account, and returns its Granted in a result. The needs must have been judged.
func (m *Machine) grant(rq *request, needs []need, ticket, account uint64) *logpb.Result {
	req := rq.req
	m.grants++
	m.lastLease++
	ttl := req.TtlNs
	if ttl == 0 {
		ttl = defaultTTL
	}
	h := m.holders.use(req.Holder)
	l := m.freeList.lease()
	l.Made, l.id, l.fence, l.class = cow.In(m.generation), m.lastLease, m.fence(), rq.class
	l.holder, l.digest = h.name, m.digests.of(h.name)
	l.account = account
	l.ttl, l.deadline = ttl, m.clock.Now+ttl
	if ticket != 0 && !req.Consume && ttl > provisionalTTL {
		l.provisional, l.deadline = true, m.clock.Now+provisionalTTL
	}
	m.recordGrant(rq, needs)
	end := m.workflows.RecordGrant(workflowHost{m}, l.holder, l.fence, enforced(needs) != nil, amountIn(needs))
	l.deadline = min(l.deadline, end)
	if l.items = l.single[:0]; len(needs) > 1 {
		l.items = make([]item, 0, len(needs))
	}
	m.amounts.hold(l, req, needs)
	m.accounts.Add(account, accounts.Leases, accounts.WeightOf(len(l.items)))
	m.leases.Load(l.id, l) // Load is Set that tries the end first: new leases always belong there
	m.leasesOf.Add(l.digest, l.id)
	m.deadlines.Add(uint64(l.deadline), l.id)
	recordServed(needs, rq.rank, h.virtualTime)
	m.queue.addCost(l.holder, costOf(needs))
	result := unwantedResult
	if m.wantResult || ticket != 0 {
		result = m.answer(l, needs, ticket)
		nameMembers(req, result.GetGranted())
	}
	m.emitGranted(l, ticket, result)
	if req.Consume {
		m.consumeAll(l, result.GetGranted())
	}
	return result
}

// unwantedResult is the result of a grant that nobody reads.
var unwantedResult = &logpb.Result{}

// answer builds the result of a grant.
func (m *Machine) answer(l *lease, needs []need, ticket uint64) *logpb.Result {
	a := new(answer)
	a.result.Kind, a.kind.Granted = &a.kind, &a.granted
	a.granted.Lease, a.granted.Fence, a.granted.DeadlineNs = l.id, l.fence, l.deadline
	a.granted.Class, a.granted.Ticket, a.granted.AskedTtlNs = l.class, ticket, l.ttl
	a.granted.Items = m.amounts.grantedItems(l, &a.items)
	a.granted.Forecast, a.granted.BackPressure = m.judge.forecastOf(needs), m.workflows.Pressure(l.holder, m.clock.Now)
	return &a.result
}

// emitGranted emits one event for each item of a grant; the first carries a waiter's result.
func (m *Machine) emitGranted(l *lease, ticket uint64, result *logpb.Result) {
	if ticket == 0 {
		result = nil
	}
	for i := range l.items {
		if l.items[i].ancestor {
			continue
		}
		m.emit(effect.Event{
			Kind: effect.EventGranted, Quota: m.quotas.get(l.items[i].quota).name, Holder: l.holder, Lease: l.id, Fence: l.fence,
			Ticket: ticket, Amount: l.items[i].held, Result: result,
		})
		result = nil
	}
}

// quotaOf returns the needed quota with a name.
func quotaOf(needs []need, name string) *quota {
	if len(needs) == 1 {
		return needs[0].quota
	}
	return needs[slices.IndexFunc(needs, func(n need) bool { return n.quota.name == name })].quota
}

// costOf returns the cost of needs in virtual time, at weight 1: that of the scarcest.
func costOf(needs []need) (most int64) {
	for _, n := range needs {
		most = max(most, cost(n.quota, n.amount))
	}
	return most
}

// itemEnd returns when an item ends (cluster time): at the lease's deadline, or when its window closes.
func itemEnd(q *quota, it *item, deadline int64, clock Clock) int64 {
	if left, ok := q.ledger.Closes(&q.rule, q.rule.At(clock)); ok && it.window == q.ledger.Window {
		return min(deadline, fixed.AddSaturated(clock.Now, left))
	}
	return deadline
}

// heldOf returns the amount that an item still holds; holdings in a closed window are void.
func (it *item) heldOf(q *quota) int64 {
	if q == nil || it.window != q.ledger.Window {
		return 0
	}
	return it.held
}

// eachLeaseOf calls fn for a holder's leases in the order of ids, starting at the id from, until it returns false.
func (s *State) eachLeaseOf(holder string, from uint64, fn func(*lease) bool) {
	s.leasesOf.Ascend(entry.DigestHolder(holder), from, func(id uint64) bool {
		l, _ := s.leases.Get(id)
		return l.holder != holder || fn(l)
	})
}

// newestLease returns a holder's newest live lease; nil: none.
func (s *State) newestLease(holder string) (newest *lease) {
	s.leasesOf.Descend(entry.DigestHolder(holder), func(id uint64) bool {
		if l, _ := s.leases.Get(id); l.holder == holder {
			newest = l
		}
		return newest == nil
	})
	if newest != nil && s.gone(newest) {
		return nil
	}
	return newest
}

// editLease returns a lease for update.
func (m *Machine) editLease(l *lease) *lease {
	if l.MadeIn(m.generation) {
		return l
	}
	c := *l
	c.items = append(c.single[:0], l.items...)
	c.Made = cow.In(m.generation)
	m.leases.Set(c.id, &c)
	return &c
}

// liveLease returns a lease. One past its deadline, or before its holder's resume, ends here: a command that finds it
// before it is expired gets the same answer as later.
func (m *Machine) liveLease(id uint64) (*lease, bool) {
	l, ok := m.leases.Get(id)
	if ok && m.gone(l) {
		m.endLease(m.editLease(l), effect.EventRevoked, false)
		return nil, false
	}
	if ok && l.deadline <= m.clock.Now {
		m.endLease(m.editLease(l), effect.EventExpired, true)
		return nil, false
	}
	return l, ok
}

// lookupLease returns, for update, the lease that a command names, if the caller may use it, or why the command fails.
func (m *Machine) lookupLease(id, fence uint64, by string) (*lease, *logpb.Failure) {
	if fence > m.fence() {
		return nil, effect.NeverIssued(fence, m.fence())
	}
	l, ok := m.liveLease(id)
	if !ok || l.fence != fence {
		return nil, m.stale(id)
	}
	if by != "" && !Match(by, l.holder) {
		return nil, &logpb.Failure{
			Reason:  logpb.Reason_REASON_FOREIGN_LEASE,
			Message: fmt.Sprintf("lease %d belongs to a holder outside of what your token covers", id),
			Hint:    "use the token of the lease's holder",
		}
	}
	l = m.editLease(l)
	m.amounts.voidClosed(l)
	return l, nil
}

func (m *Machine) stale(id uint64) *logpb.Failure {
	return &logpb.Failure{
		Reason: logpb.Reason_REASON_STALE_FENCE, FenceCounter: m.fence(),
		Message: fmt.Sprintf("lease %d has ended, or this is not its fence", id),
		Hint:    "stop using it and reserve anew",
	}
}

// setDeadline moves a lease's deadline.
func (m *Machine) setDeadline(l *lease, deadline int64) {
	if deadline == l.deadline {
		return
	}
	m.deadlines.Remove(uint64(l.deadline), l.id)
	l.deadline = deadline
	m.deadlines.Add(uint64(l.deadline), l.id)
}

// confirm gives a provisional lease the requested length, now that its holder uses it.
func (m *Machine) confirm(l *lease) {
	if l.provisional {
		l.provisional = false
		m.setDeadline(l, max(l.deadline, min(m.clock.Now+l.ttl, m.workflows.BatonEnd(l.holder, l.fence))))
	}
}

// confirmAtOnce gives a lease its full length at once: its Reserve did not have to wait after all.
func (m *Machine) confirmAtOnce(granted *logpb.Granted) {
	l, _ := m.leases.Get(granted.Lease)
	l = m.editLease(l)
	m.confirm(l)
	granted.Ticket, granted.DeadlineNs, granted.Items = 0, l.deadline, m.grantedAgain(l, granted)
}

// grantedAgain returns a grant's items under the lease's present deadline.
func (m *Machine) grantedAgain(l *lease, granted *logpb.Granted) []*logpb.GrantedItem {
	if granted.Consumed != nil {
		return granted.Items
	}
	items := m.amounts.grantedItems(l, new(answerItems))
	for i, item := range granted.Items {
		items[i].Pool, items[i].Member = item.Pool, item.Member
	}
	return items
}

// renew extends a lease; it never shortens it.
func (m *Machine) renew(command *logpb.Renew, by string) *logpb.Result {
	if command.TtlNs != 0 && (command.TtlNs < minTTL || command.TtlNs > maxTTL) {
		return effect.Failed(effect.Invalid("the ttl is not within 1 s to 24 h", "leave it out for the length that was reserved"))
	}
	l, failure := m.lookupLease(command.Lease, command.Fence, by)
	if failure != nil {
		return effect.Failed(failure)
	}
	ttl := command.TtlNs
	if ttl == 0 {
		ttl = l.ttl
	}
	l.provisional, l.ttl = false, max(l.ttl, ttl)
	m.setDeadline(l, max(l.deadline, min(m.clock.Now+ttl, m.workflows.BatonEnd(l.holder, l.fence))))
	return &logpb.Result{Kind: &logpb.Result_Renewed{Renewed: &logpb.Renewed{DeadlineNs: l.deadline, Closed: m.amounts.closedItems(l)}}}
}

// release releases held amounts. Without items it releases all and ends the lease.
func (m *Machine) release(command *logpb.Release, by string) *logpb.Result {
	l, failure := m.lookupLease(command.Lease, command.Fence, by)
	if failure != nil {
		return effect.Failed(failure)
	}
	if len(command.Items) == 0 {
		returned := m.endLease(l, effect.EventReleased, false)
		return &logpb.Result{Kind: &logpb.Result_Released{Released: &logpb.Released{Returned: returned, Ended: true}}}
	}
	parts, failure := m.amounts.heldParts(l, command.Items, nil)
	if failure != nil {
		return effect.Failed(failure)
	}
	released := &logpb.Released{}
	var unused int64
	for _, part := range parts {
		if part.quota.rule.Kind != ledger.KindSlots {
			unused = max(unused, cost(part.quota, part.amount))
		}
		m.amounts.unhold(l, part.index, part.amount)
		released.Returned = append(released.Returned, &logpb.GrantedItem{Quota: part.quota.name, Amount: part.amount})
	}
	m.queue.addCost(l.holder, -unused)
	return &logpb.Result{Kind: &logpb.Result_Released{Released: released}}
}

func itemClosed(quota string) *logpb.Failure {
	return &logpb.Failure{
		Reason: logpb.Reason_REASON_ITEM_CLOSED, Quota: quota,
		Message: fmt.Sprintf("the window of %q in which this was held has closed", quota), Hint: "reserve anew",
	}
}

func notHeld(quota, message string) *logpb.Failure {
	return &logpb.Failure{Reason: logpb.Reason_REASON_NOT_HELD, Quota: quota, Message: message, Hint: "name what the lease holds"}
}

// endLease ends a lease and returns the released items. With grace, slots stay in use for a while: their holder did not
// release them itself, and the provider cannot check a fence.
func (m *Machine) endLease(l *lease, how effect.EventKind, withGrace bool) []*logpb.GrantedItem {
	m.deadlines.Remove(uint64(l.deadline), l.id)
	return m.endUnlisted(l, how, withGrace)
}

// endCost returns the work of ending a lease, without its records.
func endCost(l *lease) int { return 1 + len(l.items) }

// endUnlisted is endLease for a lease whose deadline is no longer listed.
func (m *Machine) endUnlisted(l *lease, how effect.EventKind, withGrace bool) []*logpb.GrantedItem {
	m.bounds.ends.spend(endCost(l))
	returned, unused, grace := m.amounts.letGo(l, withGrace)
	m.leases.Delete(l.id)
	m.leasesOf.Remove(l.digest, l.id)
	m.accounts.Add(l.account, accounts.Leases, -accounts.WeightOf(len(l.items)))
	m.detachRecords(l)
	if len(grace) > 0 {
		o := &operation{lease: l.id, fence: l.fence, holder: l.holder, account: l.account, charges: grace}
		o.check = m.amounts.nextCheck(o)
		m.records.keepDetached(o)
	}
	m.queue.addCost(l.holder, -unused)
	m.emit(effect.Event{Kind: how, Holder: l.holder, Lease: l.id, Fence: l.fence})
	m.workflows.RecordEnd(workflowHost{m}, l.holder, l.fence)
	m.freeList.keep(l, m.generation)
	return returned
}

// takenAtOnce is how many leases past their deadline are taken at once, to be ended one after the other.
const takenAtOnce = 64

// expireLeases ends leases past their deadline, in the order of deadlines, as many as the entry may.
func (m *Machine) expireLeases() {
	for done := 0; done < maxDuePerEntry && m.bounds.ends.left > 0; done += len(m.ending) {
		m.ending = m.deadlines.TakeUntil(m.ending[:0], uint64(m.clock.Now), min(takenAtOnce, maxDuePerEntry-done))
		if len(m.ending) == 0 {
			return
		}
		m.expire(m.ending)
	}
}

// expire ends leases whose deadlines are no longer listed. It lists again those that the entry may not end.
func (m *Machine) expire(ids []uint64) {
	for _, id := range ids {
		l, _ := m.leases.Get(id)
		if m.bounds.ends.left == 0 {
			m.deadlines.Add(uint64(l.deadline), id)
			continue
		}
		if m.gone(l) {
			m.endUnlisted(m.editLease(l), effect.EventRevoked, false)
			continue
		}
		m.endUnlisted(m.editLease(l), effect.EventExpired, true)
	}
}

// revokeLease ends a lease at an operator's command.
func (m *Machine) revokeLease(command *logpb.RevokeLease) *logpb.Result {
	l, ok := m.liveLease(command.Lease)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_LEASE, fmt.Sprintf("there is no lease %d", command.Lease), "it may have ended by itself")
	}
	returned := m.endLease(m.editLease(l), effect.EventRevoked, true)
	return &logpb.Result{Kind: &logpb.Result_Released{Released: &logpb.Released{Returned: returned, Ended: true}}}
}
