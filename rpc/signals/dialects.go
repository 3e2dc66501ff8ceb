package signals

import (
	"fmt"
	"net/http"
	"strings"
)

// Auto is the dialect that detects, response by response, which of the others a provider speaks. It recognizes them by headers and bodies
// that only they have, and uses Generic for the rest.
var Auto = Dialect{name: "auto", detect: detect}

// Dialects returns all dialects, the default first.
func Dialects() []Dialect {
	return []Dialect{Auto, Anthropic, Azure, Bedrock, Codex, Gemini, Generic, GitHub, OpenAI}
}

// DialectError says that a dialect's name is unknown.
type DialectError struct{ Name string }

// Error names the known dialects.
func (e *DialectError) Error() string {
	var names []string
	for _, d := range Dialects() {
		names = append(names, d.name)
	}
	return fmt.Sprintf("signals: there is no dialect %q; known: %s", e.Name, strings.Join(names, ", "))
}

// DialectNamed returns the dialect with a name, for configurations and flags. The error is a *DialectError.
func DialectNamed(name string) (Dialect, error) {
	for _, d := range Dialects() {
		if d.name == name {
			return d, nil
		}
	}
	return Dialect{}, &DialectError{Name: name}
}

// resolve returns the dialect that reads a response: d itself, or the one that it detects.
func (d Dialect) resolve(r *response) Dialect {
	if d.detect == nil {
		return d
	}
	return d.detect(r)
}

// marks are headers that only one provider's responses have. The more specific ones are first: Azure and Codex use OpenAI's headers as
// well.
var marks = []struct {
	dialect *Dialect
	headers []string
}{
	{&GitHub, []string{"X-Github-Request-Id", "X-Ratelimit-Resource"}},
	{&Codex, []string{"X-Codex-Primary-Used-Percent", "X-Codex-Active-Limit"}},
	{&Azure, []string{"Apim-Request-Id", "X-Ms-Region", "Azureml-Model-Session"}},
	{&OpenAI, []string{
		"Openai-Version", "Openai-Organization", "Openai-Processing-Ms", "X-Ratelimit-Limit-Requests", "X-Ratelimit-Limit-Tokens",
		"X-Ratelimit-Remaining-Requests", "X-Ratelimit-Remaining-Tokens",
	}},
	{&Bedrock, []string{"X-Amzn-Errortype", "X-Amzn-Requestid"}},
}

// detect returns the dialect of a response.
func detect(r *response) Dialect {
	for name := range r.header {
		if strings.HasPrefix(name, "Anthropic-") {
			return Anthropic
		}
	}
	for _, mark := range marks {
		for _, name := range mark.headers {
			if len(r.header[name]) > 0 {
				return *mark.dialect
			}
		}
	}
	return detectByBody(r)
}

// detectByBody recognizes an error by its shape.
func detectByBody(r *response) Dialect {
	if r.status < http.StatusBadRequest {
		return Generic
	}
	if said, ok := geminiSaid(r.body); ok && said.Status != "" {
		return Gemini
	}
	var shape struct {
		Type  string `json:"type"`
		Error struct {
			Type string `json:"type"`
			Code any    `json:"code"`
		} `json:"error"`
	}
	_ = readJSON(r.body, &shape)
	switch {
	case shape.Type == "error" && shape.Error.Type != "":
		return Anthropic
	case strings.HasPrefix(shape.Error.Type, "usage_"):
		return Codex
	case shape.Error.Type != "" || shape.Error.Code != nil:
		return OpenAI
	}
	return Generic
}
