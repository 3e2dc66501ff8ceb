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

// MaxCount is the largest count of tokens that is accepted: real calls have fewer, and products of two counts do not overflow.
const MaxCount = 1 << 30

// Content is the content of a request's body, by kind. Sizes are in bytes.
type Content struct {
	// ASCII and Other are the bytes of text: four and two for one token.
	ASCII, Other int64
	// Schema is the JSON of tool definitions and response schemas: four bytes for one token.
	Schema int64
	// Unread is data that cannot be parsed as JSON: four bytes for one token.
	Unread int64
	// Images counts images, Files documents and other content known only by an id or a URL.
	Images, Files int64
	// Audio is the decoded size of audio and video: 500 bytes for one token. Documents are the tokens of inline documents.
	Audio, Documents int64
	// Numbers counts tokens given as numbers.
	Numbers int64
}

// Request describes one call.
type Request struct {
	// Dialect is the provider's dialect.
	Dialect signals.Dialect
	Route
	Content Content
	// Bound is the most tokens that the call may produce, over all its choices; 0: not stated.
	Bound int64
	// Stream: the answer is requested as a stream. StreamOptions: the body has stream_options, even if null.
	Stream, StreamOptions bool
	// Cached: parts have cache marks, so much of the input may not count.
	Cached bool
	// Prior is the id of an earlier answer, conversation or cached content that the call continues, whose tokens count as input again;
	// empty: none.
	Prior string
	// Tier is the requested service tier; empty: not stated.
	Tier string
	// Size is the size of the body, in bytes.
	Size int64
	// Repeated is a top-level member that the body has twice, so that another reader may use the other one; empty: none.
	Repeated string
}

// Tokens of content whose size in bytes does not determine its tokens; fileTokens is for each pdfPart bytes of a document.
const (
	imageOpenAI    = 1_200
	imageAnthropic = 1_600
	// imageLarge is for models of Anthropic from 4.7 on, which accept more pixels.
	imageLarge  = 4_784
	imageGemini = 1_100
	fileTokens  = 2_400
	pdfPart     = 50_000
	audioPart   = 500
)

// Counted returns the input tokens by content, without any learning; at least 1 for a body.
func (r *Request) Counted() int64 {
	c := r.Content
	tokens := c.ASCII/4 + c.Other/2 + c.Schema/4 + c.Unread/4 + c.Audio/audioPart + c.Documents + c.Numbers +
		c.Files*fileTokens + c.Images*r.image()
	if tokens == 0 && r.Size > 0 {
		tokens = 1
	}
	return min(tokens, MaxCount)
}

// Amounts returns the expected use of the call from the request alone; see Learner.Estimate for one that includes earlier calls.
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

// largeImages reports whether a model is Claude 4.7 or later: claude-opus-4-7, claude-sonnet-5.
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

// claude matches the version in names of Claude: claude-opus-4-1, claude-3-5-sonnet, claude-sonnet-4-20250514.
var claude = regexp.MustCompile(`claude-(?:[a-z]+-)?(\d{1,2})(?:\D|$)`)

// Burndown returns how many tokens of the limit an output token counts when the call is settled. Bedrock counts five for Claude from
// version 4 on: docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html, 2026-11-20.
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

// Read reads a request's body to its end. An error of body ends it early: the bytes read so far count.
func Read(dialect signals.Dialect, route Route, body io.Reader) *Request {
	scanner := NewScanner(dialect, route)
	_, _ = io.Copy(scanner, body)
	return scanner.Request()
}
