package estimate

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"strings"

	"github.com/quotad/quotad/rpc/signals"
)

// Operation is what a call asks for.
type Operation int

// The operations.
const (
	// Other generates nothing: lists of models, files, moderations, counting of tokens. Also what is not known.
	Other Operation = 0
	// Generate produces text, pictures or sound from a prompt.
	Generate Operation = 1
	// Embed turns text into vectors: it has input and no output.
	Embed Operation = 2
)

// Route is what a URL says about a call.
type Route struct {
	Operation Operation
	// Model is the model or deployment that the path names; empty: the body names it.
	Model string
}

// RouteOf reads the path of a call to a provider's API. The path may have prefixes, such as a proxy's. A dialect whose paths are
// not known, such as signals.Generic, is read as OpenAI's, which many copy.
func RouteOf(dialect signals.Dialect, path *url.URL) Route {
	escaped := CanonicalPath(path.EscapedPath())
	route := routeOf(dialect, escaped)
	if plain, err := url.PathUnescape(escaped); route.Operation == Other && err == nil && plain != escaped {
		// Some servers take an escaped slash for a slash: a call that may generate counts as one that does.
		if alike := routeOf(dialect, plain); alike.Operation != Other {
			return alike
		}
	}
	return route
}

// CanonicalPath returns an escaped path with only those bytes escaped that have to be: letters that need no escape are as in any
// other spelling of the path, and an escaped slash stays one. What is not a path is returned as it is.
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

func routeOf(dialect signals.Dialect, escaped string) Route {
	escaped = strings.TrimRight(escaped, "/")
	switch dialect.Name() {
	case signals.Anthropic.Name():
		if strings.HasSuffix(escaped, "/messages") || strings.HasSuffix(escaped, "/complete") {
			return Route{Operation: Generate}
		}
		return Route{}
	case signals.Gemini.Name():
		if strings.Contains(escaped, "/openai/") {
			return openAIRoute(escaped) // the compatible paths
		}
		return geminiRoute(escaped)
	case signals.Bedrock.Name():
		return bedrockRoute(escaped)
	default:
		return openAIRoute(escaped)
	}
}

func geminiRoute(escaped string) Route {
	model, method, _ := strings.Cut(segmentAfter(escaped, "models"), ":")
	route := Route{Model: model}
	switch method {
	case "generateContent", "streamGenerateContent", "rawPredict", "streamRawPredict", "predict", "predictLongRunning":
		route.Operation = Generate
	case "embedContent", "batchEmbedContents":
		route.Operation = Embed
	}
	return route
}

func bedrockRoute(escaped string) Route {
	route := Route{Model: segmentAfter(escaped, "model")}
	switch escaped[strings.LastIndexByte(escaped, '/')+1:] {
	case "invoke", "invoke-with-response-stream", "converse", "converse-stream":
		route.Operation = Generate
		if strings.Contains(route.Model, "embed") {
			route.Operation = Embed
		}
	}
	return route
}

// openAIRoute reads OpenAI's paths and Azure's, which have a deployment in front.
func openAIRoute(escaped string) Route {
	route := Route{Model: segmentAfter(escaped, "deployments")}
	for _, end := range []string{
		"/completions", "/responses", "/responses/compact", "/images/generations", "/images/edits", "/images/variations", "/audio/transcriptions",
		"/audio/translations", "/audio/speech",
	} {
		if strings.HasSuffix(escaped, end) {
			route.Operation = Generate
			return route
		}
	}
	if strings.HasSuffix(escaped, "/embeddings") {
		route.Operation = Embed
	}
	return route
}

// segmentAfter returns the segment of a path that follows one of a name, decoded.
func segmentAfter(escaped, name string) string {
	_, rest, _ := strings.Cut(escaped, "/"+name+"/")
	segment, _, _ := strings.Cut(rest, "/")
	segment, err := url.PathUnescape(segment)
	if err != nil {
		return ""
	}
	return segment
}

// MultipartHead is how much of a multipart body ModelOfMultipart looks at, in bytes.
const MultipartHead = 64 << 10

// ModelOfMultipart returns the part named model of a multipart/form-data body, of which head is the beginning; empty: none there.
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
			return "" // the beginning ends within it
		}
		return strings.TrimSpace(string(name))
	}
}
