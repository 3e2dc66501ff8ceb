package estimate

import (
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/quotad/quotad/rpc/signals"
)

// maxName is how much of a model's name or of an id is kept, in bytes.
const maxName = 256

// MaxCount is the largest count of tokens that is believed: no sensible call has more, and products of two do not overflow.
const MaxCount = 1 << 30

// Content is what a request's body holds, by kind. Sizes are in bytes.
type Content struct {
	// ASCII and Other are the bytes of text: one token for four, and one for two.
	ASCII, Other int64
	// Schema is the JSON of tool definitions and response schemas: one token for four.
	Schema int64
	// Unread is what is not JSON, or not JSON any more: one token for four.
	Unread int64
	// Images counts pictures, Files documents and whatever else is known by an id only.
	Images, Files int64
	// Audio is the decoded size of sound and film: one token for 500. Documents are the tokens of documents inline.
	Audio, Documents int64
	// Numbers counts tokens that came as numbers.
	Numbers int64
}

// Request is what one call asks for.
type Request struct {
	// Dialect is the provider's.
	Dialect signals.Dialect
	Route
	// Content is what it sends.
	Content Content
	// Bound is the most tokens that it may produce, over all its choices; 0: not said.
	Bound int64
	// Stream: the answer is asked for in pieces. StreamOptions: the caller has sent stream_options itself, be it as null.
	Stream, StreamOptions bool
	// Cached: parts of it are marked for a cache, so much of it may not count.
	Cached bool
	// Prior is the id of an earlier answer, conversation or cached content that this call goes on from, whose tokens count as input
	// again; empty: none.
	Prior string
	// Tier is the service tier that it asks for; empty: not said.
	Tier string
	// Size is the size of the body, in bytes.
	Size int64
	// Repeated is a member at the top of the body that it has twice, so that another reader may take the other one; empty: there is none.
	Repeated string
}

// Tokens of content whose bytes do not say how many, of documents for each pdfPart bytes.
const (
	imageOpenAI    = 1_200
	imageAnthropic = 1_600
	// imageLarge is an image's for models of Anthropic from 4.7 on, which take more pixels.
	imageLarge  = 4_784
	imageGemini = 1_100
	fileTokens  = 2_400
	pdfPart     = 50_000
	audioPart   = 500
)

// Counted returns the input tokens by content, before anything was learnt; at least 1 for a body.
func (r *Request) Counted() int64 {
	c := r.Content
	tokens := c.ASCII/4 + c.Other/2 + c.Schema/4 + c.Unread/4 + c.Audio/audioPart + c.Documents + c.Numbers +
		c.Files*fileTokens + c.Images*r.image()
	if tokens == 0 && r.Size > 0 {
		tokens = 1
	}
	return min(tokens, MaxCount)
}

// Amounts returns what the call will use, as far as the request tells; see Learner.Estimate for what earlier calls tell.
func (r *Request) Amounts(otherwise int64) Amounts {
	return r.bounded(Amounts{Input: r.Counted()}, otherwise)
}

// bounded adds the output to an estimate.
func (r *Request) bounded(a Amounts, otherwise int64) Amounts {
	switch {
	case r.Operation == Embed:
		return Amounts{Input: a.Input}
	case a.Learnt:
	case otherwise > 0:
		a.Likely = min(otherwise, MaxCount)
	default:
		a.Likely = DefaultOutput
	}
	if a.Bound = a.Likely; r.Bound > 0 {
		a.Bound, a.Likely = r.Bound, min(a.Likely, r.Bound)
	}
	return a
}

func (r *Request) image() int64 {
	switch r.Dialect.Name() {
	case signals.Anthropic.Name(), signals.Bedrock.Name():
		if largeImages(r.Model) {
			return imageLarge
		}
		return imageAnthropic
	case signals.Gemini.Name():
		return imageGemini
	}
	return imageOpenAI
}

// largeImages tells whether a model is Claude 4.7 or a later one: claude-opus-4-7, claude-sonnet-5.
func largeImages(model string) bool {
	_, version, found := strings.Cut(model, "claude-")
	if !found {
		return false
	}
	var numbers []int
	for part := range strings.SplitSeq(version, "-") {
		n := 0
		for _, c := range part {
			if c < '0' || c > '9' || n > 99 {
				n = -1
				break
			}
			n = n*10 + int(c-'0')
		}
		if n >= 0 && n < 100 && part != "" {
			numbers = append(numbers, n)
		}
	}
	switch {
	case len(numbers) == 0:
		return false
	case len(numbers) == 1:
		return numbers[0] >= 5
	}
	return numbers[0] > 4 || numbers[0] == 4 && numbers[1] >= 7
}

// claude finds the version in names of Claude: claude-opus-4-1, claude-3-5-sonnet, claude-sonnet-4-20250514.
var claude = regexp.MustCompile(`claude-(?:[a-z]+-)?(\d{1,2})(?:\D|$)`)

// Burndown returns how many tokens of the limit a token of the output counts once the call is settled. Bedrock counts five for Claude
// from version 4 on: docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html, 2026-11-20.
func (r *Request) Burndown() int64 {
	if r.Dialect.Name() != signals.Bedrock.Name() {
		return 1
	}
	if m := claude.FindStringSubmatch(r.Model); m != nil {
		if version, err := strconv.Atoi(m[1]); err == nil && version >= 4 {
			return 5
		}
	}
	return 1
}

// Read reads a request's body to its end. Errors of body end it early: what was read counts.
func Read(dialect signals.Dialect, route Route, body io.Reader) *Request {
	scanner := NewScanner(dialect, route)
	_, _ = io.Copy(scanner, body)
	return scanner.Request()
}
