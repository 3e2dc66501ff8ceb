package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// connection describes the connection of a request.
type connection struct {
	// unix: it came over the unix socket, whose file mode controls who may use it.
	unix bool
	// secure: it uses TLS.
	secure bool
	// peer names the process at its other end.
	peer string
	// head records the raw head of the current request; nil: it is not recorded.
	head *headConn
}

type connectionKey struct{}

func connectionOf(ctx context.Context) connection {
	c, _ := ctx.Value(connectionKey{}).(connection)
	return c
}

// guard refuses requests that no proper client sends: from web pages, to other hosts, or in forms that proxies interpret differently.
// Nothing has been sent anywhere at that point.
func (s *state) guard(r *http.Request, path string) (refusal dialect.Refusal, bad bool) {
	no := func(status int, format string, values ...any) (dialect.Refusal, bool) {
		return dialect.Refusal{Status: status, Message: "quotad: " + fmt.Sprintf(format, values...)}, true
	}
	if head := connectionOf(r.Context()).head; head != nil && r.ProtoMajor == 1 {
		if wrong := head.wrong(); wrong != "" {
			return no(http.StatusBadRequest, "%s", wrong)
		}
	}
	switch {
	case r.Method == http.MethodTrace || r.Method == "TRACK":
		return no(http.StatusNotImplemented, "the method %s is not allowed: the provider would echo the request, including keys", r.Method)
	case r.Method != strings.ToUpper(r.Method):
		return no(http.StatusBadRequest, "the method %s must be in capitals", identity.Quote(r.Method))
	case r.Method == http.MethodConnect || r.URL.Host != "" || r.URL.Opaque != "":
		return no(http.StatusBadRequest, "the gateway is not a forward proxy: send the path only, such as /openai/v1/responses")
	case r.Host == "":
		return no(http.StatusBadRequest, "the Host header is missing")
	case dotted(path):
		return no(http.StatusBadRequest, "the path has a segment . or .., or is not percent-encoded")
	}
	for name, values := range r.Header {
		for _, value := range values {
			if strings.ContainsAny(value, "\r\n\x00") {
				return no(http.StatusBadRequest, "the header %s has a control character", identity.Quote(name))
			}
		}
	}
	host := hostOf(r.Host)
	known := config.IsLoopback(host) || slices.Contains(s.config.Hosts, host) || s.hosts[host] != nil || path == "/livez" || path == "/readyz"
	if connectionOf(r.Context()).unix {
		// Clients may use any host name for the socket. But a client that sends everything to it, such as gh, means the host that it
		// names: the path /openai/codex of github.com is not the upstream openai, which must not receive GitHub's token.
		if !known && strings.Contains(host, ".") {
			return no(http.StatusForbidden, "the host %s is not served here; served: %s. Send calls of other hosts without this socket "+
				"(gh: gh config set http_unix_socket \"\")", identity.Quote(host), cmp.Or(s.served(), "none"))
		}
		return refusal, false
	}
	if !known && !isLocalEnd(r.Context(), host) {
		return no(http.StatusForbidden, "the Host %s is not this gateway's: name it in hosts", identity.Quote(host))
	}
	if origin := r.Header.Get("Origin"); origin != "" && !slices.Contains(s.config.Origins, origin) {
		return no(http.StatusForbidden, "web pages of %s may not call this gateway: name the page in origins", identity.Quote(origin))
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "none" && site != "same-origin" && r.Header.Get("Origin") == "" {
		return no(http.StatusForbidden, "a web page of another site may not call this gateway")
	}
	return refusal, false
}

// isLocalEnd reports whether a host is the literal address at which the request's connection arrived: no name of a web page can stand
// for it.
func isLocalEnd(ctx context.Context, host string) bool {
	local, ok := ctx.Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap() == local.AddrPort().Addr().Unmap().WithZone("")
}

// methodHeaders and methodParameters are where some servers look for another method than that of the request line. The parameters are
// those of Google's APIs, which also accept headers in the query.
var (
	methodHeaders    = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}
	methodParameters = []string{"$httpMethod", "$httpHeaders"}
)

// otherMethod returns where a request tells its provider to use another method; empty: nowhere. A call's draws depend on its method.
func otherMethod(r *http.Request) string {
	for _, name := range methodHeaders {
		for _, method := range r.Header[name] {
			if !strings.EqualFold(method, r.Method) {
				return "the header " + name
			}
		}
	}
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		name, _, _ := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(name)
		if err == nil && slices.ContainsFunc(methodParameters, func(known string) bool { return strings.EqualFold(known, plain) }) {
			return "the parameter " + plain
		}
	}
	return ""
}

// upgrade reports whether a request asks for a protocol other than HTTP, such as a WebSocket. It is refused with 426: only that answer
// makes agents fall back to HTTP at once. An offer of HTTP/2 (h2c), which curl --http2 and Java's client send with every request, is
// removed, and the request is served: a server may ignore the offer, and a provider must not see it.
func upgrade(r *http.Request) bool {
	for protocol := range strings.SplitSeq(strings.Join(r.Header.Values("Upgrade"), ","), ",") {
		if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.EqualFold(protocol, "h2c") {
			return true
		}
	}
	r.Header.Del("Upgrade")
	r.Header.Del("Http2-Settings")
	return r.Method == http.MethodConnect && r.ProtoMajor >= 2
}
