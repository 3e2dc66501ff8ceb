package estimate

import (
	"slices"
	"strings"

	"github.com/quotad/quotad/client/internal/jsonscan"
	"github.com/quotad/quotad/rpc/signals"
)

// section is the meaning of a top-level key; 0: its value does not reach the model, such as the model's name, flags and metadata.
type section uint8

const (
	// prose is text and media: each of its strings counts.
	prose section = 1
	// schema is JSON that reaches the model as such.
	schema section = 2
	// config holds bounds of the output, and may hold a schema.
	config section = 3
	// conversation names an earlier call, by a string or an object with an id.
	conversation section = 4
)

// sections maps top-level keys. One table has the keys of all providers, since bodies do not name their provider.
var sections = map[string]section{
	"messages": prose, "input": prose, "instructions": prose, "prompt": prose, "suffix": prose, "prediction": prose, // OpenAI
	"system":   prose,                                                                            // Anthropic, Converse
	"contents": prose, "systemInstruction": prose, "system_instruction": prose, "content": prose, // Gemini
	"requests":  prose,                                                                       // Gemini, a batch of embeddings
	"inputText": prose, "texts": prose, "message": prose, "documents": prose, "query": prose, // Bedrock's other models

	"tools": schema, "functions": schema, "response_format": schema, "text": schema,
	"output_format": schema, "output_config": schema, "toolConfig": schema, "outputConfig": schema,

	"generationConfig": config, "generation_config": config, "inferenceConfig": config, "textGenerationConfig": config,

	"conversation": conversation,
}

// bounds are the keys that bound the tokens of one answer, at the top and in a config.
var bounds = map[string]bool{
	"max_tokens": true, "max_completion_tokens": true, "max_output_tokens": true, "max_tokens_to_sample": true, "max_gen_len": true,
	"maxOutputTokens": true, "maxTokens": true, "maxTokenCount": true,
}

// choices are the keys for the number of answers.
var choices = map[string]bool{"n": true, "best_of": true, "candidateCount": true, "candidate_count": true}

// maxFrames bounds the nesting in which parts are recognised. Text counts at any depth.
const maxFrames = 64

// Scanner reads the body of one request as it passes. It is an io.Writer that never fails.
type Scanner struct {
	json    *jsonscan.Scanner
	request Request
	// depth is the number of open values; frames are the outermost of them, up to maxFrames.
	depth  int
	frames []frame

	// object: the body is an object, as in all known APIs.
	object  bool
	section section
	key     string
	// session is the model of a session that the body requests; it counts if there is no model at the top.
	session string
	// members are the top-level names so far.
	members []string
	// began is the offset at which the current schema began, at the depth below schemaDepth.
	began       int64
	schemaDepth int
	// bound and choices are the largest values found.
	bound, choices int64
	value          value
}

// NewScanner returns a Scanner of a request in a provider's dialect, with the information from its URL.
func NewScanner(dialect signals.Dialect, route Route) *Scanner {
	s := &Scanner{request: Request{Dialect: dialect, Route: route}}
	s.json = jsonscan.New((*handler)(s))
	return s
}

// Write reads the next bytes of the body. It returns len(p) and no error.
func (s *Scanner) Write(p []byte) (int, error) { return s.json.Write(p) }

// Request ends the body at the current position and returns the result. The Scanner accepts no bytes after that.
func (s *Scanner) Request() *Request {
	s.json.Finish()
	at, broken := s.json.Broken()
	if broken || !s.json.Complete() {
		s.endAll()
	}
	r := s.request
	r.Size = s.json.Offset()
	switch {
	case !s.object:
		r.Content = Content{Unread: r.Size}
	case broken:
		r.Content.Unread = r.Size - at
	}
	r.Bound = min(s.bound*max(s.choices, 1), MaxCount)
	if r.Operation == Embed {
		r.Bound = 0
	}
	if r.Model == "" {
		r.Model = s.session
	}
	r.Model = strings.Clone(r.Model)
	return &r
}

// endAll closes the open values of a truncated body.
func (s *Scanner) endAll() {
	h := (*handler)(s)
	if s.value.open {
		h.TextEnd()
	}
	for s.depth > 0 {
		h.Close()
	}
}

// handler has the methods that callers of a Scanner must not see.
type handler Scanner

// Key implements jsonscan.Handler.
func (h *handler) Key(name []byte) {
	switch f := h.frame(); {
	case h.depth == 1:
		h.key = string(name)
		h.noteMember()
		h.request.StreamOptions = h.request.StreamOptions || h.key == "stream_options"
		h.frames[0].key = internKey(name)
		h.section = sections[h.key]
		if h.section == schema {
			h.began, h.schemaDepth = h.json.Offset(), 1
		}
	case f != nil:
		f.key = internKey(name)
		h.cacheMark(f.key)
		if h.section == config && h.depth == 2 {
			h.key = string(name)
			if strings.HasPrefix(h.key, "response") {
				h.began, h.schemaDepth = h.json.Offset(), 2
			}
		}
	}
	if h.depth == 1 {
		h.cacheMark(h.key)
	}
}

