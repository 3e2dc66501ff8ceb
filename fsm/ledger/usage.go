package ledger

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// Usage is what a class or a holder holds and has consumed of a window.
type Usage struct {
	// Amount is all of it.
	Amount int64
	// Ends is what of it was consumed, by the end of its exposure in ascending order, as long as some may lie before the window:
	// that was not used of it.
	Ends []Ending
}

// Ending is an amount of which the exposure ends.
type Ending struct {
	// End is that of the exposure.
	End, Amount int64
}

// Clone returns a copy that shares nothing with it.
func (u *Usage) Clone() Usage { return Usage{Amount: u.Amount, Ends: slices.Clone(u.Ends)} }

// Add adds an amount whose exposure ends, or takes one out.
func (u *Usage) Add(end, amount int64, listed bool) {
	u.Amount = max(u.Amount+amount, 0) // a meter may have begun to count while something was held
	if listed {
		u.List(end, amount)
	}
}

// List lists an amount under an end, or takes one out; what is held, and what was used before there was a list, is not in it.
func (u *Usage) List(end, amount int64) {
	if end == OpenEnd {
		return
	}
	i, found := u.find(end)
	if !found {
		if amount > 0 {
			u.Ends = slices.Insert(u.Ends, i, Ending{End: end, Amount: amount})
		}
		return
	}
	if u.Ends[i].Amount += amount; u.Ends[i].Amount <= 0 {
		u.Ends = slices.Delete(u.Ends, i, i+1)
	}
}

// Has tells whether an end is listed.
func (u *Usage) Has(end int64) bool {
	_, found := u.find(end)
	return found
}

func (u *Usage) find(end int64) (int, bool) {
	return slices.BinarySearchFunc(u.Ends, end, func(e Ending, end int64) int { return cmp.Compare(e.End, end) })
}

// Drop takes out what ended before a cutoff.
func (u *Usage) Drop(cutoff int64) {
	n := 0
	for n < len(u.Ends) && u.Ends[n].End < cutoff {
		u.Amount = max(u.Amount-u.Ends[n].Amount, 0)
		n++
	}
	u.Ends = slices.Delete(u.Ends, 0, n)
}

// Since returns what is left without what ended before a cutoff.
func (u *Usage) Since(cutoff int64) int64 {
	left := u.Amount
	for _, e := range u.Ends {
		if e.End < cutoff {
			left -= e.Amount
		}
	}
	return max(left, 0)
}

// Lists tells whether what is used is listed by its end: some of it may turn out to lie before the window. Where the provider's
// reset is not known, nobody knows where it begins; and a later view of time that began a calendar window may fall back.
func (g *Ledger) Lists(r *Rule) bool { return !r.Anchored || !g.Known || g.Closing || g.Uncut }

// Move lists an amount under another end.
func (u *Usage) Move(from, to, amount int64) {
	u.List(from, -amount)
	u.List(to, amount)
}

// TakeBack takes out up to an amount of what is counted under an end, or has no end yet (OpenEnd). On a rate nothing is counted before it
// has shares, and what began before that is given back later.
func (u *Usage) TakeBack(end, amount int64) {
	taken := u.counted(end, amount)
	u.Amount -= taken
	u.List(end, -taken)
}

// MoveCounted lists up to an amount of what is counted under one end under another one.
func (u *Usage) MoveCounted(from, to, amount int64) { u.Move(from, to, u.counted(from, amount)) }

// counted returns how much of an amount is counted under an end.
func (u *Usage) counted(end, amount int64) int64 {
	if end != OpenEnd {
		i, found := u.find(end)
		if !found {
			return 0
		}
		return min(amount, u.Ends[i].Amount)
	}
	rest := u.Amount
	for _, e := range u.Ends {
		rest -= e.Amount
	}
	return min(amount, max(rest, 0))
}

// EncodeEnds encodes a list of what is used.
func EncodeEnds(to []*logpb.SnapshotEnding, class int32, u *Usage) []*logpb.SnapshotEnding {
	for _, e := range u.Ends {
		to = append(to, &logpb.SnapshotEnding{Class: class, EndNs: e.End, Amount: e.Amount})
	}
	return to
}
