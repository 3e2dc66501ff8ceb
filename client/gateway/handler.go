package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// Handler returns the HTTP handler. Requests count as TCP requests, except those of Serve's own listeners.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// newID returns the id of a request.
func newID() string { return "qgw_" + rand.Text() }

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	patient := newPatientWriter(w, r, slowClient)
	defer patient.begin()
	w = patient
	var incoming *patientBody
	if r.Body != nil && r.Body != http.NoBody {
		// Use a copy: the server checks its own request's body for whether the client still waits for 100 Continue.
		r = r.WithContext(r.Context())
		incoming = &patientBody{ReadCloser: r.Body, control: patient.control, patience: slowBody}
		r.Body = incoming
	}
	r = g.traced(r)
	s := g.state.Load()
	c := &call{
		gateway: g, state: s, id: newID(), began: time.Now(), header: r.Header, query: r.URL.RawQuery, scheme: "http",
		clientHost: r.Host,
	}
	if r.ProtoMajor == 1 {
		c.incoming = incoming
	}
	if r.TLS != nil || connectionOf(r.Context()).secure {
		c.scheme = "https"
	}
	w.Header().Set("X-Quotad-Request-Id", c.id)
	if refusal, bad := s.guard(r, r.URL.EscapedPath()); bad {
		w.Header().Set("Connection", "close")
		c.refuse(w, refusal)
		return
	}
	to, ok := s.route(r)
	if !ok {
		c.refuse(w, dialect.Refusal{
			Status: http.StatusNotFound,
			Message: "quotad: no upstream at " + identity.Quote(r.URL.Path) + "; begin the path with one of " + s.prefixes() +
				" and continue it as at the provider",
		})
		return
	}
	c.route = to
	if to.own == "" {
		c.op = dialect.Operation{Dialect: to.upstream.dialect}
	}
	if upgrade(r) {
		w.Header().Set("Connection", "close")
		c.refuse(w, dialect.Refusal{
			Status:  http.StatusUpgradeRequired,
			Message: "quotad: WebSockets are not governed; use plain HTTP requests", Final: true,
		})
		return
	}
	if to.own != "" {
		g.serveOwn(w, r, c)
		return
	}
	if where := otherMethod(r); where != "" {
		c.refuse(w, dialect.Refusal{
			Status: http.StatusBadRequest, Message: "quotad: " + where + " asks for a different method: use that method", Final: true,
		})
		return
	}
	g.serveCall(w, r, c)
}

// tooManyWrong is for a peer that has presented too many wrong tokens.
var tooManyWrong = dialect.Refusal{
	Status: http.StatusTooManyRequests, Message: "quotad: too many wrong tokens; retry later",
	RetryAfter: time.Second,
}

// identify determines the caller of a request from a header. It returns a refusal if the caller may not use the name that it claims.
func (c *call) identify(r *http.Request, header http.Header) (dialect.Refusal, bool) {
	caller, err := c.state.resolver.Resolve(c.asked(r, header))
	c.caller = caller
	return c.deniedBy(r, err)
}

// admit checks the token of a request before reading more than its head.
func (c *call) admit(r *http.Request) (dialect.Refusal, bool) {
	return c.deniedBy(r, c.state.resolver.Admit(c.asked(r, r.Header)))
}

func (c *call) asked(r *http.Request, header http.Header) identity.Request {
	verb := identity.Use
	if c.own == "report" {
		verb = identity.Report
	}
	return identity.Request{
		Header: header, RawQuery: r.URL.RawQuery, PathHolder: c.holder, Peer: connectionOf(r.Context()).peer, At: c.began, Verb: verb,
	}
}

func (c *call) deniedBy(r *http.Request, err error) (dialect.Refusal, bool) {
	var denied *identity.DeniedError
	if !errors.As(err, &denied) {
		return dialect.Refusal{}, false
	}
	// Wrong tokens of other callers never lock out a caller with a valid one: callers behind one address share it.
	if denied.Status == http.StatusUnauthorized && c.gateway.wrong.tooMany(hostOf(r.RemoteAddr)) {
		return tooManyWrong, true
	}
	return dialect.Refusal{Status: denied.Status, Message: denied.Message, Final: true}, true
}

// enter counts a call as in flight until leave; false: it was refused, since there are too many calls, or the gateway is stopping.
func (g *Gateway) enter(w http.ResponseWriter, c *call) bool {
	if n := g.calls.Add(1); !g.stopping.Load() && n <= int64(c.state.config.Limits.Calls) {
		return true
	}
	g.leave()
	refusal, _ := c.refusalOf(errStopping)
	if !g.stopping.Load() {
		refusal.Reason, refusal.Message = "TOO_MANY_CALLS", "quotad: too many calls are in flight (limits.calls)"
	}
	c.refuse(w, refusal)
	return false
}

func (g *Gateway) leave() { g.calls.Add(-1) }

