package signals

import (
	"net/http"
	"regexp"
	"strings"
)

// OpenAI is the dialect of OpenAI's API and of APIs that copy its headers.
var OpenAI = Dialect{name: "openai", observe: observeOpenAI}

// openaiFamilies are the limits in the headers, in the order of the signals.
var openaiFamilies = [...]string{"requests", "tokens", "project-tokens"}

func observeOpenAI(r *response) []Signal {
	var out []Signal
	for _, family := range openaiFamilies {
		if s, ok := openaiCounts(r, family); ok {
			out = append(out, s)
		}
	}
	if verdict := openaiVerdict(r); verdict.Class != 0 {
		out = append(out, verdict)
	}
	return out
}

// openaiCounts reads one family of headers. A reset here is the time until the limit is full again, not a wait.
func openaiCounts(r *response, family string) (Signal, bool) {
	s := Signal{
		Class:     OK,
		Scope:     ScopeResource,
		Resource:  family,
		Limit:     r.count("X-Ratelimit-Limit-" + family),
		Remaining: r.count("X-Ratelimit-Remaining-" + family),
		RefillIn:  r.longest("X-Ratelimit-Reset-"+family, lengths(goDuration)),
		Rule:      "openai/counts",
	}
	if s.Limit.N == 0 {
		// A limit of 0 or -1 means unknown; then the family's other numbers are no better.
		if s.Limit.Known || strings.TrimSpace(r.header.Get("X-Ratelimit-Limit-"+family)) == "-1" {
			return Signal{}, false
		}
	}
	s.Exact = s.Remaining.Known
	return s, s.Limit.Known || s.Remaining.Known || s.RefillIn.Known
}

// openaiError is the error object of a body or of a stream's event.
type openaiError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	// Code is a string, but null and numbers occur.
	Code any `json:"code"`
}

func (e openaiError) code() string {
	code, _ := e.Code.(string)
	return code
}

func openaiVerdict(r *response) Signal {
	asked := r.retryAfter()
	said, found := openaiSaid(r)
	if r.status < 400 && !found {
		return Signal{}
	}
	s := Signal{NoRetry: r.noRetry()}
	switch code := said.code(); {
	case said.Type == "insufficient_quota" || code == "insufficient_quota":
		s.Class, s.Scope, s.NoRetry, s.Rule = Billing, openaiBillingScope(code), true, "openai/insufficient_quota"
		return s
	case code == "slow_down":
		s.Class, s.Scope, s.Rule = Throttled, ScopeOrg, "openai/slow_down"
		return asked.on(s)
	case code == "server_is_overloaded" || said.Type == "service_unavailable_error" || r.status == http.StatusServiceUnavailable:
		s.Class, s.Scope, s.Rule = Overloaded, ScopeProvider, "openai/overloaded"
		return asked.on(s)
	case code == "rate_limit_exceeded" || r.status == http.StatusTooManyRequests:
		return openaiThrottled(s, asked, said)
	}
	s.Class, s.Rule = NotALimit, "openai/error"
	return s
}

// openaiSaid finds the error object: a whole error body, or the event of a stream that failed after its status was
// sent.
func openaiSaid(r *response) (openaiError, bool) {
	var whole struct {
		Error *openaiError `json:"error"`
	}
	if readJSON(r.body, &whole) && whole.Error != nil {
		return *whole.Error, r.status >= 400
	}
	for data := range events(r.body) {
		var event struct {
			Type     string `json:"type"`
			Response struct {
				Error *openaiError `json:"error"`
			} `json:"response"`
		}
		if readJSON(data, &event) && event.Type == "response.failed" && event.Response.Error != nil {
			return *event.Response.Error, true
		}
	}
	return openaiError{}, false
}

var (
	// OpenAI says "on tokens per min", Azure "exceeded token rate limit" and "exceeded call rate limit".
	openaiFamilyPattern = regexp.MustCompile(`\bon (requests|tokens)(?:_usage_based)? per |\bexceeded (token|call) rate limit`)
	openaiLimitPattern  = regexp.MustCompile(`\bLimit:? ([0-9,]+)\b`)
	openaiUsedPattern   = regexp.MustCompile(`\bUsed:? ([0-9,]+)\b`)
	openaiAskedPattern  = regexp.MustCompile(`\bRequested:? ([0-9,]+)\b`)
)

// openaiThrottled reads the numbers of the message, the only place that states the size of the refused call.
func openaiThrottled(s Signal, asked wait, said openaiError) Signal {
	s.Class, s.Rule = Throttled, "openai/rate_limit"
	if found := openaiFamilyPattern.FindStringSubmatch(said.Message); found != nil {
		s.Resource, s.Scope = map[string]string{"": found[1], "token": "tokens", "call": "requests"}[found[2]], ScopeResource
	} else if family, _, _ := strings.Cut(said.Type, "_usage_based"); family == "tokens" || family == "requests" {
		s.Resource, s.Scope = family, ScopeResource
	}
	s.Limit = messageCount(openaiLimitPattern, said.Message)
	s.Used = messageCount(openaiUsedPattern, said.Message)
	s.Requested = messageCount(openaiAskedPattern, said.Message)
	return asked.or(messageWait(said.Message)).on(s)
}

func messageCount(pattern *regexp.Regexp, message string) Count {
	found := pattern.FindStringSubmatch(message)
	if found == nil {
		return Count{}
	}
	n, ok := parseCount(strings.TrimSuffix(found[1], ","))
	return Count{N: n, Known: ok}
}

func openaiBillingScope(code string) Scope {
	if strings.HasPrefix(code, "project_") {
		return ScopeProject
	}
	return ScopeOrg
}
