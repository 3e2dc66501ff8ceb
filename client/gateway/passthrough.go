package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/quotad/quotad/client/gateway/dialect"
)

// maxAPI is the largest request of the cluster's API that is passed on, in bytes: that of the API itself.
const maxAPI = 4 << 20

// serveAPI passes a call of quota.v1.* to the cluster, as it came. A caller's own token goes with it. Where this gateway asks for no
// tokens, the gateway's own stands in for it, which covers the holders of this machine alone.
func (g *Gateway) serveAPI(w http.ResponseWriter, r *http.Request, c *call) {
	// What the caller sent decides: the proxy removes the headers that Connection names before it rewrites the request.
	nothing := r.Header.Get("Authorization") == ""
	if g.options.Tokens != nil && nothing {
		c.refuse(w, dialect.Refusal{Status: http.StatusUnauthorized, Message: "quotad: send a token of the cluster as Authorization: Bearer"})
		return
	}
	keep := accountant{gateway: g, most: c.state.config.Limits.Memory}
	defer keep.release()
	var body bytes.Buffer
	switch n, err := io.Copy(io.MultiWriter(&keep, &body), io.LimitReader(r.Body, maxAPI+1)); {
	case err != nil:
		c.refuse(w, bodyRefusal(err))
		return
	case n > maxAPI:
		c.refuse(w, dialect.Refusal{Status: http.StatusRequestEntityTooLarge, Message: "quotad: a request of the API has at most 4 MiB"})
		return
	}
	passes := httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: discardLog, Transport: apiSender{g.cluster, body.Bytes()},
		Rewrite: func(p *httputil.ProxyRequest) {
			if g.options.Tokens == nil && nothing && g.cluster.token != "" {
				p.Out.Header.Set("Authorization", "Bearer "+g.cluster.token)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if sent, ok := errors.AsType[*upstreamError](err); ok {
				c.refuse(w, dialect.Refusal{Status: http.StatusBadGateway, Message: fmt.Sprintf(
					"quotad: a node did not answer, so the outcome is unknown (%v); send it again with the same request id", sent)})
				return
			}
			c.refuse(w, c.awayRefusal(err))
		},
	}
	passes.ServeHTTP(newFinalWriter(w, r), r)
}

// apiSender asks the nodes one after the other: one that is not reached took nothing. A node that does not lead forwards the call.
type apiSender struct {
	nodes *nodes
	body  []byte
}

// RoundTrip implements http.RoundTripper.
func (s apiSender) RoundTrip(request *http.Request) (*http.Response, error) {
	var failed error
	for _, address := range s.nodes.addresses {
		to, err := url.Parse(base(address))
		if err != nil {
			return nil, err
		}
		attempt := request.Clone(request.Context())
		attempt.URL.Scheme, attempt.URL.Host, attempt.Host = to.Scheme, to.Host, to.Host
		attempt.URL.Path = strings.TrimRight(to.Path, "/") + request.URL.Path
		attempt.Body, attempt.ContentLength = io.NopCloser(bytes.NewReader(s.body)), int64(len(s.body))
		response, err := s.nodes.transport.RoundTrip(attempt)
		if err == nil {
			return response, nil
		}
		if !isDial(err) {
			return nil, &upstreamError{err: err, sent: true}
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}
