package fsm

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// waiter is a Reserve that waits. Only generation, rank, promoteAt, virtualTime, promotedAt and starved change, and shares with its wait set.
type waiter struct {
	cow.Made
	ticket uint64
	req    *logpb.Reserve
	priority
	// starved: it was first in line for so long that it goes before critical waiters.
	starved bool
	// promoteAt is when ageing promotes it to standard (cluster time); 0: never.
	promoteAt int64
	// virtualTime is its holder's; promotedAt is the virtual time at which it entered the standard class, 0: it was not promoted.
	virtualTime, promotedAt uint64
	waitSet                 uint32
	until                   int64
	from                    dedup.RequestID
	// account is charged with it, and with the lease and the operation that it may become: that of so many items.
	account uint64
	shares  int
}

// waitSet is all waiters that need the same set of quotas. If one of these quotas is set aside for another waiter, the whole set
// is blocked: so a pass over the queue examines the heads of wait sets, not every waiter.
type waitSet struct {
	cow.Made
	number uint32
	// asked are the numbers of what was asked for in ascending order, ancestors included; quotas are those of what may be drawn on, which are
	// the same unless pools are asked for.
	asked, quotas []uint32
	// pooled: pools are asked for, so that a waiter needs one member's quotas, not all. What is asked for may be all that can be drawn on
	// even so.
	pooled bool
	length int64
	// ahead counts who waits in it before others.
	ahead ahead
}

// place is a waiter's place in its wait set. Merged by place, the wait sets give the one order of all waiters.
type place struct {
	waitSet     uint32
	rank        int32
	virtualTime uint64
	ticket      uint64
}

func lessPlace(a, b place) bool {
	if a.waitSet != b.waitSet {
		return a.waitSet < b.waitSet
	}
	return before(a, b)
}

// before is the total order of all waiters: rank, virtual time, ticket.
func before(a, b place) bool {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.virtualTime, b.virtualTime), cmp.Compare(a.ticket, b.ticket)) < 0
}

func (w *waiter) place() place {
	p := place{waitSet: w.waitSet, rank: w.rank, virtualTime: max(w.virtualTime, w.promotedAt), ticket: w.ticket}
	if w.starved {
		p.rank = rankStarved
	}
	return p
}

// changeWaiter replaces a waiter by a changed copy, and marks the quotas that it waits for dirty.
func (m *Machine) changeWaiter(w *waiter, change func(*waiter)) {
	changed := *w
	changed.Made = cow.In(m.generation)
	change(&changed)
	m.order.Delete(w.place())
	m.waiters.Set(changed.ticket, &changed)
	m.order.Set(changed.place())
	l := m.editWaitSet(changed.waitSet)
	l.ahead.add(w.place().rank, -1)
	l.ahead.add(changed.place().rank, 1)
	for _, number := range l.quotas {
		if q := m.quotas.editNow(number); q != nil {
			q.ahead.add(w.place().rank, -1)
			q.ahead.add(changed.place().rank, 1)
			m.quotas.markDirty(q)
		}
	}
}

// enqueue puts a Reserve into the queue. A holder enters at the virtual time of the waiters it competes with, never below its own: a
// holder that was away, or waits for other quotas, saves nothing up.
func (m *Machine) enqueue(rq *request, needs []need, from dedup.RequestID) *waiter {
	req := rq.req
	h := m.holders.use(req.Holder)
	if entry := m.entryVirtualTime(needs, rq.rank); entry > h.virtualTime {
		m.setVirtualTime(h, entry)
	}
	h.waiting++
	m.lastTicket++
	w := &waiter{
		Made: cow.In(m.generation), ticket: m.lastTicket, req: req, priority: rq.priority, promoteAt: m.judge.promotesAt(req.Holder, rq.priority, needs),
		virtualTime: h.virtualTime, until: fixed.AddSaturated(m.clock.Now, req.WaitNs), from: from,
		account: m.accounts.Open(m.payer),
	}
	if onPool(needs) {
		asked, _ := m.quotas.askedBy(req) // its quotas exist: needs are of them
		m.insertWaiter(w, asked)
		return w
	}
	m.insertWaiter(w, numbersOf(needs))
	return w
}

