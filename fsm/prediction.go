package fsm

import (
	"fmt"
	"math/big"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Prediction acts before a window is used up: a straight line through the remainders that the provider reported gives
// the time of exhaustion (docs/policy.md). The prediction of a rate is in burn.go.

const (
	// leastFactor is the smallest advised size of calls, in millionths of their size. anyFactor is the advice where it
	// is not known how long the window lasts.
	leastFactor = 100_000
	anyFactor   = 500_000
)

// sample is a remainder that a provider reported.
type sample struct {
	// at is when it was reported (cluster time), wall the earlier view of Unix time then.
	at, wall, left int64
}

// stage is how far a quota acts on its prediction. Each stage includes those before it.
type stage int32

const (
	// stageNone: no exhaustion is predicted.
	stageNone stage = 0
	// In stage 1 calls are advised to become smaller. stageElsewhere: calls that allow it get the next quota of the
	// fallback chain.
	stageElsewhere stage = 2
	// stageParked: background work waits.
	stageParked stage = 3
	// stages is the number of parts into which the time ahead is divided.
	stages = 3
)

// recordSample records the reported remainder of the present window.
//
// A remainder that grew means that the report was overtaken by another one, or that the provider began a new window. It
// is a new window if the call was consumed after the last report. Otherwise the report is ignored.
func (m *Machine) recordSample(q *quota, o *operation, signal *logpb.Signal) {
	p := q.rule.Policy.Prediction
	if p.Samples == 0 || signal.Remaining == nil || reportingCharge(q, o) == nil {
		return
	}
	known := q.samples
	if q.sampledIn != q.ledger.Window {
		known = nil
	}
	if n := len(known); n > 0 && *signal.Remaining > known[n-1].left {
		if o.beganWall <= known[n-1].wall {
			return
		}
		known = nil
	}
	known = known[max(len(known)-p.Samples+1, 0):]
	fresh := make([]sample, 0, len(known)+1)
	fresh = append(append(fresh, known...), sample{at: m.clock.Now, wall: m.clock.WallEarly, left: *signal.Remaining})
	q.samples, q.sampledIn, q.exhausted = fresh, q.ledger.Window, exhaustion(fresh)
	m.foresee(q)
}

// foresee emits an event when a quota's stage changes.
func (m *Machine) foresee(q *quota) {
	now, left := q.foresees(&q.ledger, m.clock)
	if now == q.stage {
		return
	}
	q.stage = now
	m.emit(effect.Event{Kind: effect.EventForecast, Quota: q.name, Amount: q.samples[len(q.samples)-1].left, Duration: left})
	m.quotas.markDirty(q)
}

// exhaustion returns when nothing will be left (cluster time), by the line of least squares through samples; 0: the
// line does not fall.
func exhaustion(samples []sample) int64 {
	if len(samples) < ledger.MinSamples {
		return 0
	}
	// x is milliseconds since the first sample, y the remainder. The line is y = (a + b x) / d.
	var n, sx, sy, sxx, sxy big.Int
	n.SetInt64(int64(len(samples)))
	for _, s := range samples {
		x, y := big.NewInt((s.at-samples[0].at)/fixed.Millisecond), big.NewInt(s.left)
		sx.Add(&sx, x)
		sy.Add(&sy, y)
		sxx.Add(&sxx, new(big.Int).Mul(x, x))
		sxy.Add(&sxy, new(big.Int).Mul(x, y))
	}
	product := func(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }
	a := new(big.Int).Sub(product(&sy, &sxx), product(&sx, &sxy))
	b := new(big.Int).Sub(product(&n, &sxy), product(&sx, &sy))
	if b.Sign() >= 0 {
		return 0
	}
	zero := new(big.Int).Quo(a, b.Neg(b))
	if !zero.IsInt64() || zero.Int64() > ledger.MaxPeriod/fixed.Millisecond {
		return 0
	}
	return fixed.AddSaturated(samples[0].at, max(zero.Int64(), 0)*fixed.Millisecond)
}

// foresees returns the stage of a quota's prediction, and how long its amount will last (nanoseconds).
func (q *quota) foresees(g *ledger.Ledger, at Clock) (s stage, left int64) {
	if q.rule.Burns() {
		return q.foreseesBurn(g, at.Now)
	}
	ahead := q.rule.Policy.Prediction.Ahead
	left = q.exhausted - at.Now
	if ahead == 0 || q.exhausted == 0 || q.sampledIn != g.Window || left <= 0 || left > ahead {
		return stageNone, 0
	}
	if closes, known := g.Closes(&q.rule, q.rule.At(at)); known && closes <= left {
		return stageNone, 0
	}
	return stageParked - stage((left-1)*stages/ahead), left
}

// forecast returns the forecast of a quota; nil: none.
func (q *quota) forecast(g *ledger.Ledger, at Clock) *logpb.Forecast {
	if q.rule.Burns() {
		return q.forecastBurn(g, at.Now)
	}
	s, left := q.foresees(g, at)
	if s == stageNone {
		return nil
	}
	f := &logpb.Forecast{Quota: q.name, ExhaustedAtNs: q.exhausted, SmallerPpm: anyFactor, Parks: s >= stageParked}
	if closes, known := g.Closes(&q.rule, q.rule.At(at)); known {
		f.SmallerPpm = int32(max(fixed.MulDivFloor(left, fixed.Million, closes), leastFactor))
	}
	if s >= stageElsewhere {
		f.Fallback = q.definition.Fallback
	}
	return f
}

// predicts reports whether there is a basis for a prediction.
func (q *quota) predicts() bool { return q.exhausted != 0 || q.rule.Burns() }

// forecastOf returns the most urgent forecast of some needs; nil: none.
func (j *judge) forecastOf(needs []need) (most *logpb.Forecast) {
	for _, n := range needs {
		if !n.quota.predicts() {
			continue
		}
		if f := n.quota.forecast(&n.quota.ledger, j.clock); f != nil && (most == nil || f.ExhaustedAtNs < most.ExhaustedAtNs) {
			most = f
		}
	}
	return most
}

// movesOn reports whether one of some needs should be granted from the next quota of its chain.
func (j *judge) movesOn(needs []need) bool {
	for _, n := range needs {
		if n.quota.predicts() && !n.quota.rule.Policy.Observe && n.quota.forecast(&n.quota.ledger, j.clock).GetFallback() != "" {
			return true
		}
	}
	return false
}

// withholdByForecast parks background work.
func (rq *request) withholdByForecast(q *quota) *logpb.Refusal {
	if q.rule.Burns() {
		return nil // used amounts return within a period
	}
	s, left := q.foresees(&q.ledger, rq.clock)
	if s < stageParked || rq.rank != ledger.ClassBackground {
		return nil
	}
	return rq.refusal(logpb.Reason_REASON_PARKED, q, fixed.AddSaturated(rq.clock.Now, left),
		fmt.Sprintf("at this pace it is used up in %d s: background work waits", left/fixed.Second))
}

// circuit says whether a quota lets calls pass.
func (q *quota) circuit(forecast *logpb.Forecast, now int64) Circuit {
	switch {
	case q.cooling(now):
		return CircuitOpen
	case q.reopens(now) > 0:
		return CircuitHalfOpen
	case forecast != nil:
		return CircuitPreemptive
	}
	return CircuitClosed
}

// takeSamples restores the samples of a window from a snapshot.
func (r *restoring) takeSamples(encoded *logpb.SnapshotSamples) error {
	q, ok := r.m.quotas.byNumber.Get(encoded.Quota)
	if !ok || len(encoded.Samples) > ledger.MaxSamples {
		return fmt.Errorf("%d samples of quota %d, which does not exist, or has that many never", len(encoded.Samples), encoded.Quota)
	}
	for _, s := range encoded.Samples {
		q.samples = append(q.samples, sample{at: s.AtNs, wall: s.WallNs, left: s.Left})
	}
	q.sampledIn, q.stage, q.exhausted = encoded.Window, stage(encoded.Stage), exhaustion(q.samples)
	return nil
}
