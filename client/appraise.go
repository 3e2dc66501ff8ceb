package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// call returns the quotas that a request draws on, and the request to send: if possible, with a body that can be read
// again.
func (t *Transport) call(request *http.Request) (*http.Request, Call, error) {
	s := &t.settings
	if s.match == nil && len(s.providers) == 0 {
		closeBody(request)
		return nil, Call{}, errNothingGoverned
	}
	provider := s.providerOf(request)
	if provider == nil && s.match == nil {
		t.warnUngoverned(request)
		return request, Call{}, nil
	}
	request, err := t.repeatable(request)
	if err != nil {
		return nil, Call{}, err
	}
	var call Call
	if s.match != nil {
		call = s.match(request)
	}
	if provider != nil && len(call.Items) == 0 {
		call = provider.call(request)
	}
	if len(call.Items) == 0 {
		return request, call, nil
	}
	call.Items = slices.Clone(call.Items) // these may be the matcher's own
	call.Dialect = s.dialectOf(call, provider)
	t.appraise(request.Context(), &call)
	if s.adjust != nil {
		s.adjust(request, &call)
	}
	return request, call, nil
}

// errNothingGoverned reports a Transport without providers and without a matcher.
var errNothingGoverned = errors.New(
	"quotad: the transport has no provider: pass one such as client.OpenAI() to NewTransport, or use client.Match")

// providerOf returns the provider whose host a request goes to; nil for other hosts.
func (s *transportSettings) providerOf(request *http.Request) *upstream {
	for _, p := range s.providers {
		if p.takes(request) {
			return p
		}
	}
	return nil
}

// dialectOf returns the dialect for reading the answer to a call.
func (s *transportSettings) dialectOf(call Call, p *upstream) signals.Dialect {
	switch {
	case s.dialect.Name() != "":
		return s.dialect
	case call.Dialect.Name() != "":
		return call.Dialect
	case p != nil:
		return p.dialect
	}
	return signals.Auto
}

// warnUngoverned warns once about requests that pass without a quota, if none was governed so far: the hosts are
// probably wrong.
func (t *Transport) warnUngoverned(request *http.Request) {
	if t.calls.Load() > 0 {
		return
	}
	t.warned.Do(func() {
		var hosts []string
		for _, p := range t.settings.providers {
			hosts = append(hosts, p.hosts...)
		}
		t.client.logger.Warn("a request was sent without a quota: its host belongs to no provider of the transport (see client.Hosts)",
			"host", request.URL.Host, "hosts", hosts)
	})
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}

// repeatable returns the request with GetBody set. It reads the body for that, unless the body is too long.
func (t *Transport) repeatable(request *http.Request) (*http.Request, error) {
	most := t.settings.maxBody
	if request.Body == nil || request.Body == http.NoBody || request.GetBody != nil || request.ContentLength > most || most == 0 {
		return request, nil
	}
	start, err := io.ReadAll(io.LimitReader(request.Body, most+1))
	if err != nil {
		closeBody(request)
		return nil, fmt.Errorf("quotad: read the request's body: %w", err)
	}
	copied := request.Clone(request.Context())
	if int64(len(start)) > most {
		copied.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(start), request.Body), request.Body}
		return copied, nil
	}
	closeBody(request)
	if len(start) == 0 {
		copied.Body = http.NoBody
		return copied, nil
	}
	copied.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(start)), nil }
	copied.Body, _ = copied.GetBody()
	if request.ContentLength <= 0 {
		// The length is known now, and some providers refuse a body without one.
		copied.ContentLength, copied.TransferEncoding = int64(len(start)), nil
	}
	return copied, nil
}

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

// refusedWith learns from the body of a refused call.
func (g *governed) refusedWith(body []byte) {
	g.unused = true
	if g.call.Request == nil {
		return
	}
	if requested, said := estimate.Requested(body); said {
		g.transport.settings.learner.LearnRequested(g.transport.key(&g.call), g.call.Request, requested)
	}
}

// brokeOff reports a limit that cut an answer off in its middle. The status was a success, so only the error in the body shows it.
func (g *governed) brokeOff(said usage.Said) {
	if said.Failure == nil || g.unused {
		return
	}
	status := http.StatusTooManyRequests
	if strings.Contains(said.Failure.Type, "overloaded") {
		status = statusOverloaded
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

// statusOverloaded is Anthropic's status for an overloaded provider.
const statusOverloaded = 529

// measured adds to used, by quota, the use that a model's answer states, and learns from it. An answer that was not read to its end may
// have used more than it stated, so nothing returns.
func (g *governed) measured(said usage.Said, whole bool, used map[string]int64) {
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
