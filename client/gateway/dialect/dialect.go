// Package dialect knows how providers speak: which of their paths generate something and where the model stands, what a call of
// GitHub's API draws on, and the form of their refusals. It is pure: no network, no clock.
package dialect

import (
	"net/http"
	"net/url"
	"strings"
)

// Name is a dialect, by the name that configurations use.
type Name string

// The dialects.
const (
	Anthropic Name = "anthropic"
	Azure     Name = "azure"
	Bedrock   Name = "bedrock"
	Codex     Name = "codex"
	Gemini    Name = "gemini"
	Generic   Name = "generic"
	GitHub    Name = "github"
	OpenAI    Name = "openai"
)

// Operation is what a call does, by its method and path.
type Operation struct {
	// Dialect is the form of the call and of its refusals: that of the upstream, or another one that it speaks at this path.
	Dialect Name
	// Name is what the call does: chat, responses, messages, embeddings; empty: nothing is generated.
	Name string
	// Model is the model in the path; empty: it is in the body, if anywhere.
	Model string
	// Stream: the path asks for a stream.
	Stream bool
}

// Generates reports whether the call draws on the limits of a model.
func (o Operation) Generates() bool { return o.Name != "" }

// Operation returns what a call does. path is escaped, without the query.
func (n Name) Operation(method, path string) Operation {
	op := Operation{Dialect: n}
	if method != http.MethodPost {
		return op
	}
	switch n {
	case OpenAI, Codex:
		op.Name = openAIOperation(path)
	case Azure:
		op.Name, op.Model = openAIOperation(path), unescaped(segmentAfter(path, "deployments"))
	case Anthropic:
		op.Name = anthropicOperation(path)
	case Gemini:
		return geminiOperation(path)
	case Bedrock:
		return bedrockOperation(path)
	case GitHub, Generic:
	}
	return op
}

// openAIPaths are the ends of the paths that generate. A longer end stands before a shorter one.
var openAIPaths = []struct{ end, name string }{
	{"/chat/completions", "chat"},
	{"/responses/compact", "responses"},
	{"/responses", "responses"},
	{"/completions", "completions"},
	{"/embeddings", "embeddings"},
	{"/images/generations", "images"},
	{"/images/edits", "images"},
	{"/images/variations", "images"},
	{"/audio/transcriptions", "transcriptions"},
	{"/audio/translations", "transcriptions"},
	{"/audio/speech", "speech"},
}

func openAIOperation(path string) string {
	for _, known := range openAIPaths {
		if strings.HasSuffix(path, known.end) {
			return known.name
		}
	}
	return ""
}

func anthropicOperation(path string) string {
	switch {
	case strings.HasSuffix(path, "/messages"):
		return "messages"
	case strings.HasSuffix(path, "/v1/complete"):
		return "completions"
	}
	return ""
}

// geminiMethods are the methods that generate, in lower case.
var geminiMethods = map[string]Operation{
	"generatecontent":       {Name: "generateContent"},
	"streamgeneratecontent": {Name: "generateContent", Stream: true},
	"generateanswer":        {Name: "generateContent"},
	"embedcontent":          {Name: "embeddings"},
	"batchembedcontents":    {Name: "embeddings"},
	"predict":               {Name: "predict"},
	"predictlongrunning":    {Name: "predict"},
}

func geminiOperation(path string) Operation {
	if _, rest, found := strings.Cut(path, "/openai/"); found {
		return Operation{Dialect: OpenAI, Name: openAIOperation("/" + rest)}
	}
	segment := path[strings.LastIndexByte(path, '/')+1:]
	model, method, _ := strings.Cut(unescaped(segment), ":")
	op := geminiMethods[strings.ToLower(method)]
	op.Dialect = Gemini
	if op.Generates() {
		op.Model = model
	}
	return op
}

var bedrockMethods = map[string]Operation{
	"invoke":                      {Name: "invoke"},
	"invoke-with-response-stream": {Name: "invoke", Stream: true},
	"converse":                    {Name: "converse"},
	"converse-stream":             {Name: "converse", Stream: true},
}

func bedrockOperation(path string) Operation {
	// The model may be an ARN whose slashes are escaped or not: what lies between /model/ and the last segment.
	_, rest, _ := strings.Cut(path, "/model/")
	last := strings.LastIndexByte(rest, '/')
	if last < 1 {
		return Operation{Dialect: Bedrock}
	}
	op := bedrockMethods[rest[last+1:]]
	op.Dialect = Bedrock
	if op.Generates() {
		op.Model = unescaped(rest[:last])
	}
	return op
}

// segmentAfter returns the segment of a path that follows one of a name; empty: there is none.
func segmentAfter(path, name string) string {
	_, rest, _ := strings.Cut(path, "/"+name+"/")
	segment, _, _ := strings.Cut(rest, "/")
	return segment
}

func unescaped(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

// Rewrite maps a path to the provider's own. Clients that take the gateway for a GitHub Enterprise server put their calls below
// /api/v3 and /api/graphql.
func (n Name) Rewrite(path string) string {
	if n != GitHub {
		return path
	}
	if rest, found := strings.CutPrefix(path, "/api/v3"); found && (rest == "" || rest[0] == '/') {
		return rest
	}
	if rest, found := strings.CutPrefix(path, "/api/graphql"); found && rest == "" {
		return "/graphql"
	}
	return path
}