// insertWaiter enters a waiter into the tables, in the wait set of what it asks for.
func (m *Machine) insertWaiter(w *waiter, asked []uint32) {
	l := m.waitSetFor(asked)
	l.length++
	l.ahead.add(w.place().rank, 1)
	w.waitSet = l.number
	for _, number := range l.quotas {
		if q := m.quotas.edit(number); q != nil { // one that was deleted stands in a snapshot's line
			q.waiting++
			q.ahead.add(w.place().rank, 1)
			m.quotas.markChanged(q)
		}
	}
	for _, item := range w.req.Items {
		if q := m.quotas.named(item.Quota); q != nil {
			item.Quota = q.name // and not one name for each waiter
		}
	}
	if w.shares == 0 { // a snapshot has what it counted as before a quota of its was deleted
		w.shares = m.quotas.sharesOf(w.req)
	}
	m.chargeWaiter(w, 1)
	m.waiters.Set(w.ticket, w)
	m.order.Set(w.place())
	m.waitersOf.Set(ownedBy(w.req.Holder, w.ticket))
	m.waitEnds.Set(due{At: w.until, ID: w.ticket})
	if w.promoteAt != 0 {
		m.promotions.Set(due{At: w.promoteAt, ID: w.ticket})
	}
}

// chargeWaiter charges a waiter's account with it, or takes that back.
func (m *Machine) chargeWaiter(w *waiter, times int64) {
	weight := accounts.WeightOf(w.shares)
	m.accounts.Add(w.account, accounts.Waiters, times*weight)
	m.accounts.Add(w.account, accounts.Leases, times*weight)
	if w.req.Consume {
		m.accounts.Add(w.account, accounts.Operations, times*recordBytes(w.shares))
	}
}

// sharesOf returns how many items the lease of a Reserve has, the shares of ancestors included.
func (qs *quotaTable) sharesOf(req *logpb.Reserve) (shares int) {
	for _, item := range req.Items {
		q := qs.named(item.Quota)
		if q != nil && q.rule.Kind == ledger.KindPool {
			shares += poolShares
			continue
		}
		for ; q != nil; q, _ = qs.byNumber.Get(q.parent) {
			shares++
		}
	}
	return shares
}

// eachWaiterOf calls fn for what a holder waits for, by ticket, until it returns false.
func (s *State) eachWaiterOf(holder string, fn func(*waiter) bool) {
	s.eachWaiterFrom(holder, 0, fn)
}

// eachWaiterFrom does so from a ticket on.
func (s *State) eachWaiterFrom(holder string, from uint64, fn func(*waiter) bool) {
	first := ownedBy(holder, from)
	s.waitersOf.Ascend(first, func(o owned) bool {
		if o.holder != first.holder {
			return false
		}
		w, _ := s.waiters.Get(o.id)
		return w.req.Holder != holder || fn(w)
	})
}

// dequeue takes a waiter out of the queue. What it kept for itself comes free.
func (m *Machine) dequeue(w *waiter) {
	w, _ = m.waiters.Delete(w.ticket) // the present one: its virtual time may have changed
	m.order.Delete(w.place())
	m.waitersOf.Delete(ownedBy(w.req.Holder, w.ticket))
	m.waitEnds.Delete(due{At: w.until, ID: w.ticket})
	m.promotions.Delete(due{At: w.promoteAt, ID: w.ticket})
	m.chargeWaiter(w, -1)
	m.holders.use(w.req.Holder).waiting--
	l := m.editWaitSet(w.waitSet)
	l.length--
	l.ahead.add(w.place().rank, -1)
	for _, number := range l.quotas {
		if q := m.quotas.editNow(number); q != nil {
			q.waiting--
			q.ahead.add(w.place().rank, -1)
			m.quotas.markDirty(q)
		}
	}
	if l.length == 0 {
		m.waitSets.Delete(l.number)
		m.waitSetOf.Delete(waitSetKey(l.asked))
		for _, number := range l.quotas {
			m.waitSetsOf.Delete(quotaWaitSet{quota: number, waitSet: l.number})
		}
	}
}

