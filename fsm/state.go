package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/rangeset"
	"github.com/quotad/quotad/fsm/task"
	"github.com/quotad/quotad/fsm/workflow"
)

// State is the replicated state. Its exported methods only read.
//
// All tables are copy-on-write trees, so that freezing costs the same whatever they hold. Objects in them carry the
// generation in which they were made; a command that wants to change one of an older generation, which a frozen State
// may share, replaces it by a copy first (package cow; the edit... methods).
type State struct {
	*moment

	clusterID string
	epoch     uint32
	// grants counts grants under this epoch; epoch and grants make the fence.
	grants                uint64
	lastLease, lastTicket uint64
	lastWaitSet           uint32
	accounts              accounts.Book
	amounts               *amounts
	rules                 *holderRules

	quotas    *quotaTable
	leases    *cow.Map[uint64, *lease]
	leasesOf  *rangeset.Set // by the digest of their holder
	deadlines *rangeset.Set
	records   *records

	// holders is what is remembered of holders.
	holders    *holderTables
	waiters    *cow.Map[uint64, *waiter]
	order      *cow.Set[place]
	waitersOf  *cow.Set[owned]
	waitSets   *cow.Map[uint32, *waitSet]
	waitSetOf  *cow.Map[string, uint32]
	waitSetsOf *cow.Set[quotaWaitSet]
	waitEnds   *cow.Set[due]
	promotions *cow.Set[due] // tickets, by when they count as standard
	requests   *dedup.Table
	members    *cow.Map[string, string]
	tasks      *task.Table
	workflows  *workflow.Table
	// resumed has, by holder, up to which lease its resume ended all, while some of them still hold something.
	resumed *cow.Map[string, uint64]
	// reopening has quotas that an operator reopened while limits by them are still to be ended: the workflow to go on with.
	reopening *cow.Map[uint32, string]
	// moving has the holders of whom some waiters are still to be moved to their virtual time.
	moving *cow.Map[string, moving]
	// movedLast is the one of them that was the last to have some moved, empty where there is none.
	movedLast string
	// lookedFrom is the wait set from which on, downwards, the next ones are looked at for who is first in line; 0: a round begins.
	lookedFrom uint32
}

// due says that something that has a number is due at a moment, dueByName that something that has a name is.
type (
	due       = cow.Due[uint64]
	dueByName = cow.Due[string]
)

// owned says that a holder has a ticket. The holder is a digest of its name, which is smaller and faster to compare. Names may
// share one, so whoever walks the list compares the name too.
type owned struct {
	holder, id uint64
}

type quotaWaitSet struct{ quota, waitSet uint32 }

// ownedBy returns the key of a holder's ticket.
func ownedBy(holder string, id uint64) owned {
	return owned{holder: entry.DigestHolder(holder), id: id}
}

func lessOwned(a, b owned) bool {
	return a.holder < b.holder || a.holder == b.holder && a.id < b.id
}

func lessQuotaWaitSet(a, b quotaWaitSet) bool {
	return a.quota < b.quota || a.quota == b.quota && a.waitSet < b.waitSet
}

func newState() *State {
	s := &State{
		moment:     &moment{generation: 1, bounds: newBounds()},
		accounts:   accounts.New(),
		quotas:     newQuotas(),
		rules:      newRules(),
		amounts:    new(amounts),
		leases:     new(cow.Map[uint64, *lease]),
		leasesOf:   rangeset.New(),
		deadlines:  rangeset.New(),
		records:    newRecords(),
		holders:    newHolders(),
		waiters:    new(cow.Map[uint64, *waiter]),
		order:      cow.NewSet(lessPlace),
		waitersOf:  cow.NewSet(lessOwned),
		waitSets:   new(cow.Map[uint32, *waitSet]),
		waitSetOf:  new(cow.Map[string, uint32]),
		waitSetsOf: cow.NewSet(lessQuotaWaitSet),
		waitEnds:   cow.NewDues[uint64](),
		promotions: cow.NewDues[uint64](),
		requests:   dedup.New(),
		members:    new(cow.Map[string, string]),
		tasks:      task.New(),
		workflows:  workflow.New(),
		resumed:    new(cow.Map[string, uint64]),
		moving:     new(cow.Map[string, moving]),
		reopening:  new(cow.Map[uint32, string]),
	}
	s.connect()
	return s
}

// connect lets the parts of a state see its moment and each other.
func (s *State) connect() {
	s.quotas.moment = s.moment
	s.holders.moment, s.holders.quotas, s.holders.book = s.moment, s.quotas, &s.accounts
	s.amounts.moment, s.amounts.quotas, s.amounts.holders = s.moment, s.quotas, s.holders
	s.records.moment, s.records.amounts, s.records.book = s.moment, s.amounts, &s.accounts
}

// copy returns a state that shares everything until one of the two changes.
func (s *State) copy() *State {
	c := *s
	c.moment = s.moment.frozen()
	c.rules, c.quotas, c.leases = s.rules.copy(), s.quotas.copy(), s.leases.Copy()
	c.leasesOf, c.deadlines = s.leasesOf.Copy(), s.deadlines.Copy()
	c.records = s.records.copy()
	c.holders, c.amounts = s.holders.copy(), &amounts{busyUntil: s.amounts.busyUntil}
	c.waiters, c.order, c.waitSets = s.waiters.Copy(), s.order.Copy(), s.waitSets.Copy()
	c.waitersOf = s.waitersOf.Copy()
	c.waitSetOf, c.waitSetsOf, c.waitEnds, c.promotions = s.waitSetOf.Copy(), s.waitSetsOf.Copy(), s.waitEnds.Copy(), s.promotions.Copy()
	c.requests = s.requests.Copy()
	c.members = s.members.Copy()
	c.tasks, c.workflows = s.tasks.Copy(), s.workflows.Copy()
	c.resumed = s.resumed.Copy()
	c.moving, c.reopening = s.moving.Copy(), s.reopening.Copy()
	c.accounts = s.accounts.Copy()
	c.connect()
	return &c
}

// fence returns the newest fence: epoch << 48 | grants.
func (s *State) fence() uint64 { return uint64(s.epoch)<<48 | s.grants }
