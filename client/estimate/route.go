package estimate

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/quotad/quotad/rpc/signals"
)

// Operation is the kind of a call.
type Operation int

// The operations.
const (
	// Other generates nothing: lists of models, files, moderations, counting of tokens, and unknown calls.
	Other Operation = 0
	// Generate produces text, images or audio from a prompt.
	Generate Operation = 1
	// Embed turns text into vectors or ranks it: it has input and no output.
	Embed Operation = 2
)

// Route is the information that a URL gives about a call.
type Route struct {
	Operation Operation
	// Model is the model or deployment in the path; empty: the body names it.
	Model string
}

// RouteOf reads the path of a call to a provider's API. The path may have prefixes, such as a proxy's. A dialect without known paths,
// such as signals.Generic, is read as OpenAI's, which many providers copy.
func RouteOf(dialect signals.Dialect, path *url.URL) Route {
	escaped := CanonicalPath(path.EscapedPath())
	route := routeOf(dialect, Segments(escaped))
	if plain, err := url.PathUnescape(escaped); route.Operation == Other && err == nil && plain != escaped {
		// Some servers treat an escaped slash as a slash: a call that may generate counts as one that does.
		if alike := routeOf(dialect, Segments(plain)); alike.Operation != Other {
			return alike
		}
	}
	return route
}

// CanonicalPath returns an escaped path in which only the necessary bytes are escaped, so that all spellings of a path are equal. An
// escaped slash stays escaped. An invalid path is returned unchanged.
func CanonicalPath(escaped string) string {
	segments := strings.Split(escaped, "/")
	for i, segment := range segments {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			return escaped
		}
		segments[i] = url.PathEscape(plain)
	}
	return strings.Join(segments, "/")
}

// Segments returns the segments of an escaped path as the most lenient servers read them: decoded, without the parameters after a
// semicolon, without trailing blanks and dots, and without empty segments. A backslash is a slash.
func Segments(escaped string) []string {
	var out []string
	for segment := range strings.FieldsFuncSeq(escaped, func(r rune) bool { return r == '/' || r == '\\' }) {
		if plain, err := url.PathUnescape(segment); err == nil {
			segment = plain
		}
		segment, _, _ = strings.Cut(segment, ";")
		segment = strings.TrimRightFunc(segment, func(r rune) bool { return r == '.' || unicode.IsSpace(r) || unicode.IsControl(r) })
		if segment != "" {
			out = append(out, segment)
		}
	}
	return out
}

// pathOf is a path for comparisons without regard to case: Azure and others accept letters of any case.
type pathOf struct {
	segments []string
	// folded are the segments in lower case, each after a slash.
	folded string
}

// ends reports whether a path ends in one of several endings. A star in an ending stands for one segment.
func (p pathOf) ends(all ...string) bool {
	for _, end := range all {
		if !strings.Contains(end, "*") {
			if strings.HasSuffix(p.folded, end) {
				return true
			}
			continue
		}
		wanted := strings.Split(end, "/")[1:]
		from := len(p.segments) - len(wanted)
		if from >= 0 && slices.EqualFunc(wanted, p.segments[from:], func(want, is string) bool {
			return want == "*" || strings.EqualFold(want, is)
		}) {
			return true
		}
	}
	return false
}

// after returns the segments after one with such a name; none: there is no such segment, or it is the last.
func (p pathOf) after(names ...string) []string {
	for i, segment := range p.segments {
		if slices.Contains(names, strings.ToLower(segment)) {
			return p.segments[i+1:]
		}
	}
	return nil
}

func routeOf(dialect signals.Dialect, segments []string) Route {
	path := pathOf{segments, strings.ToLower("/" + strings.Join(segments, "/"))}
	switch dialect.Name() {
	case signals.Anthropic.Name():
		if path.ends("/messages", "/complete", "/generate_prompt", "/improve_prompt", "/templatize_prompt") {
			return Route{Operation: Generate}
		}
		return Route{}
	case signals.Gemini.Name():
		if path.after("openai") != nil {
			return openAIRoute(path) // the compatible paths
		}
		return geminiRoute(path)
	case signals.Bedrock.Name():
		return bedrockRoute(path)
	default:
		return openAIRoute(path)
	}
}

// notGenerating are the methods of Gemini's models, in lower case, that generate nothing, or later and under other limits. Any other
// method may generate.
var notGenerating = []string{
	"", "counttokens", "computetokens", "counttexttokens", "countmessagetokens", "batchgeneratecontent", "asyncbatchembedcontent",
	"fetchpredictoperation", "transferownership",
}

func geminiRoute(path pathOf) Route {
	if path.ends("/interactions", "/auth_tokens") {
		return Route{Operation: Generate}
	}
	named := path.after("models", "tunedmodels", "dynamic", "endpoints")
	if len(named) == 0 {
		return Route{}
	}
	model, method, _ := strings.Cut(named[0], ":")
	route := Route{Model: model}
	switch method = strings.ToLower(method); {
	case slices.Contains(notGenerating, method):
	case strings.Contains(method, "embed"):
		route.Operation = Embed
	default:
		route.Operation = Generate
	}
	return route
}

func bedrockRoute(path pathOf) Route {
	if path.ends("/async-invoke") {
		return Route{Operation: Generate}
	}
	named := path.after("model")
	if len(named) == 0 {
		return Route{}
	}
	route := Route{Model: named[0]}
	switch {
	case len(named) == 1 || path.ends("/count-tokens"):
	case strings.Contains(route.Model, "embed"):
		route.Operation = Embed
	default:
		route.Operation = Generate
	}
	return route
}

// openAIRoute reads OpenAI's paths and Azure's, which have a deployment in front.
func openAIRoute(path pathOf) Route {
	var route Route
	if named := path.after("deployments", "engines"); len(named) > 0 {
		route.Model = named[0]
	}
	switch {
	case path.ends("/embeddings", "/rerank", "/reranking"):
		route.Operation = Embed
	case path.ends( // the keys of realtime are for sessions at the provider itself, which nobody counts
		"/realtime/client_secrets", "/realtime/sessions", "/realtime/transcription_sessions", "/realtimeapi/sessions", "/ocr",
		"/completions", "/responses", "/responses/compact", "/edits", "/images/generations", "/images/variations",
		"/audio/transcriptions", "/audio/translations", "/audio/speech", "/realtime/calls",
		"/videos", "/videos/*/remix", "/videos/extensions", "/video/generations", "/video/generations/jobs",
		"/threads/runs", "/threads/*/runs", "/threads/*/runs/*/submit_tool_outputs",
	):
		route.Operation = Generate
	}
	return route
}

// MultipartHead is how much of a multipart body ModelOfMultipart reads, in bytes.
const MultipartHead = 64 << 10

// ModelOfMultipart returns the part named model of a multipart/form-data body, of which head is the beginning; empty: head has none.
func ModelOfMultipart(contentType string, head []byte) string {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return ""
	}
	parts := multipart.NewReader(bytes.NewReader(head[:min(len(head), MultipartHead)]), params["boundary"])
	for {
		part, err := parts.NextRawPart()
		if err != nil {
			return ""
		}
		if part.FormName() != "model" {
			continue
		}
		name, err := io.ReadAll(io.LimitReader(part, maxName))
		if err != nil {
			return "" // the head ends within it
		}
		return strings.TrimSpace(string(name))
	}
}
