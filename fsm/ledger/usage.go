package ledger

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// Usage is the amount that a class or a holder holds and has consumed of a window.
type Usage struct {
	// Amount is all of it.
	Amount int64
	// Ends are the consumed amounts by the end of their exposure, in ascending order, as long as some may lie before
	// the window: those were not used of it.
	Ends []Ending
}

// Ending is an amount whose exposure ends.
type Ending struct {
	// End is the end of the exposure.
	End, Amount int64
}

// Clone returns a copy that shares nothing with u.
func (u *Usage) Clone() Usage { return Usage{Amount: u.Amount, Ends: slices.Clone(u.Ends)} }

// Add adds an amount whose exposure ends, or removes a negative one.
func (u *Usage) Add(end, amount int64, listed bool) {
	u.Amount = max(u.Amount+amount, 0) // a meter may have begun to count while something was held
	if listed {
		u.List(end, amount)
	}
}

// List adds an amount under an end, or removes a negative one. Held amounts, and use from before there was a list, are
// not in it.
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

// Has reports whether an end is listed.
func (u *Usage) Has(end int64) bool {
	_, found := u.find(end)
	return found
}

func (u *Usage) find(end int64) (int, bool) {
	return slices.BinarySearchFunc(u.Ends, end, func(e Ending, end int64) int { return cmp.Compare(e.End, end) })
}

// Drop removes amounts that ended before a cutoff.
func (u *Usage) Drop(cutoff int64) {
	n := 0
	for n < len(u.Ends) && u.Ends[n].End < cutoff {
		u.Amount = max(u.Amount-u.Ends[n].Amount, 0)
		n++
	}
	u.Ends = slices.Delete(u.Ends, 0, n)
}

// Since returns the amount without the part that ended before a cutoff.
func (u *Usage) Since(cutoff int64) int64 {
	left := u.Amount
	for _, e := range u.Ends {
		if e.End < cutoff {
			left -= e.Amount
		}
	}
	return max(left, 0)
}

// Lists reports whether use is listed by its end, because some of it may turn out to lie before the window. Without a
// known reset of the provider the window's beginning is unknown, and a later view of time that began a calendar window
// may fall back.
func (g *Ledger) Lists(r *Rule) bool { return !r.Anchored || !g.Known || g.Closing || g.Uncut }

// Move lists an amount under another end.
func (u *Usage) Move(from, to, amount int64) {
	u.List(from, -amount)
	u.List(to, amount)
}

// TakeBack removes up to an amount that is counted under an end, or is open (OpenEnd). A rate counts nothing before it
// has shares, and use from before may be returned later.
func (u *Usage) TakeBack(end, amount int64) {
	taken := u.counted(end, amount)
	u.Amount -= taken
	u.List(end, -taken)
}

// MoveCounted moves up to an amount that is counted under one end to another one.
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

// EncodeEnds encodes the ends of a usage.
func EncodeEnds(to []*logpb.SnapshotEnding, class int32, u *Usage) []*logpb.SnapshotEnding {
	for _, e := range u.Ends {
		to = append(to, &logpb.SnapshotEnding{Class: class, EndNs: e.End, Amount: e.Amount})
	}
	return to
}
