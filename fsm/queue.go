package fsm

import (
	"container/heap"
	"slices"

	"github.com/tidwall/btree"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// queue has the waiters: grouped by the quotas that they wait for, in the order of service, and by the ends of their
// waits. It decides which waiter is next. Its server decides whether that one is granted.
type queue struct {
	*moment
	quotas   *quotaTable
	holders  *holderTables
	judge    *judge
	requests *dedup.Table
	// book has the accounts that are charged with waiters.
	book   *accounts.Book
	server server

	lastTicket uint64
	waiters    *cow.Map[uint64, *waiter]
	order      *cow.Set[place]
	waitersOf  *cow.Set[owned]
	waitEnds   *cow.Set[due]
	promotions *cow.Set[due] // tickets, by when they count as standard

	lastWaitSet uint32
	waitSets    *cow.Map[uint32, *waitSet]
	waitSetOf   *cow.Map[string, uint32]
	waitSetsOf  *cow.Set[quotaWaitSet]

	// moving has the holders with waiters that are still to be moved to the holder's virtual time.
	moving *cow.Map[string, moving]
	// movedLast is the holder in moving whose waiters were moved last; empty: none.
	movedLast string
	// scannedFrom is the wait set, in descending order, where the search for first waiters continues; 0: a round begins.
	scannedFrom uint32

	// The fields below are scratch space: a frozen state has none.

	// pass is the present pass, or the last one.
	pass pass
	// reordered are the quotas whose waiters changed places while waiters were served; the next pass serves them.
	reordered map[uint32]bool
	// toWake are the holders whose quotas are marked dirty after all commands are carried out.
	toWake btree.Set[string]
	// toDemote are the holders that were granted something and whose promoted waiters return to their class.
	toDemote btree.Set[string]
	// wakeupLost says that a pass cleared a wakeup that waiters behind the present one may still need.
	wakeupLost bool
}

// server serves the waiters of a queue.
type server interface {
	// try grants a waiter what it requested, or ends its wait, or returns how the pass continues without it.
	try(w *waiter, head *waitSetHead, p *pass) tried
}

func newQueue() *queue {
	return &queue{
		waiters: new(cow.Map[uint64, *waiter]), order: cow.NewSet(lessPlace), waitersOf: cow.NewSet(lessOwned),
		waitEnds: cow.NewDues[uint64](), promotions: cow.NewDues[uint64](),
		waitSets: new(cow.Map[uint32, *waitSet]), waitSetOf: new(cow.Map[string, uint32]), waitSetsOf: cow.NewSet(lessQuotaWaitSet),
		moving: new(cow.Map[string, moving]), reordered: map[uint32]bool{},
	}
}

// copy returns a queue that shares everything until one of the two changes.
func (qu *queue) copy() *queue {
	return &queue{
		lastTicket: qu.lastTicket, waiters: qu.waiters.Copy(), order: qu.order.Copy(), waitersOf: qu.waitersOf.Copy(),
		waitEnds: qu.waitEnds.Copy(), promotions: qu.promotions.Copy(),
		lastWaitSet: qu.lastWaitSet, waitSets: qu.waitSets.Copy(), waitSetOf: qu.waitSetOf.Copy(), waitSetsOf: qu.waitSetsOf.Copy(),
		moving: qu.moving.Copy(), movedLast: qu.movedLast, scannedFrom: qu.scannedFrom,
	}
}

// sharesOf returns how many items the lease of a Reserve has, including the shares of ancestors.
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

// gone reports whether a waiter is about to leave the queue, whatever becomes free.
func (qu *queue) gone(w *waiter) bool {
	_, deleted := qu.lostQuota(w)
	return deleted || qu.requests.Abandoned(w.from)
}

// serve serves the waiters of dirty quotas in order. For each quota that is short, only the first eligible waiter sets
// its amounts aside, in all its quotas. Later waiters that need that quota are passed over. All others are granted from
// the rest.
func (qu *queue) serve() {
	commanded := qu.commanded
	qu.commanded = false
	for len(qu.quotas.dirty) > 0 {
		if qu.bounds.serves.left == 0 || qu.bounds.tries.left == 0 {
			qu.deferDirty()
			break
		}
		qu.servePass()
		qu.quotas.dirty, qu.reordered = qu.reordered, qu.quotas.dirty // a grant may have put another waiter first
		clear(qu.reordered)
	}
	clear(qu.reordered)
	qu.commanded = commanded
}

// maxServedPerEntry bounds how many waiters leave the queue in one entry because amounts became free: a full queue
// would take most of a second. The waiters behind them follow with the next entries.
const maxServedPerEntry = maxDuePerEntry

// maxTriedPerEntry bounds how much the passes of one entry examine without serving anybody. Amounts that become free
// after that are left to the next entry, all in one pass. So an entry has at most one pass beyond this bound, however
// many commands it has.
const maxTriedPerEntry = 1 << 16

// deferDirty leaves the waiters of dirty quotas to the next entry, which is due at once.
func (qu *queue) deferDirty() {
	for number := range qu.quotas.dirty { // in any order
		if q := qu.quotas.get(number); q != nil && q.waiting > 0 {
			qu.quotas.wakeAt(number, qu.clock.Now+1)
		}
	}
	clear(qu.quotas.dirty)
}

func (qu *queue) servePass() {
	heads := qu.affectedWaitSets()
	clear(qu.quotas.dirty)
	heap.Init(&heads)
	p := &qu.pass
	p.begin(qu.judge)
	for len(heads) > 0 {
		if qu.bounds.serves.left == 0 {
			for i := range heads {
				for _, number := range heads[i].quotas {
					qu.reordered[number] = true
				}
			}
			return
		}
		first := &heads[0]
		qu.bounds.tries.spend(len(first.quotas))
		next, ok := qu.placeFrom(first.from)
		switch {
		case !ok, first.passed > maxPassedOver, !first.pooled && slices.ContainsFunc(first.quotas, p.isBlocked):
			heap.Pop(&heads)
		case next != first.next: // a grant advanced its holder's virtual time, and reordered its other waiters
			first.next = next
			heap.Fix(&heads, 0)
		default:
			w, _ := qu.waiters.Get(next.ticket)
			switch qu.server.try(w, first, p) {
			case left:
				qu.bounds.serves.spend(len(w.req.Items)) // each has an event
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

// tried is the outcome of trying a waiter.
type tried int

const (
	// left: the waiter has left the queue.
	left tried = 1
	// waitSetBlocked: the rest of its wait set need not be examined.
	waitSetBlocked tried = 2
	// passedOver: the waiter is ineligible, those behind it may be eligible; classPassedOver: the rest of its class is
	// ineligible too.
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

// waitSetHeap orders wait sets by the places of their first waiters; it implements heap.Interface.
type waitSetHeap []waitSetHead

func (h *waitSetHeap) Len() int           { return len(*h) }
func (h *waitSetHeap) Less(i, j int) bool { return before((*h)[i].next, (*h)[j].next) }
func (h *waitSetHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

// Push is never called: wait sets only leave.
func (h *waitSetHeap) Push(any) { panic("fsm: a wait set was pushed") }

func (h *waitSetHeap) Pop() any {
	last := len(*h) - 1
	*h = (*h)[:last]
	return nil
}

// affectedWaitSets returns the wait sets that need a dirty quota, and those that share quotas with them, directly or
// not: the order among all of these matters.
func (qu *queue) affectedWaitSets() waitSetHeap {
	var heads waitSetHeap
	known := map[uint32]bool{}
	open := make([]uint32, 0, len(qu.quotas.dirty))
	for number := range qu.quotas.dirty { // sorted below
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
		if q := qu.quotas.edit(number); q != nil {
			qu.wakeupLost = qu.wakeupLost || q.wakeNext || q.wakeup > qu.clock.Now
			q.wakeup, q.wakeNext = 0, false
		}
		qu.waitSetsOf.Ascend(quotaWaitSet{quota: number}, func(pair quotaWaitSet) bool {
			if pair.quota != number {
				return false
			}
			if !known[pair.waitSet] {
				known[pair.waitSet] = true
				ws, _ := qu.waitSets.Get(pair.waitSet)
				from := place{waitSet: ws.number, rank: rankStarved}
				if next, ok := qu.placeFrom(from); ok {
					heads = append(heads, waitSetHead{number: ws.number, quotas: ws.quotas, pooled: ws.pooled, next: next, from: from})
				}
				open = append(open, ws.quotas...)
				qu.bounds.tries.spend(len(ws.quotas))
			}
			return true
		})
	}
	return heads
}

// placeFrom returns the first place of a wait set at or after one.
func (qu *queue) placeFrom(from place) (first place, ok bool) {
	qu.order.Ascend(from, func(p place) bool {
		first, ok = p, p.waitSet == from.waitSet
		return false
	})
	return first, ok
}

// maxWalkedPerEntry bounds how many waiters of steps the commands of an entry visit to have them tried. Beyond it, each
// step is visited once after all commands, and its waiters are tried with the next entry.
const maxWalkedPerEntry = 2 * maxWaitersOfHolder

// wake marks a holder's waiters to be tried, also during a pass.
func (qu *queue) wake(name string) {
	h, ok := qu.holders.byName.Get(name)
	switch {
	case !ok || h.waiting == 0:
	case qu.bounds.walks.left == 0:
		qu.toWake.Insert(name)
	default:
		qu.bounds.walks.spend(qu.markWaitersOf(name))
	}
}

// finishWalks visits the waiters of holders that the commands could not reach, once for each holder. They are tried
// with the next entry.
func (qu *queue) finishWalks() {
	qu.toDemote.Scan(func(name string) bool {
		qu.demoteNow(name)
		return true
	})
	qu.toWake.Scan(func(name string) bool {
		qu.markWaitersOf(name)
		return true
	})
	qu.deferDirty()
	clear(qu.reordered)
	qu.toWake.Clear()
	qu.toDemote.Clear()
}

// markWaitersOf marks the quotas of a holder's waiters, and returns how many items these have.
func (qu *queue) markWaitersOf(name string) (visited int) {
	qu.eachOf(name, func(w *waiter) bool {
		visited += w.cost()
		ws, _ := qu.waitSets.Get(w.waitSet)
		for _, number := range ws.quotas {
			qu.quotas.dirty[number], qu.reordered[number] = true, true
		}
		return true
	})
	return visited
}

// maxRegrouped bounds the wait sets for which one command changes the members of a pool.
const maxRegrouped = 1024

// countWaitSets counts the wait sets of a quota, up to most+1.
func (qu *queue) countWaitSets(number uint32, most int) (count int) {
	qu.waitSetsOf.Ascend(quotaWaitSet{quota: number}, func(of quotaWaitSet) bool {
		if of.quota != number || count > most {
			return false
		}
		count++
		return true
	})
	return count
}

// regroup gives the wait sets of a pool its present members. It skips a wait set with a deleted quota: its waiters
// leave.
func (qu *queue) regroup(p *quota) {
	var numbers []uint32
	qu.waitSetsOf.Ascend(quotaWaitSet{quota: p.number}, func(of quotaWaitSet) bool {
		if of.quota == p.number {
			numbers = append(numbers, of.waitSet)
		}
		return of.quota == p.number
	})
	for _, number := range numbers {
		ws := qu.editWaitSet(number)
		if slices.ContainsFunc(ws.quotas, qu.quotas.wasDeleted) {
			continue
		}
		now := qu.quotas.drawnOn(ws.asked)
		for _, left := range ws.quotas {
			if _, stays := slices.BinarySearch(now, left); !stays {
				qu.waitSetsOf.Delete(quotaWaitSet{quota: left, waitSet: number})
				qu.countWaiting(left, -1, ws)
			}
		}
		for _, joined := range now {
			if _, stood := slices.BinarySearch(ws.quotas, joined); !stood {
				qu.waitSetsOf.Set(quotaWaitSet{quota: joined, waitSet: number})
				qu.countWaiting(joined, 1, ws)
			}
		}
		ws.quotas = now
	}
}

// countWaiting adds the waiters of a wait set to one of its quotas, or with times -1 subtracts them.
func (qu *queue) countWaiting(number uint32, times int64, ws *waitSet) {
	q := qu.quotas.editNow(number)
	q.waiting += times * ws.length
	q.ahead.critical += times * ws.ahead.critical
	q.ahead.saved += times * ws.ahead.saved
	q.ahead.standard += times * ws.ahead.standard
	qu.quotas.markChanged(q)
	qu.quotas.markDirty(q)
}
