// Package dialect knows how providers speak, as far as a proxy has to: which form a call at a path has, what a call of GitHub's
// API draws on, and the form of refusals. It is pure: no network, no clock.
package dialect

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
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
	estimate.Route
}

// Generates reports whether the call draws on the limits of a model.
func (o Operation) Generates() bool { return o.Operation != estimate.Other }

// Signals returns the dialect in which answers are read.
func (o Operation) Signals() signals.Dialect {
	if d, err := signals.DialectNamed(string(o.Dialect)); err == nil {
		return d
	}
	return signals.Generic
}

// Operation returns what a call does. path is escaped, without the query.
func (n Name) Operation(method, path string) Operation {
	path = estimate.CanonicalPath(path) // providers read each spelling of a path alike
	op := Operation{Dialect: n}
	if n == Gemini && strings.Contains(path, "/openai/") {
		op.Dialect = OpenAI // the compatible paths speak OpenAI's dialect
	}
	plain, err := url.PathUnescape(path)
	if method != http.MethodPost || err != nil || n == GitHub || n == Generic || strings.HasSuffix(path, "/moderations") {
		return op
	}
	op.Route = estimate.RouteOf(Operation{Dialect: n}.Signals(), &url.URL{Path: plain, RawPath: path})
	return op
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
	if path == "/api/graphql" {
		return "/graphql"
	}
	return path
}
