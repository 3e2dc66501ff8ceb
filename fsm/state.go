package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/rangeset"
	"github.com/quotad/quotad/fsm/task"
	"github.com/quotad/quotad/fsm/workflow"
)

// State is the replicated state. Its exported methods only read.
//
// All tables are copy-on-write trees, so that freezing takes constant time. Objects in them carry the generation in
// which they were made. A frozen State may share an object of an older generation: a command that changes it replaces
// it by a copy first (package cow; the edit... methods).
type State struct {
	*moment

	clusterID string
	epoch     uint32
	// grants counts grants under this epoch; epoch and grants make the fence.
	grants    uint64
	lastLease uint64
	accounts  accounts.Book
	rules     *holderRules

	quotas    *quotaTable
	amounts   *amounts
	leases    *cow.Map[uint64, *lease]
	leasesOf  *rangeset.Set // by the digest of their holder
	deadlines *rangeset.Set
	records   *records

	// holders are the records of holders.
	holders   *holderTables
	judge     *judge
	queue     *queue
	requests  *dedup.Table
	members   *cow.Map[string, string]
	tasks     *task.Table
	workflows *workflow.Table
	// resumed has, by holder, the last lease that its resume ended, while some of these still hold something.
	resumed *cow.Map[string, uint64]
	// reopening has quotas that an operator reopened while limits by them remain, with the workflow to continue at.
	reopening *cow.Map[uint32, string]
}

// due is the time at which a numbered object is due, dueByName that of a named one.
type (
	due       = cow.Due[uint64]
	dueByName = cow.Due[string]
)

func newState() *State {
	s := &State{
		moment:    &moment{generation: 1, bounds: newBounds()},
		accounts:  accounts.New(),
		quotas:    newQuotas(),
		rules:     newRules(),
		amounts:   new(amounts),
		leases:    new(cow.Map[uint64, *lease]),
		leasesOf:  rangeset.New(),
		deadlines: rangeset.New(),
		records:   newRecords(),
		holders:   newHolders(),
		requests:  dedup.New(),
		members:   new(cow.Map[string, string]),
		tasks:     task.New(),
		workflows: workflow.New(),
		resumed:   new(cow.Map[string, uint64]),
		queue:     newQueue(),
		reopening: new(cow.Map[uint32, string]),
	}
	s.connect()
	return s
}

// connect gives the parts of a state its moment and each other.
func (s *State) connect() {
	s.quotas.moment = s.moment
	s.holders.moment, s.holders.quotas, s.holders.book = s.moment, s.quotas, &s.accounts
	s.amounts.moment, s.amounts.quotas, s.amounts.holders = s.moment, s.quotas, s.holders
	s.records.moment, s.records.amounts, s.records.book = s.moment, s.amounts, &s.accounts
	s.judge = &judge{moment: s.moment, quotas: s.quotas, holders: s.holders, workflows: s.workflows, rules: s.rules}
	s.queue.moment, s.queue.quotas, s.queue.holders, s.queue.judge = s.moment, s.quotas, s.holders, s.judge
	s.queue.requests, s.queue.book = s.requests, &s.accounts
}

// copy returns a state that shares everything until one of the two changes.
func (s *State) copy() *State {
	c := *s
	c.moment = s.frozen()
	c.rules, c.quotas, c.leases = s.rules.copy(), s.quotas.copy(), s.leases.Copy()
	c.leasesOf, c.deadlines = s.leasesOf.Copy(), s.deadlines.Copy()
	c.records = s.records.copy()
	c.holders, c.amounts = s.holders.copy(), &amounts{busyUntil: s.amounts.busyUntil}
	c.queue = s.queue.copy()
	c.requests = s.requests.Copy()
	c.members = s.members.Copy()
	c.tasks, c.workflows = s.tasks.Copy(), s.workflows.Copy()
	c.resumed = s.resumed.Copy()
	c.reopening = s.reopening.Copy()
	c.accounts = s.accounts.Copy()
	c.connect()
	return &c
}

// fence returns the newest fence: epoch << 48 | grants.
func (s *State) fence() uint64 { return uint64(s.epoch)<<48 | s.grants }
