package fsm

import (
	"strings"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// virtualTimeUnit is the cost of a whole quota at weight 1, in the store-wide virtual time of weighted fair queueing.
const virtualTimeUnit = int64(1) << 32

// holderMemory is how long the virtual time of a holder without waiters is kept.
const holderMemory = fixed.Hour

// holder is the state of a holder in weighted fair queueing.
type holder struct {
	cow.Made
	name        string
	virtualTime uint64
	// rest is the part of the cost of its grants that is not in virtualTime yet: at least 0, and less than the weight
	// used.
	rest int64
	// seen is when it was last granted something or waited (cluster time); it may lag by a sixteenth of holderMemory.
	seen int64
	// waiting counts its Reserves in the queue.
	waiting int64
	// account is charged with its record, including its stats and meters: the account of the caller that named it
	// first.
	account uint64
}

// Sizes of a holder's records in bytes, including table entries but not its name. A list in a meter may have twice the
// room that it needs.
const (
	holderSize = 144
	statsSize  = 144
	meterSize  = 192
	listedSize = 32
)

func (h *holder) size() int64 { return holderSize + int64(len(h.name)) }

// use returns a holder's record for update, and marks it as seen now.
func (hs *holderTables) use(name string) *holder {
	h := hs.recent
	if h == nil || !h.MadeIn(hs.generation) || h.name != name {
		h = hs.edit(name)
		hs.recent = h
	}
	if hs.clock.Now-h.seen > holderMemory/16 {
		hs.seen.Delete(dueByName{At: h.seen, ID: name})
		h.seen = hs.clock.Now
		hs.seen.Set(dueByName{At: h.seen, ID: name})
	}
	return h
}

// edit returns a holder's record for update, a new one if there was none.
func (hs *holderTables) edit(name string) *holder {
	h, ok := hs.byName.Get(name)
	if !ok {
		h = &holder{Made: cow.In(hs.generation), name: name, seen: hs.clock.Now, account: hs.book.Open(hs.payer)}
		hs.byName.Set(name, h)
		hs.book.Add(h.account, accounts.Holders, h.size())
		hs.seen.Set(dueByName{At: h.seen, ID: name})
		return h
	}
	h, _ = cow.Edit(hs.byName, name, h, hs.generation)
	return h
}

// get returns a holder's record for reading, nil if there is none.
func (hs *holderTables) get(name string) *holder {
	if h := hs.recent; h != nil && h.name == name {
		return h
	}
	h, _ := hs.byName.Get(name)
	return h
}

// knows reports whether a holder has a record.
func (hs *holderTables) knows(name string) bool { return hs.get(name) != nil }

// noHolderLeft refuses a Reserve that would exceed the budget for holder records.
func (m *Machine) noHolderLeft(name string, needs []need) *logpb.Refusal {
	return m.refusalFor(accounts.Holders, m.holders.remembering(name, needs), needs,
		"use fewer names of holders; one that is not used is forgotten after an hour")
}

// remembering judges whether a grant may add to a holder's records. Meters do not count here: a holder without one is
// served all the same.
func (hs *holderTables) remembering(name string, needs []need) accounts.Verdict {
	h := hs.get(name)
	if h == nil {
		return hs.book.Taking(hs.payer, accounts.Holders, hs.clock.Now)
	}
	for i := range needs {
		if q := needs[i].quota; q.rule.Policy.KeepsStats() && !hs.hasStats(name, q) {
			return hs.book.TakingFor(h.account, accounts.Holders, hs.payer.Operator, hs.clock.Now)
		}
	}
	return accounts.MayTake
}

// mayRemember reports whether another record of a holder may be added.
func (hs *holderTables) mayRemember(name string) bool {
	if h := hs.get(name); h != nil {
		return hs.book.TakingFor(h.account, accounts.Holders, hs.payer.Operator, hs.clock.Now) == accounts.MayTake
	}
	return hs.book.Taking(hs.payer, accounts.Holders, hs.clock.Now) == accounts.MayTake
}

// forget drops holders that have not been seen for holderMemory. A holder that waits, has a lease, or uses a share of a
// present window stays.
func (hs *holderTables) forget(leases leaseFinder) {
	for done := 0; done < maxDuePerEntry; done++ {
		last, ok := hs.seen.Min()
		if !ok || last.At+holderMemory > hs.clock.Now {
			return
		}
		hs.seen.PopMin()
		h, _ := hs.byName.Get(last.ID)
		if h.waiting == 0 && !hs.usesAny(last.ID) && leases.newestLease(last.ID) == nil {
			done += hs.forgetStats(last.ID)
			hs.book.Add(h.account, accounts.Holders, -h.size())
			hs.byName.Delete(last.ID)
			hs.recent = nil
			continue
		}
		hs.seen.Set(dueByName{At: hs.clock.Now, ID: last.ID})
		hs.use(last.ID).seen = hs.clock.Now
	}
}

// classOf returns the class in which a Reserve is judged: a caller may lower its holder's class, never raise it.
func classOf(own int32, asked *int32) int32 {
	if asked == nil {
		return own
	}
	return max(own, *asked)
}

// Match reports whether a name fits a pattern, in which * stands for any run of characters.
func Match(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	name, begins := strings.CutPrefix(name, head)
	last := strings.LastIndexByte(rest, '*')
	name, ends := strings.CutSuffix(name, rest[last+1:]) // cut the end before the search for the parts between
	if !begins || !ends {
		return false
	}
	if last < 0 {
		return true
	}
	for part := range strings.SplitSeq(rest[:last], "*") {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return true
}

// cost returns the cost of an amount of a quota in virtual time, at weight 1.
func cost(q *quota, amount int64) int64 {
	if q.rule.Usable == 0 {
		return virtualTimeUnit
	}
	return fixed.MulDivCeil(amount, virtualTimeUnit, q.rule.Usable)
}
