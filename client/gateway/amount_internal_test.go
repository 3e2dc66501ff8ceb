package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

// TestRefused_LimitOnRequestsTeachesNoTokens: "Requested 1" of a limit on requests must not make calls without a bound look small.
func TestRefused_LimitOnRequestsTeachesNoTokens(t *testing.T) {
	const openai, azure = "Rate limit reached for m in organization org-x on ", "Your requests to m have exceeded "
	for _, tt := range []struct {
		name, text string
		want       int64
	}{
		{"requests", openai + "requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.", 100},
		{"calls", azure + "call rate limit: Limit 3, Used 3, Requested 1. Please try again in 20s.", 100},
		{"unnamed", "Rate limit reached: Limit 3, Used 3, Requested 1. Please try again in 20s.", 100},
		{"tokens", openai + "tokens per min (TPM): Limit 30000, Used 29000, Requested 200. Please try again in 20s.", 200},
	} {
		body := `{"input":"` + strings.Repeat("x", 400) + `"}`
		c := &call{
			gateway: &Gateway{learner: estimate.NewLearner(nil)},
			ask:     estimate.Read(signals.OpenAI, estimate.RouteOf(signals.OpenAI, &url.URL{Path: "/v1/responses"}), strings.NewReader(body)),
		}
		said := signals.OpenAI.ObserveAnswer(time.Now(), http.StatusTooManyRequests, http.Header{},
			[]byte(`{"error":{"message":"`+tt.text+`","code":"rate_limit_exceeded"}}`))
		verdict, refused := signals.Verdict(said)
		if !refused || !verdict.Requested.Known {
			t.Fatalf("%s: read as %+v", tt.name, verdict)
		}
		for range 20 {
			c.learnRefused(verdict)
		}
		if got := c.gateway.learner.Estimate(c.likeness(), c.ask, 0).Input; got != tt.want {
			t.Errorf("%s: the input is estimated as %d tokens, want %d", tt.name, got, tt.want)
		}
	}
}
