package gateway

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/internal/unpack"
	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// read scans a body in memory for its model, its size in tokens, and its bounds. A gzip body is decompressed meanwhile, up to the bound
// of bodies.
func (c *call) read() error {
	if !c.op.Generates() {
		return nil
	}
	scanner := estimate.NewScanner(c.op.Signals(), c.op.Route)
	err := c.scan(scanner)
	if errors.Is(err, errEncoding) && c.upstream.config.Unknown == "observe" {
		err = nil
	}
	c.ask = scanner.Request()
	if err == nil && c.ask.Repeated != "" {
		return errRepeated
	}
	c.model = c.ask.Model
	if c.model == "" && c.streamed != nil {
		c.model = estimate.ModelOfMultipart(c.header.Get("Content-Type"), c.streamed)
	}
	return err
}

// errRepeated rejects a body with a repeated member: the provider might use the other one, and thus another model than the governed
// one.
var errRepeated = errors.New("a member is repeated at the top of the body; send each once")

// errEncoding rejects a body with an encoding that the gateway cannot decode.
var errEncoding = errors.New("the Content-Encoding of the body is not supported; send it plain or in gzip")

func (c *call) scan(to io.Writer) error {
	if c.body == nil {
		return nil
	}
	switch unpack.Encoding(c.header) {
	case "":
		_, err := to.Write(c.body.data)
		return err
	case "gzip", "x-gzip":
	default:
		return errEncoding
	}
	in, err := gzip.NewReader(bytes.NewReader(c.body.data))
	if err != nil {
		return errEncoding
	}
	most := c.state.config.Limits.Body
	n, err := io.Copy(to, io.LimitReader(in, most+1))
	switch {
	case n > most:
		return errBodyTooLarge
	case err != nil:
		return errEncoding
	}
	return nil
}

// likeness returns the key under which similar calls are learnt.
func (c *call) likeness() estimate.Key {
	return estimate.Key{Upstream: c.prefixOfQuotas, Model: c.target.Model, Holder: c.caller.Holder}
}

// estimate estimates the call's use in tokens. It is called once the call's quotas are known.
func (c *call) estimate() {
	c.ask.Model = c.model
	otherwise := int64(0)
	for _, part := range []string{"output-tokens", "tokens"} {
		if q, ok := c.target.Parts[part]; ok && otherwise == 0 {
			otherwise = q.DefaultEstimate
		}
	}
	c.amounts = c.gateway.learner.Estimate(c.likeness(), c.ask, otherwise)
}

// amountOf returns the amount to request of a part.
func (c *call) amountOf(part string) int64 {
	a := c.amounts
	switch part {
	case "tokens":
		switch c.op.Dialect {
		case dialect.Anthropic:
			return max(a.Input+a.Likely, 1)
		case dialect.Gemini:
			return max(a.Input, 1)
		case dialect.OpenAI, dialect.Azure, dialect.Bedrock, dialect.Codex, dialect.GitHub, dialect.Generic:
		}
		return max(a.AtArrival(), 1)
	case "input-tokens":
		return max(a.Input, 1)
	case "output-tokens":
		if c.op.Dialect == dialect.Anthropic {
			return max(a.Likely, 1)
		}
		return max(a.Bound, 1)
	case partCost:
		return max(c.likelyCost(), 1)
	}
	return 1
}

// used returns the call's actual use of a part; ok is false if the answer did not state it.
func (c *call) used(part string, said usage.Said) (n int64, ok bool) {
	input, output := said.Input, said.Output
	if c.uncached() {
		input = said.Uncached()
	}
	if c.op.Operation == estimate.Embed && !output.Known {
		output.Known = input.Known
	}
	switch part {
	case "tokens":
		if c.op.Dialect == dialect.Gemini {
			return input.N, input.Known
		}
		return input.N + output.N*c.burndown(), input.Known && output.Known
	case "input-tokens":
		return input.N, input.Known
	case "output-tokens":
		return output.N, output.Known
	case partCost:
		return c.cost(said)
	}
	return 0, false
}

// uncached reports whether tokens read from a cache do not count as input.
func (c *call) uncached() bool {
	return c.op.Dialect == dialect.Anthropic || c.op.Dialect == dialect.Bedrock
}

// floor returns the least use of a part by a truncated answer: input as estimated or stated, output as stated or passed.
func (c *call) floor(part string, said usage.Said) (n int64, ok bool) {
	input := max(c.amounts.Input, said.Input.N)
	if c.uncached() && said.Input.Known {
		input = max(c.amounts.Input, said.Uncached().N)
	}
	output := said.OutputFloor()
	switch part {
	case "tokens":
		if c.op.Dialect == dialect.Gemini {
			return input, true
		}
		return input + output*c.burndown(), true
	case "input-tokens":
		return input, true
	case "output-tokens":
		return output, true
	case partCost:
		return c.leastCost(said)
	}
	return 0, false
}

// burndown returns how many tokens of the limit an output token counts.
func (c *call) burndown() int64 {
	if c.ask == nil {
		return 1
	}
	return c.ask.Burndown()
}

// learn uses the answer's stated use for later estimates.
func (c *call) learn(said usage.Said) {
	if c.ask == nil || !said.Known() {
		return
	}
	learnt := estimate.Said{Input: -1, Output: -1}
	if said.Input.Known {
		learnt.Input = said.Input.N
		if c.uncached() {
			learnt.Input = said.Uncached().N
		}
	}
	if said.Output.Known {
		learnt.Output = said.Output.N
	}
	l := c.gateway.learner
	c.gateway.learnt.Store(true)
	l.Learn(c.likeness(), c.ask, learnt)
	if said.Input.Known && said.Output.Known {
		for _, id := range []string{said.ID, said.Conversation} {
			if id != "" {
				l.Remember(c.prefixOfQuotas, id, said.Input.N+said.Output.N)
			}
		}
	}
}

// learnRefused learns from the provider's count in a refusal. Only counts of tokens teach: for a limit on requests the count is 1.
func (c *call) learnRefused(verdict signals.Signal) {
	if verdict.Requested.Known && verdict.Resource == "tokens" && c.ask != nil {
		c.gateway.learner.LearnRequested(c.likeness(), c.ask, verdict.Requested.N)
	}
}
