package fsm

import (
	"cmp"

	"github.com/quotad/quotad/fsm/cow"
)

// quotaTable has the quotas, each with its rule and ledger. Every change of a quota begins with edit or editNow, so the
// table knows which ones changed. The waiters of dirty quotas are served again; timers say when time alone may serve
// waiters.
type quotaTable struct {
	*moment
	byNumber  *cow.Map[uint32, *quota]
	names     *cow.Map[string, uint32]
	fallbacks *cow.Set[standIn]
	// last is the newest quota's number.
	last         uint32
	timers       *cow.Set[timer]            // of quotas with waiters
	ageingQuotas *cow.Map[uint32, struct{}] // of these, those with ageing
	cooldowns    *cow.Set[due]
	overrides    *cow.Set[due] // quotas, by when their override ends
	// deleted has the names of deleted quotas with waiters that are still to be refused.
	deleted *cow.Map[uint32, string]

	// The fields below are scratch space: a frozen state has none.

	cache *cache
	// dirty are the quotas that may serve waiters again after the present command. Results do not depend on the map's
	// order; where order matters, quotas are taken from ordered trees.
	dirty map[uint32]bool
	// unscheduled are the quotas whose timers are set again at the end of the entry.
	unscheduled []uint32
}

// standIn says that fallback is the name of a quota's fallback.
type standIn struct {
	fallback string
	quota    uint32
}

func lessStandIn(a, b standIn) bool {
	return cmp.Or(cmp.Compare(a.fallback, b.fallback), cmp.Compare(a.quota, b.quota)) < 0
}

func newQuotas() *quotaTable {
	return &quotaTable{
		byNumber: new(cow.Map[uint32, *quota]), names: new(cow.Map[string, uint32]), fallbacks: cow.NewSet(lessStandIn),
		timers: cow.NewSet(lessTimer), ageingQuotas: new(cow.Map[uint32, struct{}]),
		cooldowns: cow.NewDues[uint64](), overrides: cow.NewDues[uint64](), deleted: new(cow.Map[uint32, string]),
		cache: new(cache), dirty: map[uint32]bool{},
	}
}

// copy returns a table that shares everything until one of the two changes.
func (qs *quotaTable) copy() *quotaTable {
	return &quotaTable{
		byNumber: qs.byNumber.Copy(), names: qs.names.Copy(), fallbacks: qs.fallbacks.Copy(), last: qs.last,
		timers: qs.timers.Copy(), ageingQuotas: qs.ageingQuotas.Copy(), cooldowns: qs.cooldowns.Copy(), overrides: qs.overrides.Copy(),
		deleted: qs.deleted.Copy(),
	}
}
