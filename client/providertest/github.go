package providertest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// githubKey is GitHub's state for one key.
type githubKey struct {
	windows     map[string]*fixedWindow
	points      map[bool]*slidingLog // by whether the request is GraphQL
	content     *slidingLog
	contentHour *slidingLog
	serving     int64
	// penaltyEnds is until when an exceeded secondary limit stays in force.
	penaltyEnds time.Time
}

func (p *Provider) githubLocked(key string) *githubKey {
	if k := p.github[key]; k != nil {
		return k
	}
	hour, minute, limits := p.cfg.scaled(time.Hour), p.cfg.scaled(time.Minute), p.cfg.GitHub
	k := &githubKey{
		windows: map[string]*fixedWindow{
			"core":        {limit: limits.Core, length: hour},
			"graphql":     {limit: limits.GraphQL, length: hour},
			"search":      {limit: limits.Search, length: minute},
			"code_search": {limit: limits.CodeSearch, length: minute},
		},
		points: map[bool]*slidingLog{
			false: {limit: limits.Points, period: minute},
			true:  {limit: limits.GraphQLPoints, period: minute},
		},
		content:     &slidingLog{limit: limits.Content, period: minute},
		contentHour: &slidingLog{limit: limits.ContentHour, period: hour},
	}
	p.github[key] = k
	return k
}

func (k *githubKey) show(now time.Time, t *Totals) {
	if k == nil {
		return
	}
	core := k.windows["core"]
	if now.Round(0).Before(core.ends) {
		t.Used, t.ResetIn = core.used, core.ends.Sub(now.Round(0))
	}
	t.Limit = core.limit
}

// githubCall is how one request counts at GitHub.
type githubCall struct {
	resource string
	points   int64
	content  bool
	graphql  bool
}

func classifyGitHub(r *http.Request, body []byte) githubCall {
	c := githubCall{resource: "core", points: 1}
	switch {
	case r.URL.Path == "/graphql":
		c.resource, c.graphql = "graphql", true
		var query struct {
			Query string `json:"query"`
		}
		if json.Unmarshal(body, &query) == nil && strings.HasPrefix(strings.TrimSpace(query.Query), "mutation") {
			c.points = 5
		}
		return c
	case r.URL.Path == "/search/code":
		c.resource = "code_search"
	case strings.HasPrefix(r.URL.Path, "/search/"):
		c.resource = "search"
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		c.points = 5
		c.content = r.Method == http.MethodPost
	}
	return c
}

func (x *exchange) serveGitHub() {
	if x.r.URL.Path == "/rate_limit" {
		x.rateLimit()
		return
	}
	call := classifyGitHub(x.r, x.body)
	p := x.p
	p.mu.Lock()
	now := p.cfg.Now()
	key := p.githubLocked(x.key)
	window := key.windows[call.resource]
	window.roll(now)
	verdict, wait := key.judge(now, call, p.cfg)
	status := http.StatusOK
	switch verdict {
	case Admitted:
		key.serving++
	case LimitPrimary:
		if status = p.cfg.GitHub.Status; call.graphql {
			status = http.StatusOK
		}
	default:
		status = p.cfg.GitHub.SecondaryStatus
	}
	x.recordLocked(now, call.resource, call.points, status, verdict, window.ends)
	x.githubHeaders(call.resource, window)
	latency := p.latencyLocked(p.cfg.GitHub.Latency)
	p.mu.Unlock()

	switch verdict {
	case Admitted:
		x.hold(latency)
		p.mu.Lock()
		key.serving--
		p.mu.Unlock()
		x.githubAnswer(call)
	case LimitPrimary:
		x.githubPrimary(call, status)
	default:
		x.githubSecondary(status, wait)
	}
}

