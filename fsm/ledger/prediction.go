package ledger

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Defaults and bounds of predictions.
const (
	DefaultSamples = 10
	MinSamples     = 3
	MaxSamples     = 100
	DefaultAhead   = 120 * fixed.Second
	MaxAhead       = fixed.Hour
	// aheadPart: by default a rate looks an aheadPart-th of its period ahead.
	aheadPart = 5
)

// Prediction is the compiled prediction of a definition.
type Prediction struct {
	// on: there is a prediction.
	on bool
	// Samples is how many of the last reports of a window count.
	Samples int
	// Ahead is how long before exhaustion the quota acts.
	Ahead int64
}

// newPrediction compiles a prediction, or returns why it is invalid.
func newPrediction(def *logpb.Quota, r *Rule, level uint32) (Prediction, *logpb.Failure) {
	given := def.GetPolicy().GetPrediction()
	if given == nil {
		return Prediction{}, nil
	}
	p := Prediction{on: true, Samples: int(given.Samples), Ahead: given.AheadNs}
	if p.Samples == 0 {
		p.Samples = DefaultSamples
	}
	if p.Ahead == 0 {
		p.Ahead = DefaultAhead
	}
	switch {
	case r.Kind == KindRate && level >= levels.Reports:
		return newRatePrediction(def, r)
	case r.Kind != KindWindow && level < levels.Reports:
		return Prediction{}, Impossible(def, "only windows are predicted", "a rate never runs out before a reset: the queue paces it")
	case r.Kind != KindWindow:
		return Prediction{}, Impossible(def, "slots are not predicted", "windows and rates are")
	case p.Samples < MinSamples || p.Samples > MaxSamples:
		return Prediction{}, Impossible(def, "a prediction needs 3 to 100 samples", "the default is 10")
	case p.Ahead < fixed.Second || p.Ahead > MaxAhead:
		return Prediction{}, Impossible(def, "a prediction looks 1 s to 1 h ahead", "the default is 2m")
	}
	return p, nil
}

// newRatePrediction compiles the prediction of a rate, which is based on grants, not on reports.
func newRatePrediction(def *logpb.Quota, r *Rule) (Prediction, *logpb.Failure) {
	given := def.GetPolicy().GetPrediction()
	p := Prediction{on: true, Ahead: given.AheadNs}
	if p.Ahead == 0 {
		p.Ahead = min(DefaultAhead, r.Period/aheadPart)
	}
	switch {
	case given.Samples != 0:
		return Prediction{}, Impossible(def, "the prediction of a rate has no samples", "it rests on what is granted: leave samples out")
	case given.AheadNs != 0 && (given.AheadNs < fixed.Second || given.AheadNs > MaxAhead):
		return Prediction{}, Impossible(def, "a prediction looks 1 s to 1 h ahead", "the default of a rate is a fifth of its period, at most 2m")
	}
	return p, nil
}

// Burns reports whether a rule predicts from grants.
func (r *Rule) Burns() bool { return r.Kind == KindRate && r.Policy.Prediction.on }