func numbersOf(needs []need) []uint32 {
	numbers := make([]uint32, len(needs))
	for i, n := range needs {
		numbers[i] = n.quota.number
	}
	return numbers
}

// waitSetFor returns the wait set of what is asked for, for update.
func (m *Machine) waitSetFor(asked []uint32) *waitSet {
	key := waitSetKey(asked)
	if number, ok := m.waitSetOf.Get(key); ok {
		return m.editWaitSet(number)
	}
	m.lastWaitSet++
	l := &waitSet{
		Made: cow.In(m.generation), number: m.lastWaitSet, asked: asked, quotas: m.quotas.drawnOn(asked), pooled: slices.ContainsFunc(asked, m.quotas.isPool),
	}
	m.enterWaitSet(l)
	return l
}

func (m *Machine) enterWaitSet(l *waitSet) {
	m.waitSets.Set(l.number, l)
	m.waitSetOf.Set(waitSetKey(l.asked), l.number)
	for _, number := range l.quotas {
		m.waitSetsOf.Set(quotaWaitSet{quota: number, waitSet: l.number})
	}
}

func (m *Machine) editWaitSet(number uint32) *waitSet {
	l, _ := m.waitSets.Get(number)
	l, _ = cow.Edit(m.waitSets, number, l, m.generation)
	return l
}

func waitSetKey(numbers []uint32) string {
	key := make([]byte, 0, 4*len(numbers))
	for _, number := range numbers {
		key = binary.BigEndian.AppendUint32(key, number)
	}
	return string(key)
}

// liveWaiter returns a waiter. One that is to leave the queue, and has not come to it yet, leaves here, so that who meets it before finds what
// comes after.
func (m *Machine) liveWaiter(ticket uint64) (*waiter, bool) {
	w, ok := m.waiters.Get(ticket)
	return w, ok && !m.endGone(w)
}

// endGone takes a waiter out of the queue whose session has ended, or of whose quotas one was deleted; false: it is neither.
func (m *Machine) endGone(w *waiter) bool {
	if m.requests.Abandoned(w.from) {
		m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WITHDRAWN))
		return true
	}
	name, deleted := m.lostQuota(w)
	if deleted {
		m.refuseFor(w, name)
	}
	return deleted
}

// goneWaiter tells whether a waiter is to leave the queue, whatever comes free.
func (s *State) goneWaiter(w *waiter) bool {
	_, deleted := s.lostQuota(w)
	return deleted || s.requests.Abandoned(w.from)
}

// endWait takes a waiter out of the queue with its final result.
func (m *Machine) endWait(w *waiter, refusal *logpb.Refusal) {
	m.recordRefusal(w.req.Holder, refusal)
	m.finishWait(w, refusal)
}

// finishWait does so for one of whose refusal the binding quota's meter has been told, or there is none.
func (m *Machine) finishWait(w *waiter, refusal *logpb.Refusal) {
	m.dequeue(w)
	refusal.BackPressure = m.workflows.Pressure(w.req.Holder, m.clock.Now)
	result := effect.Refused(refusal)
	m.requests.Complete(requestHost{m}, w.from, w.ticket, result)
	m.emit(effect.Event{
		Kind: effect.EventWaitEnded, Quota: refusal.Quota, Holder: w.req.Holder, Ticket: w.ticket,
		Reason: refusal.Reason, Result: result,
	})
}

// refusalOf makes a waiter's refusal: for a reason of its own, with what stands in the way now.
func (m *Machine) refusalOf(w *waiter, reason logpb.Reason) *logpb.Refusal {
	m.asker = w.ticket
	refusal := &logpb.Refusal{}
	needs, failure := m.judge.needs(w.req)
	if failure == nil {
		rq := m.judge.requestOf(w)
		if judged := rq.obstacle(needs); judged != nil {
			refusal = judged
		} else {
			refusal = m.judge.behind(needs)
		}
	}
	refusal.Reason = reason
	if reason == logpb.Reason_REASON_WAIT_EXPIRED {
		refusal.Advice = "come back then, or wait for longer"
	}
	return refusal
}

