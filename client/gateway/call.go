package gateway

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/genai"
	"github.com/quotad/quotad/client/gateway/identity"
	"github.com/quotad/quotad/client/gateway/keys"
	"github.com/quotad/quotad/client/usage"
)

// draw is one quota that a call draws on.
type draw struct {
	quota catalog.Quota
	// part is what the quota counts: requests, tokens, or the name of one of GitHub's limits.
	part string
	// amount is the requested amount; 0: the quota's default estimate.
	amount int64
	// cut: the estimate was above what can ever be granted.
	cut bool
}

// call is one request in the gateway.
type call struct {
	gateway *Gateway
	state   *state
	route
	id     string
	began  time.Time
	caller identity.Caller
	op     dialect.Operation
	query  string
	header http.Header
	// scheme and clientHost are how the client addresses this gateway.
	scheme, clientHost string
	// model is the name that the caller sent, target the model's quotas.
	model  string
	target catalog.Target
	body   *body
	// streamed is the beginning of a body that is not in memory.
	streamed []byte
	// ask describes a call to a model, amounts is its estimated use; nil: it is no call to a model.
	ask     *estimate.Request
	amounts estimate.Amounts
	// prefixOfQuotas begins its quotas' names.
	prefixOfQuotas string
	// insteadOf is the requested model, if another one answers; empty: the requested one does.
	insteadOf string
	// keys are the keys that it may use; none: the caller's own credential passes. key is the one chosen before the cluster is asked;
	// nil: use that of the granted pool member.
	keys []*keys.Key
	key  *keys.Key
	// incoming is the body as it arrives over HTTP/1; nil: it has none, or comes over HTTP/2.
	incoming *patientBody
	// injected: the gateway added a request for usage that the client did not make.
	injected bool
	draws    []draw
	// ungoverned is why the cluster is not asked: path, observe or fail_open; empty: the call is governed.
	ungoverned string
	// spent are the amounts of a call that passes while the cluster is away; outage is the number of that outage.
	spent  map[spentKey]int64
	outage int
	// until is when to stop waiting.
	until time.Time
	// release releases the body's share of the memory for bodies; nil: it has none.
	release func()
	// open counts its drained answers; negative: its handler has returned, and none is left.
	open atomic.Int32

	// span records a call of a model; nil: nothing is recorded.
	span *genai.Span

	mu      sync.Mutex
	outcome outcome
}

// outcome is the result of a call, for the log and the metrics.
type outcome struct {
	code   int
	waited time.Duration
	first  time.Duration
	// chunk is the time from sending the call until the first chunk of its stream; 0: the answer was no stream.
	chunk time.Duration
	// received is when the whole request had arrived, body included. outside is the time since then in which the provider, or one of
	// its limits, held the call. overhead is the rest of the time until the status line, without the wait; 0: there was no answer.
	received time.Time
	outside  time.Duration
	overhead time.Duration
	retries  int
	end      string
	refusal  string
	said     usage.Said
	// key is the name of the key of the last attempt.
	key string
	// cost is in micro-dollars.
	cost int64
	// batch is the holder of the batch that served it; empty: it asked the cluster itself.
	batch string
}

func (c *call) record(change func(*outcome)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.outcome)
}

// waitBound returns the longest total wait of a call: its class's, or the requested one, and at most its client's patience.
func (s *state) waitBound(header http.Header, class config.Class) time.Duration {
	bound := s.config.Wait[cmp.Or(class, config.Standard)]
	if text := header.Get(identity.WaitHeader); text != "" {
		if asked, ok := parseWait(text); ok {
			bound = asked
		}
	}
	if most := identity.Patience(header); most > 0 {
		bound = min(bound, most)
	}
	return min(bound, client.MaxWait)
}

// parseWait parses 30s, 5m or plain seconds.
func parseWait(text string) (time.Duration, bool) {
	if seconds, err := strconv.ParseUint(text, 10, 20); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}

// prepare determines what a call draws on. It returns a refusal if the call must not be sent.
func (c *call) prepare(r *http.Request) (dialect.Refusal, bool) {
	if refusal, refused := c.findKeys(); refused {
		return refusal, true
	}
	switch c.upstream.dialect {
	case dialect.GitHub:
		c.githubDraws(r)
	case dialect.Generic:
		c.ruleDraws(r)
	case dialect.Anthropic, dialect.Azure, dialect.Bedrock, dialect.Codex, dialect.Gemini, dialect.OpenAI:
		if refusal, refused := c.modelDraws(r.Context()); refused {
			return refusal, true
		}
	}
	if err := c.checkPools(); err != nil {
		refusal, _ := c.refusalOf(err)
		return refusal, true
	}
	if c.key == nil && !c.onPool() {
		c.aim(false)
	}
	if len(c.draws) == 0 && c.ungoverned == "" {
		if c.upstream.config.Paths == "refuse" {
			return dialect.Refusal{Status: http.StatusForbidden, Reason: "PATHS_CLOSED", Message: "quotad: the upstream " + c.upstream.name +
				" accepts only calls with quotas (paths: refuse), not " + r.Method + " " + identity.Quote(c.path)}, true
		}
		c.ungoverned = "path"
	}
	return dialect.Refusal{}, false
}

// existing adds a draw on a quota, if the cluster has it.
func (c *call) existing(name, part string, amount int64) bool {
	q, ok := c.gateway.catalog.Get(name)
	if ok {
		c.add(q, part, amount)
	}
	return ok
}

func (c *call) add(q catalog.Quota, part string, amount int64) {
	d := draw{quota: q, part: part, amount: amount}
	if most := c.gateway.catalog.Most(q.Name, c.caller.Class); most > 0 && amount > most {
		d.amount, d.cut = most, true
	}
	c.draws = append(c.draws, d)
}

