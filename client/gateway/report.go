package gateway

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/pacing"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/signals"
)

// reportEvery is the shortest interval between reports of a quota's ordinary counts. reportWithin is how long a refused call waits to
// learn the cluster's cooldown.
const (
	reportEvery  = time.Second
	reportWithin = 2 * time.Second
)

// reportClock records when the counts of each quota were last reported.
type reportClock struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// due reports whether ordinary counts of a quota are worth a report now: when nothing is left, or after reportEvery.
func (r *reportClock) due(quota string, s signals.Signal, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[quota]; ok && now.Sub(last) < reportEvery && (!s.Remaining.Known || s.Remaining.N > 0) {
		return false
	}
	if r.last == nil || len(r.last) > 100_000 {
		r.last = map[string]time.Time{}
	}
	r.last[quota] = now
	return true
}

// report reports the provider's statements to the cluster. For a refusal it returns how long the quotas are closed: the cluster's
// bounded cooldown, and at least the provider's Retry-After; without either, a second.
func (c *call) report(granted *grant, said []signals.Signal, verdict signals.Signal, limited bool) time.Duration {
	otherwise := time.Second
	if verdict.RetryAfter.Known {
		otherwise = verdict.RetryAfter.D
	}
	report := c.signalsOf(granted, said, limited)
	if granted.lease == nil || len(report) == 0 {
		return otherwise
	}
	done := make(chan time.Duration, 1)
	granted.reported = true
	granted.reports.Add(1)
	c.gateway.tasks.Go(func() {
		defer granted.reports.Done()
		ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
		defer cancel()
		reported, err := reportOn(ctx, granted.lease, report)
		if err != nil {
			c.gateway.logger.Warn("could not report a provider's limits", "upstream", c.upstream.name, "error", err)
		}
		var left time.Duration
		for _, quota := range reported {
			left = max(left, quota.CooldownLeft)
		}
		done <- left
	})
	if !limited {
		return 0
	}
	timer := time.NewTimer(reportWithin)
	defer timer.Stop()
	select {
	case left := <-done:
		if left > 0 {
			return max(left, verdict.RetryAfter.D)
		}
	case <-timer.C:
	}
	return otherwise
}

func reportOn(ctx context.Context, lease *client.Lease, report []client.Signal) ([]client.Reported, error) {
	if op := lease.Operation(); op != nil {
		return op.Report(ctx, report...)
	}
	return lease.Report(ctx, report...)
}

// quotaOf returns the quota of the call that the provider's name of a limit refers to; empty: none.
func (c *call) quotaOf(resource string) string {
	if resource == "" {
		return ""
	}
	for _, d := range c.draws {
		if d.part == resource || strings.HasSuffix(d.quota.Name, "/"+resource) {
			return d.quota.Name
		}
	}
	return ""
}

// signalsOf converts the provider's statements into signals for the cluster. It omits counts of limits that the call does not draw on.
// A refusal always counts, if need be against the call's first quota.
func (c *call) signalsOf(granted *grant, said []signals.Signal, limited bool) []client.Signal {
	if len(c.draws) == 0 {
		return nil
	}
	var out []client.Signal
	now := time.Now()
	for _, s := range said {
		quota := c.quotaOf(s.Resource)
		switch {
		case s.Class == signals.NotALimit:
			continue
		case s.Class == signals.OK && quota == "" && s.Resource == "" && (len(c.draws) == 1 || c.upstream.config.Secondary):
			quota = c.draws[0].quota.Name
		case s.Class != signals.OK && quota == "":
			quota = c.draws[0].quota.Name
		}
		quota = granted.quota(quota)
		if quota == "" || s.Class == signals.OK && !limited && !c.gateway.reports.due(quota, s, now) {
			continue
		}
		if s.Class == signals.Billing {
			// No quota of the call is paid for.
			for _, d := range c.draws {
				out = append(out, client.Signal{Quota: granted.quota(d.quota.Name), Cause: client.CausePlan})
			}
			continue
		}
		out = append(out, signalOf(quota, s))
	}
	return merged(out)
}

// maxAmount is the largest count that the cluster accepts.
const maxAmount = 1<<53 - 1

func signalOf(quota string, s signals.Signal) client.Signal {
	out := client.Signal{Quota: quota, Cause: causeOf(s)}
	if s.Limit.Known && s.Limit.N <= maxAmount {
		out.Limit = &s.Limit.N
	}
	if s.Remaining.Known && s.Remaining.N <= maxAmount {
		out.Remaining = &s.Remaining.N
	}
	if s.ResetIn.Known && s.ResetIn.D > 0 {
		out.ResetAfter, out.ResetResolution = &s.ResetIn.D, s.ResetResolution
	}
	if s.RetryAfter.Known {
		out.RetryAfter = &s.RetryAfter.D
	}
	return out
}

func causeOf(s signals.Signal) client.Cause {
	switch s.Class {
	case signals.Throttled:
		if s.Scope == signals.ScopeOrg || s.Scope == signals.ScopeProject {
			return client.CauseAccount
		}
		return client.CauseSaturated
	case signals.Exhausted:
		return client.CauseExhausted
	case signals.Overloaded:
		return client.CauseOverloaded
	case signals.Billing:
		return client.CausePlan
	case signals.NotALimit:
		return client.CauseNotALimit
	case signals.OK:
	}
	return client.CauseOK
}

// merged keeps one signal per quota: a refusal merges with its counts.
func merged(all []client.Signal) []client.Signal {
	var out []client.Signal
	at := map[string]int{}
	for _, s := range all {
		i, seen := at[s.Quota]
		switch {
		case !seen:
			at[s.Quota] = len(out)
			out = append(out, s)
		case s.Cause != client.CauseOK:
			out[i].Cause, out[i].RetryAfter = s.Cause, s.RetryAfter
		}
	}
	return out
}

// retryIn returns when a class may retry after a cooldown of this length.
func retryIn(cooldown time.Duration, class config.Class) time.Duration {
	return min(pacing.DefaultWindows.Delay(cooldown, quotav1.Class(class), rand.N[time.Duration]), signals.MaxWait)
}

// markRetryAfter sets Retry-After for the client, if the provider did not, or if the cluster's cooldown is longer.
func markRetryAfter(response *http.Response, verdict signals.Signal, cooldown, delay time.Duration) {
	if verdict.Class == signals.Billing || verdict.RetryAfter.Known && verdict.RetryAfter.D >= cooldown &&
		response.Header.Get("Retry-After") != "" {
		return
	}
	response.Header.Set("Retry-After", strconv.FormatInt(int64((delay+time.Second-1)/time.Second), 10))
	if response.Header.Get("Retry-After-Ms") != "" {
		response.Header.Set("Retry-After-Ms", strconv.FormatInt(delay.Milliseconds(), 10))
	}
}
