package fsm

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// waiter is a waiting Reserve. Only generation, rank, promoteAt, virtualTime, promotedAt and starved change, and shares
// with its wait set.
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
	// account is charged with it, and with the lease and the operation that it may become; shares is its number of
	// items.
	account uint64
	shares  int
}

// waitSet is all waiters that need the same set of quotas. If one of these quotas is set aside for another waiter, the
// whole set is blocked. So a pass over the queue examines the heads of wait sets, not every waiter.
type waitSet struct {
	cow.Made
	number uint32
	// asked are the numbers of the requested quotas and their ancestors, in ascending order. quotas are those that may
	// be drawn on: the same, unless pools are requested.
	asked, quotas []uint32
	// pooled: pools are requested, so a waiter needs one member's quotas, not all. asked and quotas may be equal even
	// then.
	pooled bool
	length int64
	// ahead counts its waiters that go before others.
	ahead ahead
}

// place is a waiter's place in its wait set. Merged by place, the wait sets form the total order of waiters.
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

// owned is a holder's ticket. The holder is a digest of its name, which is smaller and faster to compare. Names may
// share a digest, so a walk over the list compares the name too.
type owned struct {
	holder, id uint64
}

// ownedBy returns the key of a holder's ticket.
func ownedBy(holder string, id uint64) owned {
	return owned{holder: entry.DigestHolder(holder), id: id}
}

func lessOwned(a, b owned) bool {
	return a.holder < b.holder || a.holder == b.holder && a.id < b.id
}

type quotaWaitSet struct{ quota, waitSet uint32 }

func lessQuotaWaitSet(a, b quotaWaitSet) bool {
	return a.quota < b.quota || a.quota == b.quota && a.waitSet < b.waitSet
}

// change replaces a waiter by a changed copy, and marks the quotas that it waits for dirty.
func (qu *queue) change(w *waiter, change func(*waiter)) {
	changed := *w
	changed.Made = cow.In(qu.generation)
	change(&changed)
	qu.order.Delete(w.place())
	qu.waiters.Set(changed.ticket, &changed)
	qu.order.Set(changed.place())
	ws := qu.editWaitSet(changed.waitSet)
	ws.ahead.add(w.place().rank, -1)
	ws.ahead.add(changed.place().rank, 1)
	for _, number := range ws.quotas {
		if q := qu.quotas.editNow(number); q != nil {
			q.ahead.add(w.place().rank, -1)
			q.ahead.add(changed.place().rank, 1)
			qu.quotas.markDirty(q)
		}
	}
}

// enqueue adds a Reserve to the queue. A holder enters at the virtual time of the waiters that it competes with, but
// not below its own: being away, or waiting for other quotas, gains nothing.
func (qu *queue) enqueue(rq *request, needs []need, from dedup.RequestID) *waiter {
	req := rq.req
	h := qu.holders.use(req.Holder)
	if entry := qu.entryVirtualTime(needs, rq.rank); entry > h.virtualTime {
		qu.setVirtualTime(h, entry)
	}
	h.waiting++
	qu.lastTicket++
	w := &waiter{
		Made: cow.In(qu.generation), ticket: qu.lastTicket, req: req, priority: rq.priority,
		promoteAt:   qu.judge.promotesAt(req.Holder, rq.priority, needs),
		virtualTime: h.virtualTime, until: fixed.AddSaturated(qu.clock.Now, req.WaitNs), from: from,
		account: qu.book.Open(qu.payer),
	}
	if onPool(needs) {
		asked, _ := qu.quotas.askedBy(req) // its quotas exist, since it has needs
		qu.insert(w, asked)
		return w
	}
	qu.insert(w, numbersOf(needs))
	return w
}

// insert enters a waiter into the tables, in the wait set of the quotas asked.
func (qu *queue) insert(w *waiter, asked []uint32) {
	ws := qu.waitSetFor(asked)
	ws.length++
	ws.ahead.add(w.place().rank, 1)
	w.waitSet = ws.number
	for _, number := range ws.quotas {
		if q := qu.quotas.edit(number); q != nil { // a snapshot's wait set may have a deleted quota
			q.waiting++
			q.ahead.add(w.place().rank, 1)
			qu.quotas.markChanged(q)
		}
	}
	for _, item := range w.req.Items {
		if q := qu.quotas.named(item.Quota); q != nil {
			item.Quota = q.name // shares one string among waiters
		}
	}
	if w.shares == 0 { // a snapshot has the count from before one of its quotas was deleted
		w.shares = qu.quotas.sharesOf(w.req)
	}
	qu.charge(w, 1)
	qu.waiters.Set(w.ticket, w)
	qu.order.Set(w.place())
	qu.waitersOf.Set(ownedBy(w.req.Holder, w.ticket))
	qu.waitEnds.Set(due{At: w.until, ID: w.ticket})
	if w.promoteAt != 0 {
		qu.promotions.Set(due{At: w.promoteAt, ID: w.ticket})
	}
}

