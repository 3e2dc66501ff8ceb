package signals

import (
	"net/http"
	"time"
)

// Generic is the dialect of a provider that is not known: statuses, Retry-After, and the usual X-RateLimit headers.
var Generic = Dialect{name: "generic", observe: observeGeneric}

func observeGeneric(r *response) []Signal {
	s := Signal{
		Class:     OK,
		Limit:     r.count("X-Ratelimit-Limit"),
		Remaining: r.count("X-Ratelimit-Remaining"),
		Used:      r.count("X-Ratelimit-Used"),
		ResetIn:   r.longest("X-Ratelimit-Reset", r.guessed),
		Rule:      "generic/counts",
	}
	if s.ResetIn.Known {
		s.ResetResolution = time.Second
	}
	if s.ResetIn.Known && s.ResetIn.D == 0 {
		s.Remaining, s.Used = Count{}, Count{}
	}
	s.Exact = s.Remaining.Known
	said := s.Limit.Known || s.Remaining.Known || s.Used.Known || s.ResetIn.Known
	asked := r.retryAfter()
	s.NoRetry = r.noRetry()
	switch {
	case r.status == http.StatusTooManyRequests:
		s.Class, s.Rule = Throttled, "generic/429"
		return []Signal{asked.on(s)}
	case r.status == http.StatusServiceUnavailable || r.status == 529:
		s.Class, s.Scope, s.Rule = Overloaded, ScopeProvider, "generic/unavailable"
		return []Signal{asked.on(s)}
	case r.status == http.StatusUnauthorized:
		return []Signal{{Class: NotALimit, NoRetry: s.NoRetry, Rule: "generic/unauthorized"}}
	case r.status >= 400:
		s.Class, s.Rule = NotALimit, "generic/error"
		return []Signal{s}
	case said || s.NoRetry:
		return []Signal{s}
	}
	return nil
}
