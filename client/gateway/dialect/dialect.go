// Package dialect has the parts of providers' APIs that a proxy needs: the form of a call at a path, the draws of calls of GitHub's
// API, and the form of refusals. It is pure: no network, no clock.
package dialect

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

// Name is a dialect, by its name in configurations.
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

// Operation is the kind of a call, by its method and path.
type Operation struct {
	// Dialect is the form of the call and of its refusals: that of the upstream, or another one that it supports at this path.
	Dialect Name
	estimate.Route
}

// Generates reports whether the call draws on the limits of a model.
func (o Operation) Generates() bool { return o.Operation != estimate.Other }

// Signals returns the dialect for reading answers.
func (o Operation) Signals() signals.Dialect {
	if d, err := signals.DialectNamed(string(o.Dialect)); err == nil {
		return d
	}
	return signals.Generic
}

// Operation returns the kind of a call. path is escaped, without the query.
func (n Name) Operation(method, path string) Operation {
	op := Operation{Dialect: n}
	if n == GitHub || n == Generic {
		return op
	}
	path = estimate.CanonicalPath(path) // providers read all spellings of a path alike
	plain, err := url.PathUnescape(path)
	if err != nil {
		return op
	}
	segments := estimate.Segments(plain)
	op.Dialect = n.spokenAt(segments)
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete:
		return op
	}
	at := &url.URL{Path: plain, RawPath: path}
	if op.Route = estimate.RouteOf(op.Signals(), at); op.Generates() {
		return op
	}
	// Many providers also accept calls in OpenAI's and Anthropic's form, at these paths.
	for _, other := range []Name{OpenAI, Anthropic} {
		alike := Operation{Dialect: other}
		alike.Route = estimate.RouteOf(alike.Signals(), at)
		if alike.Generates() && (other != Anthropic || isMessages(segments)) {
			return alike
		}
	}
	return op
}

// spokenAt returns a provider's dialect at a path: some have the whole API of another provider below its name.
func (n Name) spokenAt(segments []string) Name {
	for _, segment := range segments {
		switch {
		case strings.EqualFold(segment, "openai") && (n == Gemini || n == Bedrock):
			return OpenAI
		case strings.EqualFold(segment, "anthropic") && (n == Azure || n == Bedrock):
			return Anthropic
		}
	}
	return n
}

// isMessages reports whether a path is that of Anthropic's messages; those of a thread are OpenAI's, and generate nothing.
func isMessages(segments []string) bool {
	last := len(segments) - 1
	return last >= 0 && strings.EqualFold(segments[last], "messages") && (last == 0 || strings.EqualFold(segments[last-1], "v1"))
}

// Rewrite maps a path to the provider's own. Clients that treat the gateway as a GitHub Enterprise server put their calls below /api/v3
// and /api/graphql.
func (n Name) Rewrite(path string) string {
	if n != GitHub {
		return path
	}
	if rest, found := strings.CutPrefix(path, "/api/v3"); found && (rest == "" || rest[0] == '/') {
		return rest
	}
	if path == "/api/graphql" {
		return "/graphql"
	}
	return path
}
