package fsm

import (
	"fmt"
	"math/big"

	"github.com/quotad/quotad/fsm/logpb"
)

// Prediction acts before a window is used up: from what the provider said was left, a straight line tells when nothing
// will be (docs/policy.md). That of a rate is in burn.go.

const (
	defaultSamples = 10
	minSamples     = 3
	maxSamples     = 100
	defaultAhead   = 120 * second
	maxAhead       = hour
	// leastFactor is the smallest part of their size that calls are advised to shrink to, in millionths; anyFactor is the
	// advice where it is not known how long the window lasts.
	leastFactor = 100_000
	anyFactor   = 500_000
)

// prediction is a definition's prediction, worked out.
type prediction struct {
	// on: something is predicted.
	on bool
	// samples is how many of the last reports of a window count.
	samples int
	// ahead is how long before the window is used up it is acted upon.
	ahead int64
}

// newPrediction works a prediction out, or says why it cannot work.
func newPrediction(def *logpb.Quota, r *rule, level uint32) (prediction, *logpb.Failure) {
	given := def.GetPolicy().GetPrediction()
	if given == nil {
		return prediction{}, nil
	}
	p := prediction{on: true, samples: int(given.Samples), ahead: given.AheadNs}
	if p.samples == 0 {
		p.samples = defaultSamples
	}
	if p.ahead == 0 {
		p.ahead = defaultAhead
	}
	switch {
	case r.kind == kindRate && level >= levelReports:
		return newRatePrediction(def, r)
	case r.kind != kindWindow && level < levelReports:
		return prediction{}, impossible(def, "only windows are predicted", "a rate never runs out before a reset: the queue paces it")
	case r.kind != kindWindow:
		return prediction{}, impossible(def, "slots are not predicted", "windows and rates are")
	case p.samples < minSamples || p.samples > maxSamples:
		return prediction{}, impossible(def, "a prediction needs 3 to 100 samples", "the default is 10")
	case p.ahead < second || p.ahead > maxAhead:
		return prediction{}, impossible(def, "a prediction looks 1 s to 1 h ahead", "the default is 2m")
	}
	return p, nil
}

// newRatePrediction works out that of a rate, which rests on what is granted and not on reports.
func newRatePrediction(def *logpb.Quota, r *rule) (prediction, *logpb.Failure) {
	given := def.GetPolicy().GetPrediction()
	p := prediction{on: true, ahead: given.AheadNs}
	if p.ahead == 0 {
		p.ahead = min(defaultAhead, r.period/aheadPart)
	}
	switch {
	case given.Samples != 0:
		return prediction{}, impossible(def, "the prediction of a rate has no samples", "it rests on what is granted: leave samples out")
	case given.AheadNs != 0 && (given.AheadNs < second || given.AheadNs > maxAhead):
		return prediction{}, impossible(def, "a prediction looks 1 s to 1 h ahead", "the default of a rate is a fifth of its period, at most 2m")
	}
	return p, nil
}

// sample is what a provider said was left.
type sample struct {
	// at is when it was reported (cluster time), wall the earlier view of Unix time then.
	at, wall, left int64
}

// stage is how far a quota acts upon its prediction. Each includes those before it.
type stage int32

const (
	// stageNone: nothing is to be seen.
	stageNone stage = 0
	// In stage 1 calls are advised to become smaller. stageElsewhere: who allows it is given the next quota of the fallback chain.
	stageElsewhere stage = 2
	// stageParked: background work waits.
	stageParked stage = 3
	// stages is into how many parts the time ahead is divided.
	stages = 3
)

// recordSample takes over what a provider said is left of the present window.
//
// More than before is either a report that was overtaken by another one, or a window that the provider has begun anew. It
// is the latter where the call was not even consumed when the last report came; otherwise nothing can be learned from it.
func (m *Machine) recordSample(q *quota, o *operation, signal *logpb.Signal) {
	p := q.rule.policy.prediction
	if p.samples == 0 || signal.Remaining == nil || reportingCharge(q, o) == nil {
		return
	}
	known := q.samples
	if q.sampledIn != q.ledger.window {
		known = nil
	}
	if n := len(known); n > 0 && *signal.Remaining > known[n-1].left {
		if o.beganWall <= known[n-1].wall {
			return
		}
		known = nil
	}
	known = known[max(len(known)-p.samples+1, 0):]
	fresh := make([]sample, 0, len(known)+1)
	fresh = append(append(fresh, known...), sample{at: m.clock.Now, wall: m.clock.WallEarly, left: *signal.Remaining})
	q.samples, q.sampledIn, q.exhausted = fresh, q.ledger.window, exhaustion(fresh)
	m.foresee(q)
}