// required adds a draw on a quota that has to exist: if the list lacks it, the cluster's refusal reports that.
func (c *call) required(name, part string, amount int64) {
	if !c.existing(name, part, amount) {
		c.draws = append(c.draws, draw{quota: catalog.Quota{Name: name}, part: part, amount: amount})
	}
}

func (c *call) githubDraws(r *http.Request) {
	draws := dialect.GitHubDraws(r.Method, estimate.CanonicalPath(c.path), c.query, c.body.bytes(), c.upstream.config.Secondary)
	c.aim(slices.ContainsFunc(draws, func(d dialect.Draw) bool { return c.isPool(c.upstream.config.Quotas + "/" + d.Name) }))
	for _, d := range draws {
		c.required(c.prefixOfQuotas+"/"+d.Name, d.Name, d.Amount)
	}
}

func (c *call) ruleDraws(r *http.Request) {
	plain, err := url.PathUnescape(c.path)
	if err != nil {
		plain = c.path
	}
	for _, rule := range c.upstream.config.Rules {
		if rule.Method != "" && rule.Method != r.Method || !config.Match(rule.Path, c.path) && !config.Match(rule.Path, plain) {
			continue
		}
		c.aim(slices.ContainsFunc(slices.Collect(maps.Keys(rule.Use)), c.isPool))
		for name, amount := range rule.Use {
			c.required(name, config.PartOf(name), amount)
		}
		return
	}
}

// maxModel bounds the length of a model's name, in bytes. It is far above real names, and bounds the work of finding the model's
// quotas.
const maxModel = 256

// modelDraws adds the draws of a call to a model.
func (c *call) modelDraws(ctx context.Context) (dialect.Refusal, bool) {
	if !c.op.Generates() {
		return dialect.Refusal{}, false
	}
	if n := len(c.model); n > maxModel {
		c.model = "" // neither parsed nor shown
		return dialect.Refusal{
			Status: http.StatusBadRequest, Final: true,
			Message: fmt.Sprintf("quotad: the model's name has %d bytes; at most %d are allowed", n, maxModel),
		}, true
	}
	if refusal, refused := c.listKnown(ctx); refused || c.ungoverned != "" {
		return refusal, refused
	}
	c.target = c.aimAt(c.model)
	if !c.target.Has() {
		return c.unknownModel()
	}
	c.estimate()
	if refusal, refused := c.addDraws(); refused {
		return refusal, true
	}
	if c.asksUsage() {
		c.injectUsage()
	}
	return dialect.Refusal{}, false
}

// addDraws adds the draws of a call whose quotas and amounts are known.
func (c *call) addDraws() (dialect.Refusal, bool) {
	conf := c.upstream.config
	refusal, refused, free := c.unpriced()
	if refused {
		return refusal, true
	}
	for _, part := range conf.Parts {
		if _, ok := c.target.Parts[part]; !ok {
			return dialect.Refusal{Status: http.StatusForbidden, Reason: "MISSING_PART", Message: "quotad: the model " +
				identity.Quote(c.model) + " has no quota " +
				c.prefixOfQuotas + "/" + c.target.Model + "/" + part + ", which parts of gateway.yaml requires"}, true
		}
	}
	for _, part := range config.Parts {
		if q, ok := c.target.Parts[part]; ok && (!free || part != partCost) {
			c.add(q, part, c.amountOf(part))
		}
	}
	for _, also := range conf.Also {
		if also.Holder != "" && !config.Match(also.Holder, c.caller.Holder) {
			continue
		}
		for name, part := range also.Use {
			if free && part == partCost {
				continue
			}
			c.required(name, part, c.amountOf(part))
		}
	}
	if free {
		c.gateway.metrics.free.WithLabelValues(c.upstream.name, "unpriced").Inc()
	}
	if free && len(c.draws) == 0 {
		c.ungoverned = "unpriced"
	}
	return dialect.Refusal{}, false
}

// unknownModel refuses a model without a quota, or lets it pass uncounted if the configuration says so.
func (c *call) unknownModel() (dialect.Refusal, bool) {
	conf := c.upstream.config
	if conf.Unknown == "observe" {
		c.ungoverned = "observe"
		if c.existing(c.prefixOfQuotas+"/unmapped/requests", "requests", 1) {
			c.ungoverned = ""
		}
		return dialect.Refusal{}, false
	}
	c.gateway.refreshCatalog()
	named := "model " + identity.Quote(c.model)
	if c.model == "" {
		named = "a call without a model"
	}
	return dialect.Refusal{
		Status: http.StatusForbidden, Reason: "UNKNOWN_MODEL", Final: true,
		Message: "quotad has no quota for " + named + " of upstream " + strconv.Quote(c.upstream.name) + ". " + c.adviseModel() +
			"; or map it in gateway.yaml (models:), or set unknown: observe.",
	}, true
}

// items returns the items of the Reserve.
func (c *call) items() []client.Item {
	out := make([]client.Item, len(c.draws))
	for i, d := range c.draws {
		out[i] = client.Item{Quota: d.quota.Name, Amount: d.amount}
	}
	return out
}

// drawOf returns the draw on a quota, or on a pool with that quota as a member.
func (c *call) drawOf(quota string) (draw, bool) {
	for _, d := range c.draws {
		if d.quota.Name == quota {
			return d, true
		}
		if slices.ContainsFunc(d.quota.Members, func(m catalog.Member) bool { return m.Quota == quota }) {
			d.quota, _ = c.gateway.catalog.Get(quota)
			return d, true
		}
	}
	return draw{}, false
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}
