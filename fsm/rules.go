package fsm

import (
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// holderRules are the operator's rules for the class and weight of holders.
type holderRules struct {
	// list is replaced, never changed.
	list []*logpb.HolderRule
	// sharers caches the classes of holders with shares since rules or quotas changed.
	sharers map[string]int32
}

func newRules() *holderRules { return &holderRules{sharers: map[string]int32{}} }

func (r *holderRules) copy() *holderRules { return &holderRules{list: r.list} }

// of returns a holder's class and weight: the first rule that matches counts.
func (r *holderRules) of(name string) (class, weight int32) {
	for _, rule := range r.list {
		if Match(rule.Pattern, name) {
			return rule.Class, max(rule.Weight, 1)
		}
	}
	return ledger.ClassStandard, 1
}

// classOfSharer returns the class of a holder with a share. It is cached: each judgment needs all, and rules may be
// many.
func (r *holderRules) classOfSharer(name string) int32 {
	class, known := r.sharers[name]
	if !known {
		class, _ = r.of(name)
		r.sharers[name] = class
	}
	return class
}

// forget clears the cache, before rules or quotas change.
func (r *holderRules) forget() { clear(r.sharers) }