// serveCall serves a call to a provider.
func (g *Gateway) serveCall(w http.ResponseWriter, r *http.Request, c *call) {
	if !g.enter(w, c) {
		g.finished(c)
		return
	}
	defer g.leave()
	defer func() { g.finished(c) }()
	if refusal, denied := c.identify(r, r.Header); denied {
		c.refuse(w, refusal)
		return
	}
	if c.upstream.keys != nil && !g.provenCaller(r, c) {
		c.refuse(w, dialect.Refusal{Status: http.StatusForbidden, Final: true, Message: "quotad: the keys of the upstream " + c.upstream.name +
			" are only for callers with a token of this gateway, or on its unix socket"})
		return
	}
	c.path = c.upstream.dialect.Rewrite(c.path)
	c.op = c.upstream.dialect.Operation(r.Method, c.path)
	defer func() {
		if c.release != nil {
			c.release()
		}
	}()
	if err := c.readBody(r); err != nil {
		c.refuse(w, bodyRefusal(err))
		return
	}
	c.until = c.began.Add(c.state.waitBound(r.Header, c.caller.Class))
	refusal, refused := c.prepare(r)
	r = c.traced(r)
	if refused {
		c.refuse(w, refusal)
		return
	}
	proxy.ServeHTTP(newFinalWriter(w, r), r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	if r.ProtoMajor == 1 {
		// The end of a short answer leaves before the call is logged. Over HTTP/2 this would be a frame more.
		_ = http.NewResponseController(w).Flush()
	}
}

// provenCaller reports whether a caller may use injected keys: it presented a token, it used the unix socket, whose file mode controls
// access, or everyone is trusted. A configuration that would inject keys for other callers is rejected; for a program that serves
// Handler at an address outside the configuration, this check is the only one.
func (g *Gateway) provenCaller(r *http.Request, c *call) bool {
	return g.options.Tokens != nil || c.state.config.Trust || connectionOf(r.Context()).unix
}

// proxy forwards calls. It removes hop-by-hop headers, passes trailers and 1xx answers, and breaks the client's connection when the
// provider's breaks. It flushes each write of an answer of unknown length or of a stream of events at once, of others after flushWithin.
var proxy = &httputil.ReverseProxy{
	Rewrite:        rewrite,
	Transport:      sender{},
	FlushInterval:  flushWithin,
	ModifyResponse: modifyAnswer,
	ErrorHandler:   answerError,
	ErrorLog:       discardLog,
	BufferPool:     &copyBuffers{},
}

// flushWithin is how long the beginning of an answer of known length waits for the rest. A short answer is complete by then, so that its
// status line and its body leave in one write.
const flushWithin = time.Millisecond

// copyBuffers are the buffers through which answers pass.
type copyBuffers struct{ pool sync.Pool }

// copySize is the size of a buffer, that of io.Copy.
const copySize = 32 << 10

// Get implements httputil.BufferPool.
func (b *copyBuffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[copySize]byte); ok {
		return buffer[:]
	}
	return make([]byte, copySize)
}

// Put implements httputil.BufferPool.
func (b *copyBuffers) Put(buffer []byte) { b.pool.Put((*[copySize]byte)(buffer)) }

// rewrite addresses a request to its upstream. It adds and removes a fixed list of fields.
func rewrite(p *httputil.ProxyRequest) {
	c := callOf(p.In.Context())
	out := p.Out
	out.URL = c.url(c.path, identity.StripQueryTokens(c.query))
	out.Host = out.URL.Host
	identity.StripTokens(out.Header)
	if len(c.keys) > 0 {
		identity.StripCredentials(out.Header) // each attempt sets its own key
		out.URL.RawQuery = identity.StripQueryKeys(out.URL.RawQuery)
	}
	switch {
	case c.injected:
		out.Header.Set("Accept-Encoding", "identity") // an event of the answer is withheld
	case c.op.Generates(), len(c.draws) > 0:
		reduceEncodings(out.Header)
	}
}

// reduceEncodings leaves only gzip of the encodings that the client accepts: the gateway has to read a copy of the answer.
func reduceEncodings(header http.Header) {
	accepted := strings.ToLower(strings.Join(header.Values("Accept-Encoding"), ","))
	for part := range strings.SplitSeq(accepted, ",") {
		coding, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if (coding == "gzip" || coding == "*") && strings.ReplaceAll(params, " ", "") != "q=0" {
			header.Set("Accept-Encoding", "gzip")
			return
		}
	}
	header.Set("Accept-Encoding", "identity")
}

// modifyAnswer makes the necessary changes to an answer's headers.
func modifyAnswer(response *http.Response) error {
	c := callOf(response.Request.Context())
	c.record(func(o *outcome) {
		o.code, o.overhead = response.StatusCode, time.Since(o.received)-o.waited-o.outside
	})
	c.rebase(response.Header)
	if c.ungoverned == "fail_open" {
		response.Header.Set("X-Quotad", "open")
	}
	if c.insteadOf != "" {
		response.Header.Set(insteadOfHeader, c.insteadOf)
	}
	if c.header.Get("X-Quotad-Explain") == "1" {
		response.Header.Add("X-Quotad", c.explainHeader())
	}
	return nil
}

// answerError answers a call that got no answer from its provider.
func answerError(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	refusal, gone := c.refusalOf(err)
	if gone {
		c.record(func(o *outcome) { o.code, o.end = statusGone, endGone })
		return
	}
	c.refuse(w, refusal)
}
