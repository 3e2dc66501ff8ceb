package fsm

import (
	"cmp"

	"github.com/tidwall/btree"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/rangeset"
)

// State is the replicated state. Its exported methods only read.
//
// All tables are copy-on-write trees, so that freezing costs the same whatever they hold. Objects in them carry the
// generation in which they were made; a command that wants to change one of an older generation, which a frozen State
// may share, replaces it by a copy first (the mutable... methods of Machine).
type State struct {
	index, term uint64
	clock       Clock
	// featureLevel is the highest version of an entry applied.
	featureLevel uint32

	clusterID string
	epoch     uint32
	// grants counts grants under this epoch; epoch and grants make the fence.
	grants                             uint64
	lastLease, lastTicket, lastSession uint64
	lastQuota, lastWaitSet             uint32
	accounts                           accounts.Book
	// busyUntil is when the last entry of a sliding log, or grace of a slot, ends (cluster time).
	busyUntil int64
	// rules are the operator's holder rules; the slice is replaced, never changed.
	rules []*logpb.HolderRule

	quotas    *btree.Map[uint32, *quota]
	names     *btree.Map[string, uint32]
	fallbacks *btree.BTreeG[standIn]
	leases    *btree.Map[uint64, *lease]
	leasesOf  *rangeset.Set // by the digest of their holder
	deadlines *rangeset.Set
	// detached are the records of ended leases, in pages; checks hold when to look at a page again.
	detached *btree.BTreeG[keptPage]
	checks   *btree.BTreeG[pageDue]
	// retiring are the leases with records that are still to leave them; retiredLast is the one of them that was the last to have some
	// retired, 0 where there is none.
	retiring    *btree.Map[uint64, *retiring]
	retiredLast uint64
	// operations counts the records, of leases that live and of those that have ended.
	operations int64

	holders      *btree.Map[string, *holder]
	stats        *btree.BTreeG[*holderStats]
	closed       *btree.BTreeG[quotaHolder] // of the holder stats with a closing breaker, open or not
	meters       *btree.BTreeG[*meter]
	seen         *btree.BTreeG[holderSeen]
	waiters      *btree.Map[uint64, *waiter]
	order        *btree.BTreeG[place]
	waitersOf    *btree.BTreeG[owned]
	waitSets     *btree.Map[uint32, *waitSet]
	waitSetOf    *btree.Map[string, uint32]
	waitSetsOf   *btree.BTreeG[quotaWaitSet]
	timers       *btree.BTreeG[timer]         // of quotas that are waited for
	ageingQuotas *btree.Map[uint32, struct{}] // of these, those with ageing
	waitEnds     *btree.BTreeG[due]
	promotions   *btree.BTreeG[due] // tickets, by when they count as standard
	cooldowns    *btree.BTreeG[due]
	overrides    *btree.BTreeG[due] // quotas, by when their override ends
	sessions     *btree.Map[uint64, *session]
	sessionUse   *btree.BTreeG[due]
	results      *btree.BTreeG[dedupEntry]
	keys         *btree.Map[string, keyEntry]
	keyEnds      *btree.BTreeG[keyDue]
	// resultBytes is the size of all stored results.
	resultBytes int64
	members     *btree.Map[string, string]
	tasks       *btree.Map[string, *task]
	// underWay are attempts by deadline, resting what waits or is done, by since when; what is shelved is in neither.
	underWay, resting *btree.BTreeG[taskDue]
	workflows         *btree.Map[string, *workflow]
	// stepsOf are the places in workflows of each holder that has one; the slices are replaced, never changed. reviews hold
	// when to look at a workflow again.
	stepsOf *btree.Map[string, []stepOf]
	reviews *btree.BTreeG[keyDue]
	// resumed has, by holder, up to which lease its resume ended all, while some of them still hold something.
	resumed *btree.Map[string, uint64]
	// ended are the sessions that have ended and still have results; acked those that live and have results that are acknowledged.
	ended *btree.Map[uint64, *session]
	acked *btree.Map[uint64, struct{}]
	// deleted has the names of quotas that were deleted while some who wait for them are still to be refused.
	deleted *btree.Map[uint32, string]
	// reopening has quotas that an operator reopened while limits by them are still to be ended: the workflow to go on with.
	reopening *btree.Map[uint32, string]
	// moving has the holders of whom some waiters are still to be moved to their virtual time.
	moving *btree.Map[string, moving]
	// movedLast is the one of them that was the last to have some moved, empty where there is none.
	movedLast string
	// lookedFrom is the wait set from which on, downwards, the next ones are looked at for who is first in line; 0: a round begins.
	lookedFrom uint32
	// sweep is how far holder stats and meters were gone through.
	sweep sweep
}

// due says that something named by a number is due at a moment.
type due struct {
	at int64
	id uint64
}

// owned says that a holder has a ticket. The holder is a digest of its name, which is smaller and faster to compare. Names may
// share one, so whoever walks the list compares the name too.
type owned struct {
	holder, id uint64
}

type holderSeen struct {
	at   int64
	name string
}

type keyDue struct {
	at  int64
	key string
}

// standIn says that a quota has this one as its fallback.
type standIn struct {
	fallback string
	quota    uint32
}

type quotaWaitSet struct{ quota, waitSet uint32 }

type quotaHolder struct {
	quota  uint32
	holder string
}

func lessDue(a, b due) bool {
	return a.at < b.at || a.at == b.at && a.id < b.id
}

// ownedBy returns the key of a holder's ticket.
func ownedBy(holder string, id uint64) owned {
	return owned{holder: entry.DigestHolder(holder), id: id}
}

func lessOwned(a, b owned) bool {
	return a.holder < b.holder || a.holder == b.holder && a.id < b.id
}

