package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/client/estimate"
)

// key returns the key under which similar calls are learnt.
func (t *Transport) key(call *Call) estimate.Key {
	return estimate.Key{Upstream: call.Prefix, Model: call.Model, Holder: call.holder(t.client)}
}

// appraise estimates the use of a call to a model from earlier calls.
func (t *Transport) appraise(ctx context.Context, call *Call) {
	if call.Request == nil || len(call.Parts) == 0 {
		return
	}
	a := t.settings.learner.Estimate(t.key(call), call.Request, 0)
	for name, part := range call.Parts {
		counts := part == PartOutput || part != PartInput && part != PartUncached && call.Request.Bound == 0
		if counts && !a.Learnt && call.Request.Operation == estimate.Generate {
			a = t.settings.learner.Estimate(t.key(call), call.Request, t.facts.estimate(ctx, t.client, name))
		}
	}
	call.appraise(a)
}

// maxCuts bounds how often to cut an estimate that can never be granted: first to the usable amount, then to half each
// time.
const maxCuts = 8

// reserve asks the cluster. It cuts an estimate that can never be granted, since the provider may accept the call all
// the same.
func (t *Transport) reserve(ctx context.Context, call *Call, wait time.Duration) (*Lease, error) {
	for cuts := 0; ; cuts++ {
		lease, err := t.client.Reserve(ctx, ReserveRequest{
			Items: call.Items, Consume: true, Class: call.Class, Wait: wait, Holder: call.Holder, Emergency: call.Emergency, Fallback: call.Fallback,
		})
		refusal, refused := errors.AsType[*RefusalError](err)
		if !refused || cuts == maxCuts || !t.shorten(ctx, call, refusal, cuts) {
			return lease, err
		}
	}
}

// shorten cuts the refused estimate and reports whether it did.
func (t *Transport) shorten(ctx context.Context, call *Call, refusal *RefusalError, cuts int) bool {
	if refusal.Reason != ReasonNeverFits && refusal.Reason != ReasonAboveClamp || refusal.RetryAfter >= 0 {
		return false
	}
	for i, item := range call.Items {
		if _, estimated := call.Parts[item.Quota]; !estimated || !t.draws(ctx, item.Quota, refusal.Quota) {
			continue
		}
		most := item.Amount / 2
		if quota, err := t.client.Quota(ctx, refusal.Quota); err == nil && refusal.Reason == ReasonNeverFits && cuts == 0 {
			most = min(quota.Usable, item.Amount-1)
		}
		if most < 1 {
			return false
		}
		if cuts == 0 {
			t.cut.Add(1)
		}
		call.Items[i].Amount = most
		return true
	}
	return false
}

// draws reports whether an item draws on a quota: it names the quota, or a pool that has it as a member.
func (t *Transport) draws(ctx context.Context, named, quota string) bool {
	if named == quota {
		return true
	}
	pool, err := t.client.Quota(ctx, named)
	return err == nil && slices.ContainsFunc(pool.Members, func(m PoolMember) bool { return m.Quota == quota })
}

// quotaMemory caches the default estimates of quotas.
type quotaMemory struct {
	mu    sync.Mutex
	known map[string]quotaFact
}

type quotaFact struct {
	estimate int64
	until    time.Time
}

const (
	// factLife is how long a default estimate is cached, maxFacts how many are; factWait bounds how long a call waits for one.
	factLife = 10 * time.Minute
	maxFacts = 1_000
	factWait = time.Second
)

// estimate returns a quota's default estimate; 0 if it has none or it could not be read.
func (m *quotaMemory) estimate(ctx context.Context, c *Client, name string) int64 {
	m.mu.Lock()
	fact, ok := m.known[name]
	m.mu.Unlock()
	if ok && time.Now().Before(fact.until) {
		return fact.estimate
	}
	ctx, cancel := context.WithTimeout(ctx, factWait)
	defer cancel()
	quota, err := c.Quota(ctx, name)
	if err != nil {
		return 0
	}
	// A quota without a default estimate reports 1.
	if fact = (quotaFact{quota.DefaultEstimate, time.Now().Add(factLife)}); fact.estimate <= 1 {
		fact.estimate = 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) >= maxFacts || m.known == nil {
		m.known = map[string]quotaFact{}
	}
	m.known[name] = fact
	return fact.estimate
}
