package gateway

import (
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// route is the destination of a request.
type route struct {
	upstream *upstream
	// apart is the base of the requested host, if it differs from the upstream's; nil: it does not.
	apart *url.URL
	// path is the received path below the upstream's base, escaped.
	path string
	// prefix is the path before it, which rebased URLs of the answer get. host: the Host header selected the upstream, so URLs stay
	// unchanged.
	prefix string
	host   bool
	// holder is <holder>[~class] of /as/, escaped.
	holder string
	// own is a path of the gateway itself, such as take; empty: it is a call to a provider.
	own string
}

// route determines the destination of a request; ok is false if there is none.
func (s *state) route(r *http.Request) (out route, ok bool) {
	path := r.URL.EscapedPath()
	if u := s.hosts[hostOf(r.Host)]; u != nil {
		return route{upstream: u, apart: u.apart[hostOf(r.Host)], path: path, host: true}, true
	}
	rest := path
	if after, named := strings.CutPrefix(rest, "/as/"); named {
		out.holder, rest, _ = strings.Cut(after, "/")
		if out.holder == "" {
			return out, false
		}
		rest = "/" + rest
		out.prefix = "/as/" + out.holder
	}
	name, after, slash := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if u := s.upstreams[name]; u != nil {
		out.upstream, out.prefix = u, out.prefix+"/"+name
		if slash {
			out.path = "/" + after
		}
		return out, true
	}
	switch {
	case slices.Contains(ownPaths, name) && !slash || rest == "/take/settle" || strings.HasPrefix(name, "quota.v1."):
		out.own = strings.TrimPrefix(rest, "/")
		return out, true
	case s.root != nil:
		out.upstream, out.path = s.root, rest
		return out, true
	}
	return out, false
}

// prefixes lists the existing paths, for callers with a wrong one.
func (s *state) prefixes() string {
	names := slices.Sorted(maps.Keys(s.upstreams))
	for i, name := range names {
		names[i] = "/" + name
	}
	return strings.Join(names, ", ")
}

// served lists the hosts of upstreams, for callers with a wrong one.
func (s *state) served() string { return strings.Join(slices.Sorted(maps.Keys(s.hosts)), ", ") }

// hostOf returns the host of a Host header in lower case, without its port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// dotted reports whether a path has a segment . or .., plain or escaped, also after an escaped slash or a backslash.
func dotted(escaped string) bool {
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		return true
	}
	for _, path := range []string{escaped, plain} {
		for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
			if segment == "." || segment == ".." {
				return true
			}
		}
	}
	return false
}
