package signals

import (
	"net/http"
	"regexp"
	"strings"
	"time"
)

// Gemini is the dialect of Google's Gemini API. It has no headers of limits; its errors carry details of the google.rpc
// types.
var Gemini = Dialect{name: "gemini", observe: observeGemini}

// geminiPatience is the longest wait after a rate was exceeded: a limit per minute recovers within it.
const geminiPatience = 5 * time.Minute

// geminiPacific is the time zone in which the days of Gemini's limits end, by its documentation:
// ai.google.dev/gemini-api/docs/rate-limits.
const geminiPacific = "America/Los_Angeles"

func observeGemini(r *response) []Signal {
	if r.status < 400 {
		return nil
	}
	said, _ := geminiSaid(r.body)
	s := Signal{NoRetry: r.noRetry()}
	asked := r.retryAfter().or(said.retryDelay()).or(messageWait(said.Message))
	reason := said.reason()
	switch {
	case strings.HasPrefix(reason, "MODEL_CAPACITY_"):
		s.Class, s.Scope, s.Rule = Overloaded, ScopeModel, "gemini/capacity"
	case r.status == http.StatusServiceUnavailable || said.Status == "UNAVAILABLE":
		s.Class, s.Scope, s.Rule = Overloaded, ScopeProvider, "gemini/unavailable"
	case r.status == http.StatusTooManyRequests || r.status == 499 || said.Status == "RESOURCE_EXHAUSTED":
		return []Signal{geminiLimited(r, s, said, reason, asked)}
	default:
		return []Signal{{Class: NotALimit, NoRetry: s.NoRetry, Rule: "gemini/error"}}
	}
	return []Signal{asked.on(s)}
}

// geminiNone matches a limit of 0: the tier has nothing of it, and no wait changes that.
var geminiNone = regexp.MustCompile(`\blimit: 0\b`)

// geminiLimited distinguishes the kinds of refusals.
func geminiLimited(r *response, s Signal, said rpcError, reason string, asked wait) Signal {
	s.Class, s.Scope, s.Rule = Throttled, ScopeModel, "gemini/rate_limit"
	daily := false
	for _, detail := range said.Details {
		for _, violation := range detail.Violations {
			perDay := strings.Contains(violation.QuotaID, "PerDay") || strings.Contains(violation.QuotaID, "Daily")
			if daily && !perDay {
				continue // the longer limit is the one to wait for
			}
			daily = daily || perDay
			s.Resource, s.Window = geminiResource(violation.QuotaID)
			if n, ok := parseCount(violation.QuotaValue); ok {
				s.Limit = Count{N: n, Known: true}
			}
		}
	}
	switch {
	case reason == "INSUFFICIENT_G1_CREDITS_BALANCE":
		s.Class, s.NoRetry, s.Rule = Billing, true, "gemini/credits"
	case geminiNone.MatchString(said.Message) || (s.Limit.Known && s.Limit.N == 0):
		s.Class, s.NoRetry, s.Rule = Billing, true, "gemini/no_quota"
	case daily:
		s.Class, s.NoRetry, s.Rule = Exhausted, true, "gemini/day"
		if pacific, err := time.LoadLocation(geminiPacific); err == nil {
			r.moments = true
			today := r.now.In(pacific)
			midnight := time.Date(today.Year(), today.Month(), today.Day()+1, 0, 0, 0, 0, pacific)
			if s.ResetIn = r.left(midnight); s.ResetIn.Known {
				s.ResetResolution = time.Second
				asked = asked.or(waitFor(s.ResetIn.D))
			}
		}
	case reason == "QUOTA_EXHAUSTED" || asked.d > geminiPatience:
		s.Class, s.NoRetry, s.Rule = Exhausted, true, "gemini/exhausted"
	case s.Window.Known:
		// A sliding limit needs no longer wait than its period.
		asked = asked.or(waitFor(s.Window.D))
	}
	return asked.on(s)
}

// geminiResource returns the presets' name of the limit in a quota's id, and its period.
func geminiResource(id string) (resource string, window Span) {
	switch {
	case strings.Contains(id, "Token"):
		resource = "tokens"
	case strings.Contains(id, "Request"):
		resource = "requests"
	}
	switch {
	case strings.Contains(id, "PerDay") || strings.Contains(id, "Daily"):
		window = Span{D: 24 * time.Hour, Known: true}
		if resource != "" {
			resource += "-per-day"
		}
	case strings.Contains(id, "PerMinute"):
		window = Span{D: time.Minute, Known: true}
	}
	return resource, window
}

// geminiSaid reads an error body: an object, or the list of a stream.
func geminiSaid(body []byte) (rpcError, bool) {
	var one struct {
		Error *rpcError `json:"error"`
	}
	if readJSON(body, &one) && one.Error != nil {
		return *one.Error, true
	}
	var list []struct {
		Error *rpcError `json:"error"`
	}
	if readJSON(body, &list) {
		for _, element := range list {
			if element.Error != nil {
				return *element.Error, true
			}
		}
	}
	return rpcError{}, false
}