// charge charges a waiter to its account, or with times -1 releases the charge.
func (qu *queue) charge(w *waiter, times int64) {
	weight := accounts.WeightOf(w.shares)
	qu.book.Add(w.account, accounts.Waiters, times*weight)
	qu.book.Add(w.account, accounts.Leases, times*weight)
	if w.req.Consume {
		qu.book.Add(w.account, accounts.Operations, times*recordBytes(w.shares))
	}
}

// eachOf calls fn for a holder's waiters, by ticket, until it returns false.
func (qu *queue) eachOf(holder string, fn func(*waiter) bool) {
	qu.eachFrom(holder, 0, fn)
}

// eachFrom is eachOf from a ticket on.
func (qu *queue) eachFrom(holder string, from uint64, fn func(*waiter) bool) {
	first := ownedBy(holder, from)
	qu.waitersOf.Ascend(first, func(o owned) bool {
		if o.holder != first.holder {
			return false
		}
		w, _ := qu.waiters.Get(o.id)
		return w.req.Holder != holder || fn(w)
	})
}

// dequeue removes a waiter from the queue, which frees the amounts set aside for it.
func (qu *queue) dequeue(w *waiter) {
	w, _ = qu.waiters.Delete(w.ticket) // the present one: its virtual time may have changed
	qu.order.Delete(w.place())
	qu.waitersOf.Delete(ownedBy(w.req.Holder, w.ticket))
	qu.waitEnds.Delete(due{At: w.until, ID: w.ticket})
	qu.promotions.Delete(due{At: w.promoteAt, ID: w.ticket})
	qu.charge(w, -1)
	qu.holders.use(w.req.Holder).waiting--
	ws := qu.editWaitSet(w.waitSet)
	ws.length--
	ws.ahead.add(w.place().rank, -1)
	for _, number := range ws.quotas {
		if q := qu.quotas.editNow(number); q != nil {
			q.waiting--
			q.ahead.add(w.place().rank, -1)
			qu.quotas.markDirty(q)
		}
	}
	if ws.length == 0 {
		qu.waitSets.Delete(ws.number)
		qu.waitSetOf.Delete(waitSetKey(ws.asked))
		for _, number := range ws.quotas {
			qu.waitSetsOf.Delete(quotaWaitSet{quota: number, waitSet: ws.number})
		}
	}
}

// waitSetFor returns the wait set of the quotas asked, for update.
func (qu *queue) waitSetFor(asked []uint32) *waitSet {
	key := waitSetKey(asked)
	if number, ok := qu.waitSetOf.Get(key); ok {
		return qu.editWaitSet(number)
	}
	qu.lastWaitSet++
	ws := &waitSet{
		Made: cow.In(qu.generation), number: qu.lastWaitSet, asked: asked, quotas: qu.quotas.drawnOn(asked),
		pooled: slices.ContainsFunc(asked, qu.quotas.isPool),
	}
	qu.enterWaitSet(ws)
	return ws
}

func (qu *queue) enterWaitSet(ws *waitSet) {
	qu.waitSets.Set(ws.number, ws)
	qu.waitSetOf.Set(waitSetKey(ws.asked), ws.number)
	for _, number := range ws.quotas {
		qu.waitSetsOf.Set(quotaWaitSet{quota: number, waitSet: ws.number})
	}
}

func (qu *queue) editWaitSet(number uint32) *waitSet {
	ws, _ := qu.waitSets.Get(number)
	ws, _ = cow.Edit(qu.waitSets, number, ws, qu.generation)
	return ws
}

// takeDue removes the first due waiter from a list and returns it; false: none is due.
func (qu *queue) takeDue(list *cow.Set[due]) (*waiter, bool) {
	for {
		first, ok := list.Min()
		if !ok || first.At > qu.clock.Now {
			return nil, false
		}
		list.PopMin()
		if w, ok := qu.waiters.Get(first.ID); ok {
			qu.bounds.waits.spend(w.cost())
			return w, true
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

func waitSetKey(numbers []uint32) string {
	key := make([]byte, 0, 4*len(numbers))
	for _, number := range numbers {
		key = binary.BigEndian.AppendUint32(key, number)
	}
	return string(key)
}
