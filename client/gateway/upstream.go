package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/keys"
)

// upstream is one configured provider.
type upstream struct {
	name   string
	config config.Upstream
	base   *url.URL
	// apart are the bases of hosts that are served at a separate base.
	apart   map[string]*url.URL
	dialect dialect.Name
	// transport sends to the provider; own is the same if this gateway made it.
	transport http.RoundTripper
	own       *http.Transport
	// keys are injected; nil: callers' own credentials pass.
	keys *keys.Set
	// affinity outlives a reload: a call that continues an answer never moves.
	affinity *affinity
	// open bounds the calls that pass while the cluster is away; nil: none do.
	open *failOpen
}

func newUpstream(name string, conf config.Upstream, transport http.RoundTripper, logger *slog.Logger) (*upstream, error) {
	base, err := parseBase(conf.Base)
	if err != nil {
		return nil, err
	}
	apart := map[string]*url.URL{}
	for _, host := range conf.Hosts {
		if its := conf.BaseOf(host); its != conf.Base {
			if apart[host], err = parseBase(its); err != nil {
				return nil, err
			}
		}
	}
	u := &upstream{
		name: name, config: conf, base: base, apart: apart, dialect: dialect.Name(conf.Dialect), transport: transport,
		open: newFailOpen(conf.FailOpen), affinity: &affinity{},
	}
	if conf.Auth == "inject" {
		if u.keys, err = keys.Load(conf, logger); err != nil {
			return nil, fmt.Errorf("upstreams.%s: %w", name, err)
		}
	}
	if transport == nil {
		u.own = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialUpstream,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: conf.FirstByte,
			MaxIdleConnsPerHost:   100,
			IdleConnTimeout:       90 * time.Second,
			ForceAttemptHTTP2:     true,
			HTTP2:                 pings(),
			// The client gets the answer in the provider's encoding.
			DisableCompression: true,
		}
		u.transport = u.own
	}
	return u, nil
}

// pings makes a silent connection check that its peer lives: a stream is silent for minutes while a model reasons, and on a dead
// connection until TCP times out.
func pings() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}
}

func (u *upstream) close() {
	if u.own != nil {
		u.own.CloseIdleConnections()
	}
}

func parseBase(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	base.Path, base.RawPath = strings.TrimRight(base.Path, "/"), strings.TrimRight(base.RawPath, "/")
	return base, nil
}

// url returns the provider's URL of an escaped path and a query.
func (r route) url(path, query string) *url.URL {
	out := *cmp.Or(r.apart, r.upstream.base)
	raw := out.EscapedPath() + path
	plain, err := url.PathUnescape(raw)
	if err != nil {
		plain = raw // the server has refused such paths already
	}
	out.Path, out.RawPath, out.RawQuery = plain, raw, query
	return &out
}

// isDial reports whether an error means that no connection was made, so that nothing was sent.
func isDial(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}
