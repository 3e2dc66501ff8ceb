package usage

import (
	"net/http"
	"strings"

	"github.com/quotad/quotad/rpc/signals"
)

// MaxCount is the largest count that is accepted; larger ones are capped.
const MaxCount = 1 << 40

// Usage is the use that an answer states, in tokens.
type Usage struct {
	// Input is all input, Cached the part of it read from a cache, Written the part written to one, Written1h the part of Written that
	// stays for an hour.
	Input, Cached, Written, Written1h signals.Count
	// Output is all output, Reasoning the invisible part of it.
	Output, Reasoning signals.Count
}

// Known reports whether the answer stated any use.
func (u Usage) Known() bool { return u.Input.Known || u.Output.Known }

// Uncached returns the input that was not read from a cache, which is what Anthropic and Bedrock count.
func (u Usage) Uncached() signals.Count {
	return signals.Count{N: max(u.Input.N-u.Cached.N, 0), Known: u.Input.Known}
}

// Said is the information in an answer, as far as it has passed.
type Said struct {
	Usage
	// ID is the answer's id, Conversation its conversation's id, Model the model that answered; empty: not stated.
	ID, Conversation, Model string
	// Tier is the service tier of the call, such as default, flex, priority or batch; empty: not stated.
	Tier string
	// Text is the bytes of output that have passed: text, reasoning and arguments of tools.
	Text int64
	// Failure is the error that ended the answer; nil: none. An answer with an error status has it as well.
	Failure *Failure
	// Last: the stream announced its end.
	Last bool
	// Skipped is the number of events that were too large to read.
	Skipped int
}

// OutputFloor returns the least possible output: the stated one, or one token for four bytes of output that passed.
func (s Said) OutputFloor() int64 { return max(s.Output.N, s.Text/4) }

// Failure is an error within an answer.
type Failure struct {
	// Type and Code are the provider's names for it, such as overloaded_error and rate_limit_exceeded; Message is for people.
	Type, Code, Message string
	// Body is the error in the form of a refusal's body, for package signals; at most signals.MaxBody bytes.
	Body []byte
}

// limitNames and overloadNames are the providers' names of errors for limits and for overloads, without case and underscores. All other
// errors are of the call or of the provider, and say nothing about a quota. Sources: OpenAI's and Anthropic's pages on errors, the codes of
// google.rpc, the exceptions of Bedrock's ConverseStream, and statuses, which OpenRouter sends as codes.
var (
	limitNames = map[string]bool{
		"ratelimitexceeded": true, "ratelimiterror": true, "ratelimitreached": true, "insufficientquota": true, "slowdown": true,
		"usagelimitreached": true, "billingerror": true, "resourceexhausted": true, "throttlingexception": true, "toomanyrequests": true,
		"429": true,
	}
	overloadNames = map[string]bool{
		"overloadederror": true, "serverisoverloaded": true, "serviceunavailableerror": true, "unavailable": true,
		"serviceunavailableexception": true, "503": true, "529": true,
	}
)

// Status returns the HTTP status of a refusal for the same reason: 429 for a limit, 503 for an overload of the provider, and 500 for all
// else.
func (f *Failure) Status() int {
	for _, name := range []string{f.Code, f.Type} {
		name = strings.ReplaceAll(strings.ToLower(name), "_", "")
		switch {
		case limitNames[name]:
			return http.StatusTooManyRequests
		case overloadNames[name]:
			return http.StatusServiceUnavailable
		}
	}
	return http.StatusInternalServerError
}
