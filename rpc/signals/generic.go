package signals

import (
	"net/http"
	"strings"
)

// Generic is the dialect of an unknown provider. It reads what belongs to no single one: statuses, Retry-After, the usual X-RateLimit
// headers and Envoy's form of them, the IETF's RateLimit fields and problem types, the RetryInfo of gRPC services, and answers of another
// quotad.
var Generic = Dialect{name: "generic", observe: observeGeneric}

func observeGeneric(r *response) []Signal {
	if r.status == http.StatusUnauthorized {
		// The counts of an unauthorized call are those of its address, not of the caller's key.
		return []Signal{{Class: NotALimit, NoRetry: r.noRetry(), Rule: "generic/unauthorized"}}
	}
	counts := append(ietfSignals(r), usualCounts(r)...)
	verdict := genericVerdict(r, counts)
	switch {
	case verdict.Class == 0 && len(counts) == 0 && r.noRetry():
		return []Signal{{Class: OK, NoRetry: true, Rule: "generic/counts"}}
	case verdict.Class == 0:
		if len(counts) > 0 {
			counts[0].NoRetry = r.noRetry()
		}
		return counts
	case len(counts) == 1 && verdict.Resource == "" && verdict.Class != NotALimit:
		// The one limit is the one that refused: its verdict has the counts.
		s := counts[0]
		s.Class, s.Rule, s.NoRetry, s.RetryAfter, s.Clamped = verdict.Class, verdict.Rule, verdict.NoRetry, verdict.RetryAfter, verdict.Clamped
		if verdict.Scope != ScopeUnknown {
			s.Scope = verdict.Scope
		}
		return []Signal{s}
	}
	return append(counts, verdict)
}

// usualCounts reads the X-RateLimit headers, which have no standard: whole numbers, and a reset whose unit must be guessed. Envoy lists
// policies in the first one.
func usualCounts(r *response) []Signal {
	if strings.Contains(r.header.Get("X-Ratelimit-Limit"), ";") {
		s, policies := r.threeHeaders("X-Ratelimit-", "envoy/counts")
		return append(counted(s), policies...)
	}
	return counted(Signal{
		Class:     OK,
		Limit:     r.count("X-Ratelimit-Limit"),
		Remaining: r.count("X-Ratelimit-Remaining"),
		Used:      r.count("X-Ratelimit-Used"),
		ResetIn:   r.longest("X-Ratelimit-Reset", r.guessed),
		Rule:      "generic/counts",
	})
}

// Statuses of gRPC.
const (
	grpcResourceExhausted = "8"
	grpcUnavailable       = "14"
)

func genericVerdict(r *response, counts []Signal) Signal {
	s := Signal{NoRetry: r.noRetry()}
	said := genericSaid(r.body)
	asked := r.retryAfter()
	grpc := r.header.Get("Grpc-Status")
	if problem := problemType(r); problem.kind != "" {
		s.Class, s.Scope, s.Resource, s.Rule = problem.class, problem.scope, problem.policy, "problem/"+problem.kind
		return asked.or(refillWait(r, counts)).on(s)
	}
	switch quota, wait, ours := said.ours(); {
	case r.status == http.StatusTooManyRequests && ours:
		s.Class, s.Scope, s.Resource, s.Rule = Throttled, ScopeResource, quota, "quotad/refusal"
		return wait.or(asked).on(s)
	case r.status == http.StatusTooManyRequests || grpc == grpcResourceExhausted:
		s.Class, s.Rule = Throttled, "generic/429"
		return asked.or(said.retryDelay()).or(r.trailerDelay()).or(refillWait(r, counts)).on(s)
	case r.status == http.StatusServiceUnavailable || r.status == 529 || grpc == grpcUnavailable:
		s.Class, s.Scope, s.Rule = Overloaded, ScopeProvider, "generic/unavailable"
		return asked.or(said.retryDelay()).or(r.trailerDelay()).on(s)
	case r.status >= 400:
		s.Class, s.Rule = NotALimit, "generic/error"
		return s
	}
	return Signal{}
}

// refillWait returns the wait for a used-up limit: until it has more, or its window ends.
func refillWait(r *response, counts []Signal) (most wait) {
	envoy := r.header.Get("X-Envoy-Ratelimited") != ""
	for _, s := range counts {
		if !envoy && (!s.Remaining.Known || s.Remaining.N > 0) {
			continue
		}
		for _, span := range []Span{s.RefillIn, s.ResetIn} {
			if span.Known && (!most.known || span.D > most.d) {
				most = waitFor(span.D)
			}
		}
	}
	return most
}

// genericSaid reads an error body in the form of a gRPC service: at the top, or under "error".
func genericSaid(body []byte) rpcError {
	if said, ok := geminiSaid(body); ok {
		return said
	}
	var said rpcError
	if !readJSON(body, &said) {
		return rpcError{}
	}
	return said
}

// problem is one of the problem types of the IETF's draft.
type problem struct {
	kind, policy string
	class        Class
	scope        Scope
}

// problemType reads a problem+json body.
func problemType(r *response) problem {
	if !strings.HasPrefix(r.header.Get("Content-Type"), "application/problem+json") {
		return problem{}
	}
	var said struct {
		Type     string   `json:"type"`
		Violated []string `json:"violated-policies"`
	}
	if !readJSON(r.body, &said) {
		return problem{}
	}
	_, kind, _ := strings.Cut(said.Type, "#")
	switch kind {
	case "quota-exceeded":
		p := problem{kind: kind, class: Exhausted}
		if len(said.Violated) > 0 {
			p.policy, p.scope = word(said.Violated[0]), ScopeResource
		}
		return p
	case "temporary-reduced-capacity":
		return problem{kind: kind, class: Overloaded, scope: ScopeProvider}
	case "abnormal-usage-detected":
		return problem{kind: kind, class: Throttled, scope: ScopeKey}
	}
	return problem{}
}