// withdraw takes a waiting Reserve out of the queue.
func (m *Machine) withdraw(command *logpb.Withdraw, by string) *logpb.Result {
	w, ok := m.liveWaiter(command.Ticket)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_TICKET, "no Reserve waits under this ticket",
			"it was granted, refused or withdrawn before")
	}
	if by != "" && !Match(by, w.req.Holder) {
		return effect.Fail(logpb.Reason_REASON_FOREIGN_LEASE, "the waiting Reserve belongs to another holder", "")
	}
	m.endWait(w, m.refusalOf(w, logpb.Reason_REASON_WITHDRAWN))
	return effect.Done()
}

// serve serves the waiters of dirty quotas in order. For each quota that is short, only the first eligible waiter sets its
// amounts aside, in all its quotas; later waiters that need that quota are passed over; all others are granted from what is
// then left.
func (m *Machine) serve() {
	commanded := m.commanded
	m.commanded = false
	for len(m.quotas.dirty) > 0 {
		if m.bounds.serves.left == 0 || m.bounds.tries.left == 0 {
			m.deferDirty()
			break
		}
		m.servePass()
		m.quotas.dirty, m.reordered = m.reordered, m.quotas.dirty // a grant may have put another waiter first
		clear(m.reordered)
	}
	clear(m.reordered)
	m.commanded = commanded
}

// maxServedPerEntry bounds how many waiters leave the queue in one entry because something came free: of a full queue they would take
// the better part of a second. Those behind them follow with the next entries.
const maxServedPerEntry = maxDuePerEntry

// maxTriedPerEntry bounds how much passes look at in one entry that serve nobody. What came free when that was used up is looked at with the
// next entry, all of it in one pass: so an entry has at most one pass more than this, however many commands it has.
const maxTriedPerEntry = 1 << 16

// deferDirty leaves the waiters of dirty quotas to the next entry, which is due at once.
func (m *Machine) deferDirty() {
	for number := range m.quotas.dirty { // in any order
		if q := m.quotas.get(number); q != nil && q.waiting > 0 {
			m.quotas.wakeAt(number, m.clock.Now+1)
		}
	}
	clear(m.quotas.dirty)
}

func (m *Machine) servePass() {
	heads := m.affectedWaitSets()
	clear(m.quotas.dirty)
	heap.Init(&heads)
	aside, blocked := map[uint32]int64{}, map[uint32]bool{}
	isBlocked := func(number uint32) bool { return blocked[number] }
	for len(heads) > 0 {
		if m.bounds.serves.left == 0 {
			for i := range heads {
				for _, number := range heads[i].quotas {
					m.reordered[number] = true
				}
			}
			return
		}
		first := &heads[0]
		m.bounds.tries.spend(len(first.quotas))
		next, ok := m.placeFrom(first.from)
		switch {
		case !ok, first.passed > maxPassedOver, !first.pooled && slices.ContainsFunc(first.quotas, isBlocked):
			heap.Pop(&heads)
		case next != first.next: // a grant advanced its holder's virtual time, and reordered its other waiters
			first.next = next
			heap.Fix(&heads, 0)
		default:
			w, _ := m.waiters.Get(next.ticket)
			switch m.tryWaiter(w, first, aside, blocked) {
			case left:
				m.bounds.serves.spend(len(w.req.Items)) // each has an event
			case waitSetBlocked:
				heap.Pop(&heads)
			case passedOver:
				first.passed++
				first.from = next
				first.from.ticket++
			case classPassedOver:
				first.passed++
				first.from = place{waitSet: next.waitSet, rank: next.rank + 1}
			}
		}
	}
}

// maxPassedOver bounds how many waiters of one wait set a pass examines when policy withholds something from them.
const maxPassedOver = 1000

// tried is what a waiter's try came to.
type tried int

const (
	// left: the waiter is not in the queue any more.
	left tried = 1
	// waitSetBlocked: the rest of its wait set need not be examined.
	waitSetBlocked tried = 2
	// passedOver: the waiter is ineligible, who stands behind it may not be; classPassedOver: so is the rest of its class.
	passedOver      tried = 3
	classPassedOver tried = 4
)

