package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxFreedPerEntry bounds how many results leave in one entry: about as many as an entry adds; late acknowledgements
// follow.
const maxFreedPerEntry = 2 * maxDuePerEntry

// requestHost adapts the machine to the table of requests.
type requestHost struct{ m *Machine }

// Moment implements dedup.Host.
func (h requestHost) Moment() dedup.Moment {
	return dedup.Moment{Now: h.m.clock.Now, Generation: h.m.generation, Level: h.m.featureLevel, Accounts: &h.m.accounts}
}

// Payer implements dedup.Host.
func (h requestHost) Payer() accounts.Payer { return h.m.payer }

// Apply implements dedup.Host.
func (h requestHost) Apply(command *logpb.Command, from dedup.RequestID) *logpb.Result {
	return h.m.apply(command, from)
}

// Digest implements dedup.Host.
func (h requestHost) Digest(command *logpb.Command) uint64 {
	return h.m.digester.Command(command, h.m.raw)
}

// Freeable implements dedup.Host.
func (h requestHost) Freeable(least int) int { return h.m.bounds.frees.own(least) }

// Freed implements dedup.Host.
func (h requestHost) Freed(cost int) { h.m.bounds.frees.spend(cost) }

// WaitCost implements dedup.Host.
func (h requestHost) WaitCost(ticket uint64) int {
	if w, ok := h.m.queue.waiters.Get(ticket); ok {
		return w.cost()
	}
	return 0
}

// Withdraw implements dedup.Host.
func (h requestHost) Withdraw(ticket uint64) {
	if w, ok := h.m.queue.waiters.Get(ticket); ok {
		h.m.endWait(w, h.m.refusalOf(w, logpb.Reason_REASON_WITHDRAWN))
	}
}

// requestRecords are the sessions, stored results and idempotency keys.
func (s *State) requestRecords(fn func(*logpb.SnapshotRecord) bool) bool {
	return s.requests.Records(s.accounts.Limits.KeyLife, fn)
}
