package usage

import "github.com/quotad/quotad/rpc/signals"

// MaxCount is the largest count that is believed; larger ones are cut to it.
const MaxCount = 1 << 40

// Usage is what an answer said was used, in tokens.
type Usage struct {
	// Input is all input, Cached the part of it that was read from a cache, Written the part that was written to one, Written1h the part of
	// Written that stays for an hour.
	Input, Cached, Written, Written1h signals.Count
	// Output is all output, Reasoning the part of it that is not visible.
	Output, Reasoning signals.Count
}

// Known reports whether the answer said anything.
func (u Usage) Known() bool { return u.Input.Known || u.Output.Known }

// Uncached returns the input that was not read from a cache, which is what Anthropic and Bedrock count.
func (u Usage) Uncached() signals.Count {
	return signals.Count{N: max(u.Input.N-u.Cached.N, 0), Known: u.Input.Known}
}

// Said is what an answer said, as far as it has passed.
type Said struct {
	Usage
	// ID is the answer's id, Conversation that of its conversation, Model the model that answered; empty: not said.
	ID, Conversation, Model string
	// Tier is the service tier that the call was served in, such as default, flex, priority or batch; empty: not said.
	Tier string
	// Text is how many bytes of the output passed: text, reasoning and arguments of tools.
	Text int64
	// Failure is the error that the answer ended with, nil: none. Answers with an error's status have it as well.
	Failure *Failure
	// Last: the stream said that nothing follows.
	Last bool
	// Skipped is how many events were too large to be read.
	Skipped int
}

// OutputFloor returns the least output that there was: what was said, or four bytes of the output that passed a token.
func (s Said) OutputFloor() int64 { return max(s.Output.N, s.Text/4) }

// Failure is an error within an answer.
type Failure struct {
	// Type and Code are the provider's names of it, such as overloaded_error and rate_limit_exceeded; Message says it for people.
	Type, Code, Message string
	// Body is the error as the provider writes it in the body of a refusal, for package signals; at most signals.MaxBody bytes.
	Body []byte
}
