package client

import (
	"net/http"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// learnRefusal learns from the body of a refused call.
func (g *governed) learnRefusal(body []byte) {
	g.unused = true
	if g.call.Request == nil {
		return
	}
	if requested, said := estimate.Requested(body); said {
		g.transport.settings.learner.LearnRequested(g.transport.key(&g.call), g.call.Request, requested)
	}
}

// reportCutOff reports a limit that cut an answer off in its middle. The status was a success, so only the error in the body shows it.
func (g *governed) reportCutOff(said usage.Said) {
	if said.Failure == nil || g.unused || g.status >= http.StatusBadRequest {
		return
	}
	status := said.Failure.Status()
	if status == http.StatusInternalServerError {
		return // no limit
	}
	all := g.call.Dialect.ObserveAnswer(time.Now(), status, http.Header{}, said.Failure.Body)
	verdict, refused := signals.Verdict(all)
	if !refused || !verdict.Class.Limited() {
		return
	}
	a, number := g.last(), uint64(1)
	if op := a.lease.Operation(); op != nil {
		number = op.Number()
	}
	if report := g.transport.signalsFor(g.call, all, true); len(report) > 0 {
		g.report(a.lease, number, report)
	}
}

// addStatedUse adds to used, by quota, the use that a model's answer states, and learns from it. An answer that was not read to its end
// may have used more than it stated, so nothing returns.
func (g *governed) addStatedUse(said usage.Said, whole bool, used map[string]int64) {
	call := &g.call
	if whole && said.Known() && call.Request != nil && !g.unused {
		g.learn(said)
	}
	burndown := int64(1)
	if call.Request != nil {
		burndown = call.Request.Burndown()
	}
	for _, item := range call.Items {
		part, counts := call.Parts[item.Quota]
		if !counts {
			continue
		}
		n, known := part.said(said, burndown)
		switch {
		case g.unused && part != PartCharged:
			used[item.Quota] = 0
		case !whole || part == PartCharged || said.Failure != nil:
			if floor := part.floor(said, burndown); floor > item.Amount {
				used[item.Quota] = floor
			}
		case known:
			used[item.Quota] = n
		}
	}
}

// learn records what a call used.
func (g *governed) learn(said usage.Said) {
	l, call := g.transport.settings.learner, &g.call
	input := said.Input
	for _, part := range call.Parts {
		if part == PartUncached || part == PartTokensUncached {
			input = said.Uncached()
		}
	}
	taught := estimate.Said{Input: -1, Output: -1}
	if input.Known {
		taught.Input = input.N
	}
	if said.Output.Known {
		taught.Output = said.Output.N
	}
	l.Learn(g.transport.key(call), call.Request, taught)
	for _, id := range []string{said.ID, said.Conversation} {
		l.Remember(call.Prefix, id, said.Input.N+said.Output.N)
	}
}

// said returns the amount of a part that the answer states, if it does. burndown is the weight of an output token where the provider
// counts input and output together.
func (p Part) said(s usage.Said, burndown int64) (n int64, known bool) {
	switch p {
	case PartTokens, PartCharged:
		return s.Input.N + s.Output.N, s.Input.Known && s.Output.Known
	case PartTokensUncached:
		return s.Uncached().N + s.Output.N*burndown, s.Input.Known && s.Output.Known
	case PartUncached:
		return s.Uncached().N, s.Input.Known
	case PartOutput:
		return s.Output.N, s.Output.Known
	case PartInput:
	}
	return s.Input.N, s.Input.Known
}

// floor returns the least amount of a part, from the portion of the answer that passed.
func (p Part) floor(s usage.Said, burndown int64) int64 {
	switch p {
	case PartTokens, PartCharged:
		return s.Input.N + s.OutputFloor()
	case PartTokensUncached:
		return s.Uncached().N + s.OutputFloor()*burndown
	case PartUncached:
		return s.Uncached().N
	case PartOutput:
		return s.OutputFloor()
	case PartInput:
	}
	return s.Input.N
}
