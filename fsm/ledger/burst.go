package ledger

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// A burst is the provider's bucket (the generic cell rate algorithm, ITU-T I.371). If the provider charges when a call
// starts, draws are recorded by their time of consumption for as long as they count. Settle removes the unused part
// there, so the refill since then is not granted twice. If it charges later, open amounts may be charged in any
// interval, and count in each until they are settled.

// draw is an amount drawn from a burst.
type draw struct {
	// end is the end under which it counts in the log; at is when the last of it was consumed.
	end, at, amount int64
}

// drawn returns the theoretical arrival time after all draws.
func (g *Ledger) drawn(r *Rule) int64 {
	arrival := g.Arrival
	for _, d := range g.Draws {
		arrival = fixed.AddSaturated(max(arrival, d.at), fixed.MulDivCeil(d.amount, r.Period, r.Usable))
	}
	return arrival
}

// BurstLeft returns how long until an amount passes the burst (nanoseconds); 0: now. A full burst always passes whole:
// its time would fall short by the rounding error.
func (g *Ledger) BurstLeft(r *Rule, now, amount int64) int64 {
	if r.Burst == 0 {
		return 0
	}
	drawn := g.drawn(r)
	if amount <= r.Burst && drawn <= now {
		return 0
	}
	arrival := fixed.AddSaturated(max(drawn, now), fixed.MulDivCeil(amount, r.Period, r.Usable))
	return max(0, arrival-now-fixed.MulDivFloor(r.Burst, r.Period, r.Usable))
}

// PassBurst draws an amount from the burst that cannot return.
func (g *Ledger) PassBurst(r *Rule, now, amount int64) {
	if r.Burst > 0 {
		g.Arrival = fixed.AddSaturated(max(g.drawn(r), now), fixed.MulDivCeil(amount, r.Period, r.Usable))
		g.Draws = nil
	}
}

// Draw draws an amount from the burst at a moment; it counts until end.
func (g *Ledger) Draw(end, at, amount int64) {
	i, found := g.findDraw(end)
	if !found {
		g.Draws = slices.Insert(g.Draws, i, draw{end: end})
	}
	g.Draws[i].at = max(g.Draws[i].at, at)
	g.Draws[i].amount += amount
}

// Undraw returns the unused part of an amount to the burst.
func (g *Ledger) Undraw(end, amount int64) {
	if i, found := g.findDraw(end); found && end > g.DrawnFrom {
		if g.Draws[i].amount -= amount; g.Draws[i].amount <= 0 {
			g.Draws = slices.Delete(g.Draws, i, i+1)
		}
	}
}

func (g *Ledger) findDraw(end int64) (int, bool) {
	return slices.BinarySearchFunc(g.Draws, end, func(d draw, end int64) int { return cmp.Compare(d.end, end) })
}

// advanceBurst draws unsettled amounts whose exposure has ended, and merges draws that no longer count into Arrival.
func (g *Ledger) advanceBurst(r *Rule, now int64) {
	n := 0
	for n < len(g.Loose) && g.Loose[n].End <= now {
		g.Draw(fixed.RoundUp(g.Loose[n].End, r.Width), g.Loose[n].End, g.Loose[n].Amount)
		n++
	}
	g.Loose = slices.Delete(g.Loose, 0, n)
	n = 0
	for n < len(g.Draws) && g.Draws[n].end < g.Cutoff {
		g.Arrival = fixed.AddSaturated(max(g.Arrival, g.Draws[n].at), fixed.MulDivCeil(g.Draws[n].amount, r.Period, r.Usable))
		n++
	}
	g.Draws = slices.Delete(g.Draws, 0, n)
}

// RescaleBurst converts draws to another rule. A new burst may have been drawn already.
func (g *Ledger) RescaleBurst(from, to *Rule, now int64, exact bool) {
	if exact && to.Burst > 0 && (from.Burst == 0 || to.Usable != from.Usable) {
		g.DrawnFrom = fixed.RoundUp(fixed.AddSaturated(now, max(from.SpendBy, to.SpendBy)), to.Width)
	}
	switch {
	case to.Burst == 0:
		g.Draws, g.Loose = nil, nil
	case from.Burst == 0:
		g.Arrival = fixed.AddSaturated(now, fixed.MulDivCeil(to.Burst, to.Period, to.Usable))
	case to.Usable != from.Usable:
		drawn := fixed.MulDivCeil(max(g.drawn(from)-now, 0), from.Usable, from.Period)
		g.Arrival, g.Draws = fixed.AddSaturated(now, fixed.MulDivCeil(drawn, to.Period, to.Usable)), nil
	}
}

// EncodeDraws encodes the draws.
func EncodeDraws(g *Ledger) (draws []*logpb.SnapshotDraw) {
	for _, d := range g.Draws {
		draws = append(draws, &logpb.SnapshotDraw{EndNs: d.end, AtNs: d.at, Amount: d.amount})
	}
	return draws
}

// EncodeLoose encodes unsettled amounts by the end of their exposure.
func EncodeLoose(g *Ledger) (loose []*logpb.SnapshotDraw) {
	for _, e := range g.Loose {
		loose = append(loose, &logpb.SnapshotDraw{EndNs: e.End, Amount: e.Amount})
	}
	return loose
}

// TakeDraws restores draws and unsettled amounts.
func (g *Ledger) TakeDraws(encoded *logpb.SnapshotQuota) {
	g.DrawnFrom = encoded.DrawnFromNs
	for _, d := range encoded.Draws {
		g.Draws = append(g.Draws, draw{end: d.EndNs, at: d.AtNs, amount: d.Amount})
	}
	for _, d := range encoded.Loose {
		g.Loose = append(g.Loose, Ending{End: d.EndNs, Amount: d.Amount})
	}
}
