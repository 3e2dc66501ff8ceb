package sim

import (
	"testing"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
)

// modelled is a fleet of agents that call a model one call after the other.
func modelled(t *testing.T, more string) *fleet.Fleet {
	t.Helper()
	f, err := fleet.Parse("fleet.yaml", []byte(`for: 1h
quotas:
  - {name: gpt/requests, rate: {limit: 600, per: 1m}}
  - {name: gpt/tokens, rate: {limit: 20000, per: 1m}}
agents:
  - name: a
    count: 10
    latency: 5s-10s
    use: {gpt/requests: 1, gpt/tokens: {input: 500-1500, output: 200-400`+more+`}}
    patience: forever
`))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTokens_AreEstimatedAsByTheClient: calls reserve what the client's estimator says, which learns from the calls before, in each life
// of the process.
func TestTokens_AreEstimatedAsByTheClient(t *testing.T) {
	w := newWorld(modelled(t, ""), 1)
	w.populate(1)
	a, learner := w.agents[0], estimate.NewLearner(nil)
	key := estimate.Key{Upstream: "gpt/tokens", Holder: "a-1"}
	learnt := 0
	for n := range 60 {
		if n == 40 {
			a.crash()
			a.revive()
			learner = estimate.NewLearner(nil)
		}
		c := &call{agent: a, uses: a.kind.Uses}
		a.draw(c)
		asked := c.asks[1]
		amounts := learner.Estimate(key, asked.Request, 0)
		if amounts.Learnt {
			learnt++
		}
		if use := c.uses[1]; use.Estimate != amounts.AtArrival() || c.actual[1] != asked.said.Input+asked.said.Output || asked.said.Output > 400 {
			t.Fatalf("call %d reserves %d and uses %d of %+v; the client would reserve %d", n, use.Estimate, c.actual[1], asked.said,
				amounts.AtArrival())
		}
		if c.asks[0] != nil || c.uses[0].Estimate != 1 || a.kind.Uses[1].Estimate == c.uses[1].Estimate {
			t.Fatalf("call %d: uses %+v of %+v", n, c.uses, a.kind.Uses)
		}
		a.learn(c)
		learner.Learn(key, asked.Request, asked.said)
	}
	if learnt != 20 {
		t.Errorf("%d of 60 calls had a learnt estimate; twenty of each life have none", learnt)
	}
}

// TestTokens_LearntEstimatesServeMore: what calls in flight reserve too much serves nobody. A limit serves a quarter more calls whose
// estimates are learnt than calls that state a bound which is ten times what they use.
func TestTokens_LearntEstimatesServeMore(t *testing.T) {
	var served []int64
	for _, more := range []string{"", ", max_output: 4000"} {
		r, err := Run(t.Context(), modelled(t, more), Governed, 3)
		if err != nil {
			t.Fatal(err)
		}
		if r.Refused != 0 || len(r.Failures) > 0 {
			t.Errorf("%q: %d refused, errors %v", more, r.Refused, r.Failures)
		}
		served = append(served, r.Served)
	}
	if 4*served[0] < 5*served[1] {
		t.Errorf("%d served with learnt estimates, %d with bounds", served[0], served[1])
	}
}
