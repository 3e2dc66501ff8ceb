package fsm

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// usage is what a class or a holder holds and has consumed of a window.
type usage struct {
	amount int64
	// ends is what of it was consumed, by the end of its exposure in ascending order, as long as some may lie before the window:
	// that was not used of it.
	ends []ending
}

// ending is an amount of which the exposure ends.
type ending struct{ end, amount int64 }

func (u *usage) clone() usage { return usage{amount: u.amount, ends: slices.Clone(u.ends)} }

// add adds an amount whose exposure ends, or takes one out.
func (u *usage) add(end, amount int64, listed bool) {
	u.amount = max(u.amount+amount, 0) // a meter may have begun to count while something was held
	if listed {
		u.list(end, amount)
	}
}

// list lists an amount under an end, or takes one out; what is held, and what was used before there was a list, is not in it.
func (u *usage) list(end, amount int64) {
	if end == openEnd {
		return
	}
	i, found := u.find(end)
	if !found {
		if amount > 0 {
			u.ends = slices.Insert(u.ends, i, ending{end: end, amount: amount})
		}
		return
	}
	if u.ends[i].amount += amount; u.ends[i].amount <= 0 {
		u.ends = slices.Delete(u.ends, i, i+1)
	}
}

// has tells whether an end is listed.
func (u *usage) has(end int64) bool {
	_, found := u.find(end)
	return found
}

func (u *usage) find(end int64) (int, bool) {
	return slices.BinarySearchFunc(u.ends, end, func(e ending, end int64) int { return cmp.Compare(e.end, end) })
}

// drop takes out what ended before a cutoff.
func (u *usage) drop(cutoff int64) {
	n := 0
	for n < len(u.ends) && u.ends[n].end < cutoff {
		u.amount = max(u.amount-u.ends[n].amount, 0)
		n++
	}
	u.ends = slices.Delete(u.ends, 0, n)
}

// since returns what is left without what ended before a cutoff.
func (u *usage) since(cutoff int64) int64 {
	left := u.amount
	for _, e := range u.ends {
		if e.end < cutoff {
			left -= e.amount
		}
	}
	return max(left, 0)
}

// lists tells whether what is used is listed by its end: some of it may turn out to lie before the window. Where the provider's
// reset is not known, nobody knows where it begins; and a later view of time that began a calendar window may fall back.
func (g *ledger) lists(r *rule) bool { return !r.anchored || !g.known || g.closing || g.uncut }

// recordUsage records what a holder takes of the present window, or gives back: of what it holds (openEnd), or of what it consumed. Where its
// caller's part of what is remembered of holders is used up nothing more is listed: that counts for the whole window.
func (m *Machine) recordUsage(q *quota, name string, class int32, window, end, amount int64) {
	if q.rule.paced() && class == classCritical && q.ledger.counts(end) {
		q.ledger.used[class].add(end, amount, true) // what its cap needs
	}
	if q.rule.kind != kindWindow || window != q.ledger.window || !q.ledger.counts(end) {
		return
	}
	listed := q.ledger.lists(&q.rule)
	q.ledger.used[class].add(end, amount, listed)
	if t := m.metered(q, name); t != nil {
		was := t.size()
		t.used.add(end, amount, listed && (amount < 0 || t.used.has(end) || m.mayGrow(t)))
		m.resized(t, was)
	}
}

// moveUsage records that the exposure of what was used ends at another time.
func (m *Machine) moveUsage(q *quota, name string, c *charge, from int64) {
	if q.rule.paced() && c.class == int8(classCritical) {
		q.ledger.used[c.class].move(from, c)
	}
	if q.rule.kind != kindWindow || c.window != q.ledger.window || !q.ledger.lists(&q.rule) {
		return
	}
	q.ledger.used[c.class].move(from, c)
	if t := m.metered(q, name); t != nil {
		was := t.size()
		t.used.list(from, -c.amount)
		if t.used.has(c.end) || m.mayGrow(t) {
			t.used.list(c.end, c.amount)
		}
		m.resized(t, was)
	}
}

// move lists a charge under its end, and no longer under the one that it had.
func (u *usage) move(from int64, c *charge) {
	u.list(from, -c.amount)
	u.list(c.end, c.amount)
}

// metered returns a holder's meter, with what is of the present window, that may be changed; nil: it has none.
func (m *Machine) metered(q *quota, name string) *meter {
	t := m.meter(q, name)
	if t == nil {
		return nil
	}
	was := t.size()
	if t.window != q.ledger.window {
		t.window, t.used = q.ledger.window, usage{}
	}
	t.used.drop(q.ledger.cutoff)
	if !q.ledger.lists(&q.rule) {
		t.used.ends = nil
	}
	m.resized(t, was)
	return t
}

// encodeEnds encodes a list of what is used.
func encodeEnds(to []*logpb.SnapshotEnding, class int32, u *usage) []*logpb.SnapshotEnding {
	for _, e := range u.ends {
		to = append(to, &logpb.SnapshotEnding{Class: class, EndNs: e.end, Amount: e.amount})
	}
	return to
}