// judge charges the call to every limit, or returns the limit that refuses it and, for a secondary one, how long it stays in force. A
// refused call is charged nothing.
func (k *githubKey) judge(now time.Time, call githubCall, cfg Config) (Verdict, time.Duration) {
	if left := k.penaltyEnds.Sub(now); left > 0 {
		return LimitPenalty, left
	}
	window := k.windows[call.resource]
	if window.limit >= 0 && window.remaining() < 1 {
		return LimitPrimary, 0
	}
	verdict := Admitted
	full := func(l *slidingLog, n int64) bool { return l.limit >= 0 && l.used(now)+n > l.limit }
	switch {
	case cfg.GitHub.Concurrent >= 0 && k.serving >= cfg.GitHub.Concurrent:
		verdict = LimitConcurrent
	case full(k.points[call.graphql], call.points):
		verdict = LimitPoints
	case call.content && (full(k.content, 1) || full(k.contentHour, 1)):
		verdict = LimitContent
	}
	if verdict != Admitted {
		penalty := cfg.scaled(time.Minute)
		k.penaltyEnds = now.Add(penalty)
		return verdict, penalty
	}
	window.used++
	k.points[call.graphql].take(now, call.points)
	if call.content {
		k.content.take(now, 1)
		k.contentHour.take(now, 1)
	}
	return Admitted, 0
}

func (x *exchange) githubHeaders(resource string, w *fixedWindow) {
	h := x.w.Header()
	limit, remaining := w.limit, w.remaining()
	if limit < 0 {
		limit, remaining = 1<<31, 1<<31-w.used
	}
	h.Set("X-Ratelimit-Limit", strconv.FormatInt(limit, 10))
	h.Set("X-Ratelimit-Remaining", strconv.FormatInt(remaining, 10))
	h.Set("X-Ratelimit-Used", strconv.FormatInt(w.used, 10))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(w.ends.Unix(), 10))
	h.Set("X-Ratelimit-Resource", resource)
	h.Set("Content-Type", "application/json; charset=utf-8")
}

func (x *exchange) githubAnswer(call githubCall) {
	switch {
	case call.graphql:
		x.answer(http.StatusOK, `{"data":{"viewer":{"login":"octocat"}}}`)
	case call.content:
		x.answer(http.StatusCreated, `{"id":1,"body":`+string(jsonOrNull(x.body))+`}`)
	default:
		x.answer(http.StatusOK, `{"id":1,"full_name":"quotad/demo","path":`+strconv.Quote(x.r.URL.Path)+`}`)
	}
}

// jsonOrNull returns the body if it is JSON, else null.
func jsonOrNull(body []byte) []byte {
	if json.Valid(body) {
		return bytes.TrimSpace(body)
	}
	return []byte("null")
}

func (x *exchange) githubPrimary(call githubCall, status int) {
	if call.graphql {
		x.answer(status, `{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded for user ID 1."}]}`)
		return
	}
	x.answer(status,
		`{"message":"API rate limit exceeded for user ID 1. If you reach out to GitHub Support for help, please include the request ID and `+
			`timestamp.",`+
			`"documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api","status":"`+strconv.Itoa(status)+`"}`)
}

func (x *exchange) githubSecondary(status int, wait time.Duration) {
	if !x.p.cfg.GitHub.OmitRetryAfter {
		x.w.Header().Set("Retry-After", wholeSeconds(wait))
	}
	x.answer(status, `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",`+
		`"documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits",`+
		`"status":"`+strconv.Itoa(status)+`"}`)
}

// rateLimit serves GET /rate_limit, which is free.
func (x *exchange) rateLimit() {
	type shown struct {
		Limit     int64  `json:"limit"`
		Used      int64  `json:"used"`
		Remaining int64  `json:"remaining"`
		Reset     int64  `json:"reset"`
		Resource  string `json:"resource"`
	}
	p := x.p
	resources := make(map[string]shown)
	p.mu.Lock()
	now := p.cfg.Now()
	for name, w := range p.githubLocked(x.key).windows {
		s := shown{Limit: w.limit, Used: w.used, Remaining: w.remaining(), Reset: w.ends.Unix(), Resource: name}
		if !now.Round(0).Before(w.ends) {
			s.Used, s.Remaining, s.Reset = 0, w.limit, now.Truncate(time.Second).Add(w.length).Unix()
		}
		resources[name] = s
	}
	p.mu.Unlock()
	body, err := json.Marshal(map[string]any{"resources": resources, "rate": resources["core"]})
	if err != nil {
		x.answer(http.StatusInternalServerError, `{"message":"Server Error"}`)
		return
	}
	x.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	x.answer(http.StatusOK, string(body))
}
