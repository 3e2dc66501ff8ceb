package fsm

import "github.com/quotad/quotad/fsm/accounts"

// eachCharge calls fn for each object that an account is charged with.
func (s *State) eachCharge(fn func(number uint64, b accounts.Budget, amount int64)) {
	s.requests.EachCharge(fn)
	s.queue.waiters.Scan(func(_ uint64, w *waiter) bool {
		fn(w.account, accounts.Waiters, accounts.WeightOf(w.shares))
		fn(w.account, accounts.Leases, accounts.WeightOf(w.shares))
		if w.req.Consume {
			fn(w.account, accounts.Operations, recordBytes(w.shares))
		}
		return true
	})
	s.tasks.EachCharge(fn)
	s.leases.Scan(func(_ uint64, l *lease) bool {
		fn(l.account, accounts.Leases, accounts.WeightOf(len(l.items)))
		for _, o := range l.records() {
			fn(o.account, accounts.Operations, o.size())
		}
		return true
	})
	s.records.retiring.Scan(func(_ uint64, r *retiring) bool {
		for _, o := range r.list {
			fn(o.account, accounts.Operations, o.size())
		}
		return true
	})
	s.records.detached.Scan(func(p keptPage) bool {
		for rest := p.packed; len(rest) > 0; {
			var packed []byte
			packed, rest = cut(rest)
			o := unpack(packed)
			fn(o.account, accounts.Operations, orphanBytes(o, packed))
		}
		return true
	})
	s.holders.eachMemory(func(h *holder, bytes int64) { fn(h.account, accounts.Holders, bytes) })
}
