package gatewayfile

import (
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/client/gateway/config"
)

func (r *reader) upstream(n *yaml.Node, what string) (u config.Upstream) {
	text := func(to *string, name string) func(*yaml.Node) {
		return func(n *yaml.Node) { *to = r.Text(n, what+"."+name) }
	}
	choice := func(to *string, name string, choices ...string) func(*yaml.Node) {
		return func(n *yaml.Node) { *to = r.Choice(n, what+"."+name, choices...) }
	}
	keys := map[string]func(*yaml.Node){
		"dialect":       choice(&u.Dialect, "dialect", config.Dialects...),
		"base":          func(n *yaml.Node) { u.Base = strings.TrimRight(r.Text(n, what+".base"), "/") },
		"plain":         func(n *yaml.Node) { u.Plain = r.Bool(n, what+".plain") },
		"quotas":        text(&u.Quotas, "quotas"),
		"auth":          choice(&u.Auth, "auth", "pass", "inject"),
		"keys":          func(n *yaml.Node) { u.Keys = r.keys(n, what+".keys") },
		"pool":          func(n *yaml.Node) { u.Pool = r.texts(n, what+".pool") },
		"parts":         func(n *yaml.Node) { u.Parts = r.texts(n, what+".parts") },
		"also":          func(n *yaml.Node) { u.Also = r.also(n, what+".also") },
		"secondary":     func(n *yaml.Node) { u.Secondary = r.Bool(n, what+".secondary") },
		"batch":         func(n *yaml.Node) { u.Batch = r.Bool(n, what+".batch") },
		"unknown":       choice(&u.Unknown, "unknown", "refuse", "observe"),
		"unpriced":      choice(&u.Unpriced, "unpriced", "refuse", "free"),
		"paths":         choice(&u.Paths, "paths", "pass", "refuse"),
		"fail_open":     func(n *yaml.Node) { u.FailOpen = r.failOpen(n, what+".fail_open") },
		"on_disconnect": choice(&u.OnDisconnect, "on_disconnect", "cancel", "drain"),
		"stream_usage":  choice(&u.StreamUsage, "stream_usage", "auto", "on", "off"),
		"overloaded":    func(n *yaml.Node) { u.Overloaded = r.retries(n, what+".overloaded") },
		"rules":         func(n *yaml.Node) { u.Rules = r.rules(n, what+".rules") },
		"hosts":         func(n *yaml.Node) { u.Hosts = r.texts(n, what+".hosts") },
		"first_byte":    func(n *yaml.Node) { u.FirstByte = r.Duration(n, what+".first_byte", time.Second, time.Hour) },
	}
	each(r.Mapping(n, what, upstreamKeys...), keys)
	return u
}

// upstreamKeys are the keys of an upstream, in the order of messages.
var upstreamKeys = []string{
	"dialect", "base", "plain", "quotas", "auth", "keys", "pool", "parts", "also", "secondary", "batch", "unknown", "unpriced", "paths",
	"fail_open", "on_disconnect", "stream_usage", "overloaded", "rules", "hosts", "first_byte",
}

func (r *reader) keys(n *yaml.Node, what string) []config.Key {
	var out []config.Key
	for _, element := range r.Sequence(n, what) {
		var k config.Key
		each(r.Mapping(element, what, "name", "from", "for", "quotas"), map[string]func(*yaml.Node){
			"name":   func(n *yaml.Node) { k.Name = r.Text(n, what+".name") },
			"from":   func(n *yaml.Node) { k.From = r.source(n, what+".from") },
			"for":    func(n *yaml.Node) { k.For = r.selector(n, what+".for") },
			"quotas": func(n *yaml.Node) { k.Quotas = r.Text(n, what+".quotas") },
		})
		out = append(out, k)
	}
	return out
}

func (r *reader) selector(n *yaml.Node, what string) (s config.Selector) {
	each(r.Mapping(n, what, "class", "holder"), map[string]func(*yaml.Node){
		"class":  func(n *yaml.Node) { s.Class = r.class(n, what+".class") },
		"holder": func(n *yaml.Node) { s.Holder = r.Text(n, what+".holder") },
	})
	return s
}

func (r *reader) also(n *yaml.Node, what string) []config.Also {
	var out []config.Also
	for _, element := range r.Sequence(n, what) {
		var a config.Also
		each(r.Mapping(element, what, "holder", "use"), map[string]func(*yaml.Node){
			"holder": func(n *yaml.Node) { a.Holder = r.Text(n, what+".holder") },
			"use": func(n *yaml.Node) {
				a.Use = map[string]string{}
				for quota, part := range r.Mapping(n, what+".use") {
					a.Use[quota] = r.Text(part, what+".use")
				}
			},
		})
		out = append(out, a)
	}
	return out
}

func (r *reader) rules(n *yaml.Node, what string) []config.Rule {
	var out []config.Rule
	for _, element := range r.Sequence(n, what) {
		var rule config.Rule
		each(r.Mapping(element, what, "method", "path", "use"), map[string]func(*yaml.Node){
			"method": func(n *yaml.Node) { rule.Method = r.Text(n, what+".method") },
			"path":   func(n *yaml.Node) { rule.Path = r.Text(n, what+".path") },
			"use": func(n *yaml.Node) {
				rule.Use = map[string]int64{}
				for quota, amount := range r.Mapping(n, what+".use") {
					rule.Use[quota] = r.Int(amount, what+".use", 1, 1<<53-1)
				}
			},
		})
		if rule.Path == "" {
			r.Fail(element, "such as /v2/*", "a rule needs a path")
		}
		out = append(out, rule)
	}
	return out
}

func (r *reader) retries(n *yaml.Node, what string) int {
	values := r.Mapping(n, what, "retries")
	if values["retries"] == nil {
		return 0
	}
	return int(r.Int(values["retries"], what+".retries", 0, 5))
}

// periods are the units of a rate's period.
var periods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

func (r *reader) failOpen(n *yaml.Node, what string) *config.FailOpen {
	f := &config.FailOpen{}
	each(r.Mapping(n, what, "rate", "for"), map[string]func(*yaml.Node){
		"rate": func(n *yaml.Node) {
			text := r.Text(n, what+".rate")
			count, unit, _ := strings.Cut(text, "/")
			number, err := strconv.Atoi(count)
			if err != nil || number < 1 || periods[unit] == 0 {
				r.Fail(n, "such as 2/s or 30/m", "%s.rate must be calls per time, not %q", what, text)
				return
			}
			f.Count, f.Per = number, periods[unit]
		},
		"for": func(n *yaml.Node) { f.For = r.Duration(n, what+".for", time.Second, longest) },
	})
	return f
}

func (r *reader) model(n *yaml.Node) (m config.Model) {
	each(r.Mapping(n, "models", "upstream", "match", "as", "fallback", "for"), map[string]func(*yaml.Node){
		"upstream": func(n *yaml.Node) { m.Upstream = r.Text(n, "models.upstream") },
		"match":    func(n *yaml.Node) { m.Match = r.Text(n, "models.match") },
		"as":       func(n *yaml.Node) { m.As = r.Text(n, "models.as") },
		"fallback": func(n *yaml.Node) { m.Fallback = r.texts(n, "models.fallback") },
		"for":      func(n *yaml.Node) { m.For = r.selector(n, "models.for") },
	})
	return m
}