// foresee emits an event where a quota acts further or less far than before.
func (m *Machine) foresee(q *quota) {
	now, left := q.foresees(&q.ledger, m.clock)
	if now == q.stage {
		return
	}
	q.stage = now
	m.emit(Event{Kind: EventForecast, Quota: q.name, Amount: q.samples[len(q.samples)-1].left, Duration: left})
	m.markDirty(q)
}

// exhaustion returns when nothing will be left (cluster time), by the line of least squares through samples; 0: it does
// not fall.
func exhaustion(samples []sample) int64 {
	if len(samples) < minSamples {
		return 0
	}
	// x is milliseconds since the first sample, y what was left. The line is y = (a + b x) / d.
	var n, sx, sy, sxx, sxy big.Int
	n.SetInt64(int64(len(samples)))
	for _, s := range samples {
		x, y := big.NewInt((s.at-samples[0].at)/millisecond), big.NewInt(s.left)
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
	if !zero.IsInt64() || zero.Int64() > maxPeriod/millisecond {
		return 0
	}
	return addSaturated(samples[0].at, max(zero.Int64(), 0)*millisecond)
}

// foresees returns how far a quota acts upon its prediction, and how long what it has will last.
func (q *quota) foresees(g *ledger, at Clock) (s stage, left int64) {
	if q.rule.burns() {
		return q.foreseesBurn(g, at.Now)
	}
	ahead := q.rule.policy.prediction.ahead
	left = q.exhausted - at.Now
	if ahead == 0 || q.exhausted == 0 || q.sampledIn != g.window || left <= 0 || left > ahead {
		return stageNone, 0
	}
	if closes, known := g.closes(&q.rule, q.rule.at(at)); known && closes <= left {
		return stageNone, 0
	}
	return stageParked - stage((left-1)*stages/ahead), left
}

// forecast returns what a quota predicts; nil: nothing.
func (q *quota) forecast(g *ledger, at Clock) *logpb.Forecast {
	if q.rule.burns() {
		return q.forecastBurn(g, at.Now)
	}
	s, left := q.foresees(g, at)
	if s == stageNone {
		return nil
	}
	f := &logpb.Forecast{Quota: q.name, ExhaustedAtNs: q.exhausted, SmallerPpm: anyFactor, Parks: s >= stageParked}
	if closes, known := g.closes(&q.rule, q.rule.at(at)); known {
		f.SmallerPpm = int32(max(mulDivFloor(left, million, closes), leastFactor))
	}
	if s >= stageElsewhere {
		f.Fallback = q.definition.Fallback
	}
	return f
}

// predicts tells whether there is anything that a prediction could rest on.
func (q *quota) predicts() bool { return q.exhausted != 0 || q.rule.burns() }

// forecastOf returns the most urgent forecast of some needs; nil: there is none.
func (m *Machine) forecastOf(needs []need) (most *logpb.Forecast) {
	for _, n := range needs {
		if !n.quota.predicts() {
			continue
		}
		if f := n.quota.forecast(&n.quota.ledger, m.clock); f != nil && (most == nil || f.ExhaustedAtNs < most.ExhaustedAtNs) {
			most = f
		}
	}
	return most
}

// movesOn tells whether one of some needs should be granted of the next quota of its chain.
func (m *Machine) movesOn(needs []need) bool {
	for _, n := range needs {
		if n.quota.predicts() && !n.quota.rule.policy.observe && n.quota.forecast(&n.quota.ledger, m.clock).GetFallback() != "" {
			return true
		}
	}
	return false
}

// withholdByForecast parks background work.
func (m *Machine) withholdByForecast(as priority, q *quota) *logpb.Refusal {
	if q.rule.burns() {
		return nil // what is used up comes back within a period
	}
	s, left := q.foresees(&q.ledger, m.clock)
	if s < stageParked || as.rank != classBackground {
		return nil
	}
	return m.refusal(logpb.Reason_REASON_PARKED, q, addSaturated(m.clock.Now, left),
		fmt.Sprintf("at this pace it is used up in %d s: background work waits", left/second))
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

// takeSamples enters what a snapshot has of the reports of a window.
func (m *Machine) takeSamples(encoded *logpb.SnapshotSamples) error {
	q, ok := m.quotas.Get(encoded.Quota)
	if !ok || len(encoded.Samples) > maxSamples {
		return fmt.Errorf("%d samples of quota %d, which does not exist, or has that many never", len(encoded.Samples), encoded.Quota)
	}
	for _, s := range encoded.Samples {
		q.samples = append(q.samples, sample{at: s.AtNs, wall: s.WallNs, left: s.Left})
	}
	q.sampledIn, q.stage, q.exhausted = encoded.Window, stage(encoded.Stage), exhaustion(q.samples)
	return nil
}
