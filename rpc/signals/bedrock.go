package signals

import (
	"net/http"
	"strings"
)

// Bedrock is the dialect of Amazon Bedrock. It has no headers of limits, and its errors do not name the quota.
var Bedrock = Dialect{name: "bedrock", observe: observeBedrock}

func observeBedrock(r *response) []Signal {
	if r.status < 400 {
		return nil
	}
	kind, message := bedrockSaid(r)
	asked := r.retryAfter()
	s := Signal{NoRetry: r.noRetry()}
	switch {
	case kind == "ModelNotReadyException":
		s.Class, s.Scope, s.Rule = Overloaded, ScopeModel, "bedrock/not_ready"
	case kind == "ServiceUnavailableException" || r.status == http.StatusServiceUnavailable:
		s.Class, s.Scope, s.Rule = Overloaded, ScopeProvider, "bedrock/unavailable"
	case kind == "ThrottlingException" || kind == "TooManyRequestsException" || r.status == http.StatusTooManyRequests:
		s.Class, s.Scope, s.Rule = Throttled, ScopeModel, "bedrock/throttling"
		switch message = strings.ToLower(message); {
		case strings.Contains(message, "tokens per day"):
			s.Class, s.Resource, s.Rule = Exhausted, "tokens-per-day", "bedrock/day"
		case strings.Contains(message, "too many tokens"):
			s.Resource = "tokens"
		case strings.Contains(message, "too many requests"), strings.Contains(message, "request rate is too high"):
			s.Resource = "requests"
		}
	default:
		return []Signal{{Class: NotALimit, NoRetry: s.NoRetry, Rule: "bedrock/error"}}
	}
	return []Signal{asked.on(s)}
}

// bedrockSaid returns the name of the error and its message. The name is in a header, which may append an address, or in the body, which
// may put a package in front of it.
func bedrockSaid(r *response) (kind, message string) {
	var said struct {
		Type    string `json:"__type"`
		Message string `json:"message"`
	}
	if !readJSON(r.body, &said) {
		said.Message = string(r.body)
	}
	kind = r.header.Get("X-Amzn-Errortype")
	if kind == "" {
		kind = said.Type
	}
	kind = kind[strings.LastIndexByte(kind, '#')+1:]
	kind, _, _ = strings.Cut(kind, ":")
	return strings.TrimSpace(kind), said.Message
}
