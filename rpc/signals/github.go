package signals

import (
	"net/http"
	"strings"
	"time"
)

// GitHub is the dialect of GitHub's REST and GraphQL APIs.
var GitHub = Dialect{name: "github", observe: observeGitHub, needsBody: githubNeedsBody}

const (
	// githubSecondaryWait is GitHub's advice for a secondary limit without a Retry-After: at least a minute.
	githubSecondaryWait = time.Minute
	// githubResetMargin is added to a reset, which is given in whole seconds.
	githubResetMargin = time.Second
)

func observeGitHub(r *response) []Signal {
	if r.status == http.StatusUnauthorized {
		// The counts of an unauthorized call are those of its address, not of the caller's key.
		return []Signal{{Class: NotALimit, Rule: "github/unauthorized"}}
	}
	counts, said := githubCounts(r)
	verdict, merged := githubVerdict(r, counts)
	switch {
	case verdict.Class == 0 && said:
		return []Signal{counts}
	case verdict.Class == 0:
		return nil
	case merged || !said:
		return []Signal{verdict}
	}
	return []Signal{counts, verdict}
}

// githubCounts reads the primary limit's headers.
func githubCounts(r *response) (s Signal, said bool) {
	s = Signal{
		Class:     OK,
		Scope:     ScopeResource,
		Resource:  githubResource(r.header.Get("X-Ratelimit-Resource")),
		Limit:     r.count("X-Ratelimit-Limit"),
		Remaining: r.count("X-Ratelimit-Remaining"),
		Used:      r.count("X-Ratelimit-Used"),
		ResetIn:   r.longest("X-Ratelimit-Reset", r.sinceEpoch),
		Rule:      "github/counts",
	}
	if s.ResetIn.Known {
		s.ResetResolution = time.Second
	}
	if s.ResetIn.Known && s.ResetIn.D == 0 {
		// The window has ended: what it had left says nothing about the next one.
		s.Remaining, s.Used = Count{}, Count{}
	}
	s.Exact = s.Remaining.Known
	return s, s.Limit.Known || s.Remaining.Known || s.Used.Known || s.ResetIn.Known
}

// githubResource returns a name that can be that of one of GitHub's buckets, and "" for others.
func githubResource(name string) string {
	name = strings.TrimSpace(name)
	if len(name) > 64 {
		return ""
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && c != '_' {
			return ""
		}
	}
	return name
}

// githubVerdict returns why a call was refused. merged: the verdict has the counts as well.
func githubVerdict(r *response, counts Signal) (verdict Signal, merged bool) {
	asked := r.retryAfter()
	switch {
	case r.status == http.StatusForbidden || r.status == http.StatusTooManyRequests:
		if remaining := r.count("X-Ratelimit-Remaining"); remaining.Known && remaining.N == 0 {
			return githubExhausted(counts, asked, "github/primary"), true
		}
		if asked.said || githubSecondary(r.body) || r.status == http.StatusTooManyRequests {
			return asked.or(waitFor(githubSecondaryWait)).on(Signal{
				Class: Throttled, Scope: ScopeKey, NoRetry: r.noRetry(), Rule: "github/secondary",
			}), false
		}
		return Signal{Class: NotALimit, Rule: "github/forbidden"}, false
	case r.status == http.StatusOK && githubGraphQLLimited(r.body):
		if counts.Resource == "" {
			counts.Resource = "graphql"
		}
		return githubExhausted(counts, asked, "github/graphql"), true
	case r.status == http.StatusServiceUnavailable:
		return asked.on(Signal{Class: Overloaded, Scope: ScopeProvider, NoRetry: r.noRetry(), Rule: "github/unavailable"}), false
	case r.status >= 400:
		return Signal{Class: NotALimit, NoRetry: r.noRetry(), Rule: "github/error"}, false
	}
	return Signal{}, false
}

// githubExhausted converts the counts to the verdict that they are used up.
func githubExhausted(counts Signal, asked wait, rule string) Signal {
	counts.Class, counts.Rule = Exhausted, rule
	if !asked.known && counts.ResetIn.Known {
		asked = waitFor(counts.ResetIn.D + githubResetMargin)
	}
	return asked.on(counts)
}

// githubSecondary reports whether an error body is about a secondary limit.
func githubSecondary(body []byte) bool {
	var said struct {
		Message          string `json:"message"`
		DocumentationURL string `json:"documentation_url"`
	}
	if !readJSON(body, &said) {
		said.Message = string(body)
	}
	message := strings.ToLower(said.Message)
	return strings.Contains(message, "secondary rate limit") || strings.Contains(message, "abuse detection mechanism") ||
		strings.HasSuffix(said.DocumentationURL, "secondary-rate-limits") || strings.HasSuffix(said.DocumentationURL, "#abuse-rate-limits")
}

// githubNeedsBody reports whether to read the body: an answer that used the last of a limit may be a refused GraphQL call.
func githubNeedsBody(header http.Header) bool { return header.Get("X-Ratelimit-Remaining") == "0" }

// githubGraphQLLimited reports whether a GraphQL answer, whose status is 200 either way, was refused.
func githubGraphQLLimited(body []byte) bool {
	var said struct {
		Errors []struct {
			Type string `json:"type"`
		} `json:"errors"`
	}
	if !readJSON(body, &said) {
		return false
	}
	for _, e := range said.Errors {
		if e.Type == "RATE_LIMITED" {
			return true
		}
	}
	return false
}