func lessHolderSeen(a, b holderSeen) bool {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) < 0
}

func lessKeyDue(a, b keyDue) bool {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.key, b.key)) < 0
}

func lessStandIn(a, b standIn) bool {
	return cmp.Or(cmp.Compare(a.fallback, b.fallback), cmp.Compare(a.quota, b.quota)) < 0
}

func lessQuotaWaitSet(a, b quotaWaitSet) bool {
	return a.quota < b.quota || a.quota == b.quota && a.waitSet < b.waitSet
}

func lessQuotaHolder(a, b quotaHolder) bool {
	return cmp.Or(cmp.Compare(a.quota, b.quota), cmp.Compare(a.holder, b.holder)) < 0
}

func newTree[T any](less func(a, b T) bool) *btree.BTreeG[T] {
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

func newState() *State {
	return &State{
		accounts:     accounts.New(),
		quotas:       new(btree.Map[uint32, *quota]),
		names:        new(btree.Map[string, uint32]),
		fallbacks:    newTree(lessStandIn),
		leases:       new(btree.Map[uint64, *lease]),
		leasesOf:     rangeset.New(),
		deadlines:    rangeset.New(),
		detached:     newTree(lessPage),
		checks:       newTree(lessPageDue),
		retiring:     new(btree.Map[uint64, *retiring]),
		holders:      new(btree.Map[string, *holder]),
		stats:        newTree(lessStats),
		closed:       newTree(lessQuotaHolder),
		meters:       newTree(lessMeter),
		seen:         newTree(lessHolderSeen),
		waiters:      new(btree.Map[uint64, *waiter]),
		order:        newTree(lessPlace),
		waitersOf:    newTree(lessOwned),
		waitSets:     new(btree.Map[uint32, *waitSet]),
		waitSetOf:    new(btree.Map[string, uint32]),
		waitSetsOf:   newTree(lessQuotaWaitSet),
		timers:       newTree(lessTimer),
		ageingQuotas: new(btree.Map[uint32, struct{}]),
		waitEnds:     newTree(lessDue),
		promotions:   newTree(lessDue),
		cooldowns:    newTree(lessDue),
		overrides:    newTree(lessDue),
		sessions:     new(btree.Map[uint64, *session]),
		sessionUse:   newTree(lessDue),
		results:      newTree(lessDedupEntry),
		keys:         new(btree.Map[string, keyEntry]),
		keyEnds:      newTree(lessKeyDue),
		members:      new(btree.Map[string, string]),
		tasks:        new(btree.Map[string, *task]),
		underWay:     newTree(lessTaskDue),
		resting:      newTree(lessTaskDue),
		workflows:    new(btree.Map[string, *workflow]),
		stepsOf:      new(btree.Map[string, []stepOf]),
		reviews:      newTree(lessKeyDue),
		resumed:      new(btree.Map[string, uint64]),
		ended:        new(btree.Map[uint64, *session]),
		acked:        new(btree.Map[uint64, struct{}]),
		deleted:      new(btree.Map[uint32, string]),
		moving:       new(btree.Map[string, moving]),
		reopening:    new(btree.Map[uint32, string]),
	}
}

// copy returns a state that shares everything until one of the two changes.
func (s *State) copy() *State {
	c := *s
	c.quotas, c.names, c.fallbacks, c.leases = s.quotas.Copy(), s.names.Copy(), s.fallbacks.Copy(), s.leases.Copy()
	c.leasesOf, c.deadlines = s.leasesOf.Copy(), s.deadlines.Copy()
	c.detached, c.checks, c.retiring = s.detached.Copy(), s.checks.Copy(), s.retiring.Copy()
	c.holders, c.seen, c.stats = s.holders.Copy(), s.seen.Copy(), s.stats.Copy()
	c.meters, c.closed = s.meters.Copy(), s.closed.Copy()
	c.waiters, c.order, c.waitSets = s.waiters.Copy(), s.order.Copy(), s.waitSets.Copy()
	c.waitersOf, c.timers, c.ageingQuotas = s.waitersOf.Copy(), s.timers.Copy(), s.ageingQuotas.Copy()
	c.waitSetOf, c.waitSetsOf, c.waitEnds, c.promotions = s.waitSetOf.Copy(), s.waitSetsOf.Copy(), s.waitEnds.Copy(), s.promotions.Copy()
	c.cooldowns, c.overrides = s.cooldowns.Copy(), s.overrides.Copy()
	c.sessions, c.sessionUse = s.sessions.Copy(), s.sessionUse.Copy()
	c.results, c.keys, c.keyEnds = s.results.Copy(), s.keys.Copy(), s.keyEnds.Copy()
	c.members = s.members.Copy()
	c.tasks, c.underWay, c.resting = s.tasks.Copy(), s.underWay.Copy(), s.resting.Copy()
	c.workflows, c.stepsOf, c.reviews = s.workflows.Copy(), s.stepsOf.Copy(), s.reviews.Copy()
	c.resumed, c.ended, c.acked, c.deleted = s.resumed.Copy(), s.ended.Copy(), s.acked.Copy(), s.deleted.Copy()
	c.moving, c.reopening = s.moving.Copy(), s.reopening.Copy()
	c.accounts = s.accounts.Copy()
	return &c
}

// fence returns the newest fence: epoch << 48 | grants.
func (s *State) fence() uint64 { return uint64(s.epoch)<<48 | s.grants }

// quotaNamed returns a quota by name, nil where there is none.
func (s *State) quotaNamed(name string) *quota {
	number, ok := s.names.Get(name)
	if !ok {
		return nil
	}
	q, _ := s.quotas.Get(number)
	return q
}
