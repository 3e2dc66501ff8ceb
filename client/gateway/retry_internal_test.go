package gateway

import (
	"net/http"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/dialect"
)

// shouldRetry returns the X-Should-Retry of a refusal for a client.
func shouldRetry(name dialect.Name, agent, part string, no *client.RefusalError) string {
	c := &call{header: http.Header{"User-Agent": {agent}}, op: dialect.Operation{Dialect: name}}
	c.draws = []draw{{part: part}}
	c.draws[0].quota.Name = no.Quota
	return name.Refuse(c.quotaRefusal(no)).Header.Get("X-Should-Retry")
}

// TestQuotaRefusal_SaysWhetherToRetry: clients may retry if that can help within a minute, whatever the reason. Claude Code waits
// longer by itself, except for money.
func TestQuotaRefusal_SaysWhetherToRetry(t *testing.T) {
	const claude, other = "claude-cli/2.1.0 (external, cli)", "python-httpx/1.0"
	reasons := map[client.Reason]bool{ //nolint:exhaustive // of refusals; true: no wait helps
		client.ReasonNeverFits: true, client.ReasonAboveClamp: true, client.ReasonSuspended: true,
	}
	for _, passes := range []client.Reason{
		client.ReasonCooldown, client.ReasonExhausted, client.ReasonBehindWaiters, client.ReasonCannotServeInTime,
		client.ReasonWaitExpired, client.ReasonWithdrawn, client.ReasonQueueFull, client.ReasonBreakerOpen, client.ReasonZone,
		client.ReasonReopening, client.ReasonShare, client.ReasonCap, client.ReasonSequential, client.ReasonBackPressure,
		client.ReasonCallerBudget, client.ReasonBudgetFull,
	} {
		reasons[passes] = false
	}
	for _, name := range []dialect.Name{
		dialect.OpenAI, dialect.Anthropic, dialect.Gemini, dialect.Azure, dialect.Bedrock, dialect.Codex, dialect.GitHub, dialect.Generic,
	} {
		for reason, never := range reasons {
			for _, want := range []struct {
				after       time.Duration
				agent, part string
				final       bool
			}{
				{0, other, "requests", never},
				{5 * time.Second, other, "tokens", never},
				{time.Minute, other, "requests", never},
				{time.Minute + time.Millisecond, other, "requests", true},
				{time.Hour, other, "core", true},
				{-1, other, "requests", true},
				{time.Hour, claude, "requests", never},
				{-1, claude, "requests", true},
				{5 * time.Second, claude, partCost, never},
				{time.Hour, claude, partCost, true},
				{time.Hour, other, partCost, true},
			} {
				header := ""
				if want.final {
					header = "false"
				}
				got := shouldRetry(name, want.agent, want.part, &client.RefusalError{Reason: reason, Quota: "q/m/" + want.part, RetryAfter: want.after})
				if got != header {
					t.Errorf("%s: %s of %s after %v for %s: X-Should-Retry %q, want %q", name, reason, want.part, want.after, want.agent, got, header)
				}
			}
		}
	}
}
