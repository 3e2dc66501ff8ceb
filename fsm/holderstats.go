package fsm

import (
	"cmp"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
)

// holderStats are the counters of one holder for one quota whose policy needs them.
type holderStats struct {
	cow.Made
	holder string
	quota  uint32
	// grants is how often the holder was granted some of it, granted when that last happened (cluster time).
	grants, granted int64
	// failures counts the provider's refusals in a row; closedUntil is when the quota opens for the holder again.
	failures    int32
	closedUntil int64
	// denied is since when the holder has been denied without a grant; 0: it has not. It is recorded for quotas with
	// ageing.
	denied int64
	// member, in a sticky pool, is the quota that the holder drew on last; 0: none.
	member uint32
}

func lessStats(a, b *holderStats) bool {
	return cmp.Or(cmp.Compare(a.holder, b.holder), cmp.Compare(a.quota, b.quota)) < 0
}

// statsOf returns holder stats for reading; the zero value if there are none.
func (hs *holderTables) statsOf(name string, q *quota) holderStats {
	if t, ok := hs.stats.Get(&holderStats{holder: name, quota: q.number}); ok {
		return *t
	}
	return holderStats{}
}

// hasStats reports whether there are stats of a holder and a quota.
func (hs *holderTables) hasStats(name string, q *quota) bool {
	_, ok := hs.stats.Get(&holderStats{holder: name, quota: q.number})
	return ok
}

// editStats returns holder stats for update. Their holder's record is kept at least as long.
func (hs *holderTables) editStats(name string, q *quota) *holderStats {
	h := hs.use(name)
	t, ok := hs.stats.Get(&holderStats{holder: name, quota: q.number})
	if ok && t.MadeIn(hs.generation) {
		return t
	}
	c := holderStats{holder: h.name, quota: q.number}
	if ok {
		c = *t
	} else {
		hs.book.Add(h.account, accounts.Holders, statsSize)
	}
	c.Made = cow.In(hs.generation)
	hs.stats.Set(&c)
	return &c
}

// closeFor closes a quota for the holder of these stats until a time; 0: opens it.
func (hs *holderTables) closeFor(t *holderStats, until int64) {
	t.closedUntil = until
	if until == 0 {
		hs.closed.Delete(t.place())
		return
	}
	hs.closed.Set(t.place())
}

// place is the key of these stats in the table of holders with a breaker that is or was open.
func (t *holderStats) place() quotaHolder { return quotaHolder{quota: t.quota, holder: t.holder} }

// unlistStats removes dropped holder stats from the other tables.
func (hs *holderTables) unlistStats(dropped ...*holderStats) {
	for _, t := range dropped {
		hs.closed.Delete(t.place())
		hs.charge(t.holder, -statsSize)
	}
}

// charge charges bytes to the account of a holder that has a record.
func (hs *holderTables) charge(name string, bytes int64) {
	h, _ := hs.byName.Get(name)
	hs.book.Add(h.account, accounts.Holders, bytes)
}

// broken returns up to limit holders, by name, for which a quota is closed.
func (hs *holderTables) broken(q *quota, now int64, limit int) []string {
	if q.rule.Policy.Failures == 0 {
		return nil
	}
	var names []string
	hs.closed.Ascend(quotaHolder{quota: q.number}, func(of quotaHolder) bool {
		if of.quota == q.number && hs.statsOf(of.holder, q).closedUntil > now {
			names = append(names, of.holder)
		}
		return of.quota == q.number && len(names) < limit
	})
	return names
}
