package fsm

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// This file handles reports of a rate's remainder and limit (docs/decisions/0034-reports-of-rates.md).

// providerLimit is a limit that a provider named.
type providerLimit struct {
	limit, at int64
	// known says that the provider named one.
	known bool
}

// recordProviderLimit remembers the limit that a provider named last, to show it next to the configured one.
func (m *Machine) recordProviderLimit(q *quota, signal *logpb.Signal) {
	if m.featureLevel >= levels.Reports && signal.Limit != nil {
		q.providerLimit = providerLimit{limit: *signal.Limit, at: m.clock.Now, known: true}
	}
}

// learnRate applies a provider's statement about a rate, from its answer to an operation: the use of the key by others,
// and a limit below the configured one, for which it returns the usable amount. It ignores operations that may no
// longer count, and those consumed before another one that the same caller reported: they say nothing about the
// present.
func (m *Machine) learnRate(by reporter, q *quota, o *operation, signal *logpb.Signal) *int64 {
	if m.featureLevel < levels.Reports || o == nil || o.began == 0 || signal.Remaining == nil && signal.Limit == nil {
		return nil
	}
	g, r, now := &q.ledger, &q.rule, m.clock.Now
	ours, amount, charged := chargedBy(q, o)
	if !charged || g.Others.Stale(by.caller, o.began) || now-o.began > r.Counting() {
		return nil
	}
	if m.featureLevel < levels.ReportsPerCaller {
		g.Others.CountsFrom = o.began
	} else {
		g.Others.LastCaller, g.Others.LastBegan = by.caller, o.began
	}
	available, limit := g.Available(r), r.Limit
	var capped *int64
	if signal.Limit != nil && *signal.Limit < limit {
		limit = *signal.Limit
		usable := fixed.MulDivFloor(limit, fixed.Million-int64(q.definition.HeadroomPpm), fixed.Million)
		usable = m.trustedLimit(by, q, usable, signal)
		if g.LowerRate(r, now, usable, by.caller, m.loweredFor(r)) {
			m.emit(effect.Event{Kind: effect.EventCapped, Quota: q.name, Amount: usable})
			capped = &usable
		}
	}
	if signal.Remaining != nil {
		if signal.Cause != logpb.Cause_CAUSE_OK {
			amount = 0 // the provider did not count a refused call
		}
		others := limit - min(*signal.Remaining, limit) - min(fixed.AddSaturated(ours, amount), limit)
		if m.featureLevel >= levels.SingleReporter {
			others = g.Others.Trust.Accept(by.caller, others, saysLimited(signal.Cause), now, m.closingBound(q))
		}
		g.Others.Learn(r, now, others)
	}
	if g.Available(r) != available {
		m.quotas.markDirty(q)
	}
	return capped
}

// trustedLimit returns the usable amount after a caller named a lower limit.
func (m *Machine) trustedLimit(by reporter, q *quota, usable int64, signal *logpb.Signal) int64 {
	if m.featureLevel < levels.SingleReporter {
		return usable
	}
	lacking := q.rule.Usable - usable
	return q.rule.Usable - q.ledger.LimitTrust.Accept(by.caller, lacking, saysLimited(signal.Cause), m.clock.Now, m.closingBound(q))
}

// loweredFor returns for how long a report lowers the usable amount (nanoseconds).
func (m *Machine) loweredFor(r *ledger.Rule) int64 {
	if m.featureLevel < levels.SingleReporter {
		return ledger.LowerPeriods * r.Period
	}
	return min(ledger.LowerPeriods*r.Period, ledger.MaxWindowClosing)
}

// chargedBy returns the amount that an operation charges to a quota, and our other amounts that the provider may have
// counted when it answered: those that counted when the operation was consumed, and those consumed since. Calls
// overtake each other, and some providers compute the remainder when they answer, not when they admit the call.
func chargedBy(q *quota, o *operation) (ours, amount int64, charged bool) {
	var own int64
	var total uint64
	for i := range o.charges {
		c := &o.charges[i]
		if c.quota != q.number {
			continue
		}
		if !charged {
			ours, total, charged = c.before, c.total, true
		}
		amount = fixed.AddSaturated(amount, c.amount)
		if own = fixed.AddSaturated(own, c.consumed); c.overrun {
			own = fixed.AddSaturated(own, c.amount)
		}
	}
	if q.ledger.Total != 0 {
		ours = fixed.AddSaturated(ours, max(int64(q.ledger.Total-total)-own, 0)) // below 0: a part was consumed before totals were recorded
	}
	return ours, amount, charged
}

// encodeBurn returns nil where nothing was granted.
func encodeBurn(b *burn) []int64 {
	if b.of == ([len(b.of)]int64{}) {
		return nil
	}
	return slices.Clone(b.of[:])
}

// takeReports restores the reports and grants of a rate from a snapshot.
func (q *quota) takeReports(encoded *logpb.SnapshotQuota) error {
	f := &q.ledger.Others
	var err error
	if f.Trust, err = ledger.TakeTrust(encoded.OthersTrust); err != nil {
		return fmt.Errorf("quota %d: of others %w", encoded.Number, err)
	}
	if q.ledger.LimitTrust, err = ledger.TakeTrust(encoded.LimitTrust); err != nil {
		return fmt.Errorf("quota %d: of its limit %w", encoded.Number, err)
	}
	f.Amount, f.At, f.CountsFrom = encoded.Foreign, encoded.ForeignAtNs, encoded.CountsFromNs
	f.LastCaller, f.LastBegan = encoded.LastCaller, encoded.LastBeganNs
	switch {
	case f.Amount < 0 || f.Amount > fixed.MaxAmount || f.At < 0 || f.CountsFrom < 0 || f.LastBegan < 0 || encoded.ForeignSeenNs < f.At:
		return fmt.Errorf("quota %d: others used %d of it at %d", encoded.Number, f.Amount, f.At)
	case f.Amount != 0 && (q.rule.Kind != ledger.KindRate || encoded.ForeignSeenNs-f.At >= q.rule.Period):
		return fmt.Errorf("quota %d is no rate, and others use it, or did longer than a period ago", encoded.Number)
	case len(encoded.Burnt) != 0 && (len(encoded.Burnt) != len(q.burn.of) || !q.rule.Burns()), encoded.BurntLast < 0:
		return fmt.Errorf("quota %d has burnt %d amounts up to %d", encoded.Number, len(encoded.Burnt), encoded.BurntLast)
	}
	f.Advance(&q.rule, encoded.ForeignSeenNs)
	copy(q.burn.of[:], encoded.Burnt)
	q.burn.last = encoded.BurntLast
	if encoded.ProviderLimit != nil {
		q.providerLimit = providerLimit{limit: *encoded.ProviderLimit, at: encoded.ProviderLimitNs, known: true}
	}
	return nil
}
