package client

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/quotad/quotad/rpc/signals"
)

// ProviderOption changes how calls of one provider are governed.
type ProviderOption func(*upstream)

// upstream is one API that a Transport governs.
type upstream struct {
	// name is the provider's name; prefix begins the names of its quotas.
	name, prefix string
	// hosts are the patterns of its hosts.
	hosts   []string
	dialect signals.Dialect
	aliases []alias
	match   func(*upstream, *http.Request) Call
}

// alias names the model whose quotas the matching models draw on.
type alias struct{ pattern, name string }

// Hosts sets the provider's hosts, instead of the default ones: an Enterprise server's, or a proxy's. A pattern has the form of
// path.Match, such as *.corp.example; with a port it matches that port only. "*" is any host. Answers of other hosts, such as the
// target of a redirect, change nothing in the provider's quotas.
func Hosts(patterns ...string) ProviderOption {
	return func(p *upstream) { p.hosts = slices.Clone(patterns) }
}

// Prefix sets the beginning of the names of the provider's quotas: openai-prod instead of openai.
func Prefix(prefix string) ProviderOption { return func(p *upstream) { p.prefix = prefix } }

// Alias makes models that match a pattern, in the form of path.Match, draw on the quotas of another model's name. Use it for models
// that share one limit, such as the dated names of one, or with * for one quota for all. The first match counts.
func Alias(pattern, model string) ProviderOption {
	return func(p *upstream) { p.aliases = append(p.aliases, alias{pattern, model}) }
}

// govern returns the option that adds a provider.
func govern(p *upstream, options []ProviderOption) TransportOption {
	added := p.with(options)
	return func(s *transportSettings) { s.providers = append(s.providers, added) }
}

// with returns a copy of the provider with options applied.
func (p *upstream) with(options []ProviderOption) *upstream {
	changed := *p
	changed.prefix = p.name
	for _, option := range options {
		option(&changed)
	}
	return &changed
}

// call returns what a request draws on.
func (p *upstream) call(request *http.Request) Call {
	call := p.match(p, request)
	call.Prefix, call.Dialect = p.prefix, p.dialect
	return call
}

// takes reports whether a request goes to one of the provider's hosts.
func (p *upstream) takes(request *http.Request) bool {
	if request.URL == nil {
		return false
	}
	host := strings.TrimSuffix(strings.ToLower(request.URL.Hostname()), ".")
	return slices.ContainsFunc(p.hosts, func(pattern string) bool {
		pattern = strings.ToLower(pattern)
		name := host
		if strings.Contains(pattern, ":") {
			name = strings.ToLower(request.URL.Host)
		}
		return fits(pattern, name)
	})
}

// fits reports whether a name matches a pattern of path.Match in which a * also matches slashes.
func fits(pattern, name string) bool {
	const slash = "\x00"
	fits, err := path.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(name, "/", slash))
	return fits && err == nil
}

// model returns the name under which a model has its quotas.
func (p *upstream) model(model string) string {
	for _, a := range p.aliases {
		if fits(a.pattern, model) {
			return a.name
		}
	}
	return model
}