// waitSetHead is a wait set and its first waiter that may be eligible: the first at or after from.
type waitSetHead struct {
	number uint32
	quotas []uint32
	pooled bool
	next   place
	from   place
	passed int
}

// waitSetHeap is wait sets by their first waiters' places; it implements heap.Interface.
type waitSetHeap []waitSetHead

func (h *waitSetHeap) Len() int           { return len(*h) }
func (h *waitSetHeap) Less(i, j int) bool { return before((*h)[i].next, (*h)[j].next) }
func (h *waitSetHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

// Push is never called: wait sets only leave.
func (h *waitSetHeap) Push(any) { panic("fsm: a lane was pushed") }

func (h *waitSetHeap) Pop() any {
	last := len(*h) - 1
	*h = (*h)[:last]
	return nil
}

// affectedWaitSets returns the wait sets that need a dirty quota, and those that share quotas with them, directly or not: the
// order among all of these matters.
func (m *Machine) affectedWaitSets() waitSetHeap {
	var heads waitSetHeap
	known := map[uint32]bool{}
	open := make([]uint32, 0, len(m.quotas.dirty))
	for number := range m.quotas.dirty { // sorted below
		open = append(open, number)
	}
	slices.Sort(open)
	visited := map[uint32]bool{}
	for len(open) > 0 {
		number := open[0]
		open = open[1:]
		if visited[number] {
			continue
		}
		visited[number] = true
		if q := m.quotas.edit(number); q != nil {
			m.wakeupLost = m.wakeupLost || q.wakeNext || q.wakeup > m.clock.Now
			q.wakeup, q.wakeNext = 0, false
		}
		m.waitSetsOf.Ascend(quotaWaitSet{quota: number}, func(ql quotaWaitSet) bool {
			if ql.quota != number {
				return false
			}
			if !known[ql.waitSet] {
				known[ql.waitSet] = true
				l, _ := m.waitSets.Get(ql.waitSet)
				from := place{waitSet: l.number, rank: rankStarved}
				if next, ok := m.placeFrom(from); ok {
					heads = append(heads, waitSetHead{number: l.number, quotas: l.quotas, pooled: l.pooled, next: next, from: from})
				}
				open = append(open, l.quotas...)
				m.bounds.tries.spend(len(l.quotas))
			}
			return true
		})
	}
	return heads
}

// placeFrom returns the first place of a wait set from one on.
func (m *Machine) placeFrom(from place) (first place, ok bool) {
	m.order.Ascend(from, func(p place) bool {
		first, ok = p, p.waitSet == from.waitSet
		return false
	})
	return first, ok
}

// maxWalkedPerEntry bounds how many waiters of steps commands go through to have them tried. Where that is used up, the steps are
// gone through once, when all commands are carried out, and their waiters are tried with the next entry.
const maxWalkedPerEntry = 2 * maxWaitersOfHolder

// wakeWaitersOf has a holder's waiters tried, also when that comes up while waiters are tried.
func (m *Machine) wakeWaitersOf(name string) {
	h, ok := m.holders.byName.Get(name)
	switch {
	case !ok || h.waiting == 0:
	case m.bounds.walks.left == 0:
		m.toWake.Insert(name)
	default:
		m.bounds.walks.spend(m.markWaitersOf(name))
	}
}

// finishWalks goes through the waiters of holders to whom the commands did not come, once for each holder. They are tried with
// the next entry.
func (m *Machine) finishWalks() {
	m.toDemote.Scan(func(name string) bool {
		m.demoteNow(name)
		return true
	})
	m.toWake.Scan(func(name string) bool {
		m.markWaitersOf(name)
		return true
	})
	m.deferDirty()
	clear(m.reordered)
	m.toWake.Clear()
	m.toDemote.Clear()
}

// markWaitersOf marks what a holder waits for, and returns how many items that are.
func (m *Machine) markWaitersOf(name string) (visited int) {
	m.eachWaiterOf(name, func(w *waiter) bool {
		visited += w.cost()
		l, _ := m.waitSets.Get(w.waitSet)
		for _, number := range l.quotas {
			m.quotas.dirty[number], m.reordered[number] = true, true
		}
		return true
	})
	return visited
}