// cacheMark detects cache marks of a prompt.
func (h *handler) cacheMark(key string) {
	if key == "cache_control" || key == "cachePoint" {
		h.request.Cached = true
	}
}

// frame returns the innermost open value; nil if it is nested too deep or there is none.
func (h *handler) frame() *frame {
	if h.depth == 0 || h.depth > maxFrames {
		return nil
	}
	return &h.frames[h.depth-1]
}

// Open implements jsonscan.Handler.
func (h *handler) Open(array bool) {
	if h.depth < maxFrames && h.depth == len(h.frames) {
		h.frames = append(h.frames, frame{}) // before there are pointers to the others
	}
	outer := h.frame()
	h.depth++
	if f := h.frame(); f != nil {
		*f = frame{array: array}
		switch {
		case outer == nil:
			h.object = h.object || h.depth == 1 && !array
		case outer.array:
			f.name, f.opaque = outer.name, outer.opaque
		default:
			// A model's input to a tool is JSON of the tool.
			f.name, f.opaque = outer.key, outer.opaque || h.depth > 2 && opaque[outer.key]
		}
	}
}

// Close implements jsonscan.Handler.
func (h *handler) Close() {
	if f := h.frame(); f != nil && h.section == prose {
		h.endPart(f)
	}
	h.depth--
	h.endSchema()
}

// endSchema counts a schema whose value has ended.
func (h *handler) endSchema() {
	if h.schemaDepth == 0 || h.depth > h.schemaDepth {
		return
	}
	h.request.Content.Schema += h.json.Offset() - h.began
	h.schemaDepth = 0
}

// Text implements jsonscan.Handler.
func (h *handler) Text(piece []byte) {
	h.value.add(piece)
}

// TextEnd implements jsonscan.Handler.
func (h *handler) TextEnd() {
	v := h.value
	h.value = value{}
	switch {
	case h.depth == 1:
		h.topText(&v)
	case h.section == prose:
		h.partText(&v)
	case h.section == conversation && h.depth == 2 && h.frames[1].key == "id":
		h.request.Prior = v.text()
	case h.key == "session" && h.depth == 2 && h.frames[1].key == "model":
		h.sessionModel(v.text())
	}
	h.endSchema()
}

// mostMembers bounds the top-level members that are distinguished, mostName the length of their names: no API has as many, or names as
// long.
const mostMembers, mostName = 256, 64

// noteMember records a top-level member of the body.
func (h *handler) noteMember() {
	switch {
	case h.request.Repeated != "" || len(h.key) > mostName:
	case slices.Contains(h.members, h.key):
		h.request.Repeated = h.key
	case len(h.members) < mostMembers:
		h.members = append(h.members, h.key)
	}
}

// sessionModel records the model of a session. A second one counts as a repeated member.
func (h *handler) sessionModel(name string) {
	if h.session != "" {
		h.request.Repeated = "session"
	}
	h.session = name
}

// modelKey returns the name of the member with the model.
func (h *handler) modelKey() string {
	if h.request.Dialect.Name() == signals.Bedrock.Name() {
		return "modelId"
	}
	return "model"
}

// topText handles a string at the top of the body.
func (h *handler) topText(v *value) {
	switch {
	case h.key == h.modelKey():
		if h.request.Model == "" {
			h.request.Model = v.text()
		}
	case h.key == "service_tier" || h.key == "serviceTier":
		h.request.Tier = v.text()
	case h.key == "previous_response_id" || h.key == "cachedContent" || h.key == "cached_content" || h.section == conversation:
		h.request.Prior = v.text()
	case h.section == prose:
		h.countText(v)
	}
}

// Literal implements jsonscan.Handler.
func (h *handler) Literal(text []byte) {
	switch top := h.depth == 1; {
	case top && h.key == "stream":
		h.request.Stream = text[0] == 't'
	case top || h.depth == 2 && h.section == config:
		h.bounds(text)
	case h.section == prose && text[0] >= '0' && text[0] <= '9':
		// A prompt may be given as tokens.
		if f := h.frame(); f != nil && f.array && (f.name == "input" || f.name == "prompt") {
			h.request.Content.Numbers++
		}
	}
	h.endSchema()
}

// bounds handles a number that may bound the output.
func (h *handler) bounds(text []byte) {
	switch {
	case bounds[h.key]:
		h.bound = max(h.bound, count(text))
	case choices[h.key]:
		h.choices = max(h.choices, count(text))
	}
}

// maxFactor bounds a bound and the number of answers, so that their product does not overflow.
const maxFactor = 1 << 24

// count parses a whole number, capped at maxFactor; 0 if it is none.
func count(text []byte) int64 {
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0
		}
		n = min(n*10+int64(c-'0'), maxFactor)
	}
	return n
}
