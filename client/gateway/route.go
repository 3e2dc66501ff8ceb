package gateway

import (
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// route is where a request goes.
type route struct {
	upstream *upstream
	// apart is the base of the host that was asked, where it is not the upstream's; nil: it is.
	apart *url.URL
	// path is escaped, from the upstream's base on, as it was received.
	path string
	// prefix is what stood before it, on which the answer's URLs are rebased; host: the upstream was chosen by the Host header, so
	// they stay as they are.
	prefix string
	host   bool
	// holder is <holder>[~class] of /as/, escaped.
	holder string
	// own is the gateway's own path, such as take; empty: it is a call to a provider.
	own string
}

// route finds where a request goes; ok is false where nowhere.
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

// prefixes are the paths that there are, for callers that mistook one.
func (s *state) prefixes() string {
	names := slices.Sorted(maps.Keys(s.upstreams))
	for i, name := range names {
		names[i] = "/" + name
	}
	return strings.Join(names, ", ")
}

// served are the hosts that lead to upstreams, for callers that mistook one.
func (s *state) served() string { return strings.Join(slices.Sorted(maps.Keys(s.hosts)), ", ") }

// hostOf returns the host of a Host header in lower case, without its port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// dotted reports whether a path has a segment . or .., plain or escaped, also behind an escaped slash or a backslash.
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
