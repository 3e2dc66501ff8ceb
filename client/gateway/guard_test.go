package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// listen serves the fixture's gateway on its own listeners and returns the first address.
func (f *fixture) listen() string { return f.serve().Addresses()[0] }

// serve serves the fixture's gateway on its own listeners.
func (f *fixture) serve() *gateway.Server {
	f.tb.Helper()
	server, err := f.gateway.Listen(context.Background())
	if err != nil {
		f.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	f.tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.tb.Error(err)
		}
	})
	return server
}

// raw sends bytes over a new connection and returns the statuses of the answers to n requests.
func raw(tb testing.TB, network, address, request string, n int) []string {
	tb.Helper()
	connection, err := net.Dial(network, address)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if _, err := io.WriteString(connection, request); err != nil {
		tb.Fatal(err)
	}
	in := bufio.NewReader(connection)
	var out []string
	for range n {
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			break
		}
		_, _ = io.Copy(io.Discard, response.Body)
		out = append(out, fmt.Sprint(response.StatusCode))
	}
	return out
}

func TestA29_HostileRequestsAreRefusedAndNothingIsSent(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), func(c *config.Config) { c.Hosts = []string{"gateway.corp"} })
	address := f.listen()
	post := "POST /openai/v1/chat/completions HTTP/1.1\r\n"
	const body = `{"model":"gpt-5","messages":[]}`
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	for name, request := range map[string]string{
		"403 host of another":        post + "Host: evil.example\r\n" + length + "\r\n" + body,
		"403 host that begins right": post + "Host: 127.0.0.1.evil.example\r\n" + length + "\r\n" + body,
		"403 page of another site":   post + "Host: localhost\r\nOrigin: http://evil\r\n" + length + "\r\n" + body,
		"403 cross site":             post + "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n" + length + "\r\n" + body,
		"400 absolute form": "POST http://evil.example/openai/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + length +
			"\r\n" + body,
		"400 connect":            "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"400 two framings":       post + "Host: localhost\r\nTransfer-Encoding: chunked\r\n" + length + "\r\n0\r\n\r\n",
		"400 two lengths":        post + "Host: localhost\r\n" + length + length + "\r\n" + body,
		"400 folded header":      post + "Host: localhost\r\nX-A: b\r\n c\r\n" + length + "\r\n" + body,
		"400 dots":               "POST /openai/../anthropic/v1 HTTP/1.1\r\nHost: localhost\r\n" + length + "\r\n" + body,
		"400 escaped dots":       "POST /openai/v1/..%2f..%2fx HTTP/1.1\r\nHost: localhost\r\n" + length + "\r\n" + body,
		"400 escaped dots alone": "POST /openai/%2e%2e/x HTTP/1.1\r\nHost: localhost\r\n" + length + "\r\n" + body,
		"400 no host":            post + "Host:\r\n" + length + "\r\n" + body,
		"404 no upstream":        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + length + "\r\n" + body,
	} {
		t.Run(name, func(t *testing.T) {
			if got := raw(t, "tcp", address, request, 1); len(got) != 1 || got[0] != name[:3] {
				t.Errorf("got %v", got)
			}
		})
	}
	if n := len(f.provider.seen()); n != 0 {
		t.Fatalf("%d requests were sent", n)
	}
	for _, host := range []string{"localhost:7452", "127.0.0.7", "[::1]:1", "gateway.corp"} {
		if got := raw(t, "tcp", address, post+"Host: "+host+"\r\n"+length+"\r\n"+body, 1); len(got) != 1 || got[0] != "200" {
			t.Errorf("host %s: %v", host, got)
		}
	}
}

// TestMethod_RefusesTraceAndOverrides: a call is governed by its method, so nothing may tell the provider a different
// one.
func TestMethod_RefusesTraceAndOverrides(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		_ = r.Header.Write(w) // as TRACE does
	})
	upstreams := map[string]config.Upstream{"openai": injecting(t, p), "any": injecting(t, p)}
	conf := configOf(c, upstreams)
	conf.Trust = true
	f := startGateway(t, c, p, conf, gateway.Options{})
	const chat = "/openai/v1/chat/completions"
	for _, ask := range []struct {
		method, path, header, value string
		status                      int
	}{
		{http.MethodTrace, "/any/", "", "", 501},
		{http.MethodTrace, chat, "", "", 501},
		{http.MethodTrace, "/take", "", "", 501},
		{"TRACK", "/any/", "", "", 501},
		{"trace", "/any/", "", "", 400},
		{"post", chat, "", "", 400},
		{"Post", chat, "", "", 400},
		{"poSt", "/take?quota=openai/gpt-5/requests", "", "", 400},
		{http.MethodGet, chat, "X-HTTP-Method-Override", "POST", 400},
		{http.MethodPut, chat, "X-HTTP-Method-Override", "post", 400},
		{http.MethodGet, chat, "X-HTTP-Method", "POST", 400},
		{http.MethodGet, chat, "X-Method-Override", "POST", 400},
		{http.MethodGet, chat + "?a=b&$httpMethod=POST", "", "", 400},
		{http.MethodGet, chat + "?%24HTTPmethod=POST", "", "", 400},
		{http.MethodGet, chat + "?$httpHeaders=x", "", "", 400},
	} {
		got := f.do(ask.method, ask.path, `{"model":"gpt-5","messages":[]}`, ask.header, ask.value)
		if got.status != ask.status || strings.Contains(got.body, "sk-made-up") {
			t.Errorf("%s %s with %s %s: %d %s", ask.method, ask.path, ask.header, ask.value, got.status, got.body)
		}
	}
	if n := len(p.seen()); n != 0 {
		t.Fatalf("%d requests were sent", n)
	}
	if got := f.do(http.MethodPost, chat, `{"model":"gpt-5","messages":[]}`, "X-HTTP-Method-Override", "POST"); got.status != 200 {
		t.Errorf("the same method: %d %s", got.status, got.body)
	}
}

func TestHead_IsCheckedOnEachRequest(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	address := f.listen()
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	in := bufio.NewReader(connection)
	const body = `{"model":"gpt-5","messages":[]}`
	for i, want := range []int{200, 200, 400} {
		extra := ""
		if want == 400 {
			extra = "Transfer-Encoding: chunked\r\n"
		}
		_, _ = fmt.Fprintf(connection, "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s",
			extra, len(body), body)
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != want {
			t.Fatalf("request %d: %d, want %d", i, response.StatusCode, want)
		}
	}
}

func TestA7_WebSocketsAreRefusedWith426(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	address := f.listen()
	for _, request := range []string{
		"GET /openai/v1/responses", "POST /take?quota=openai/gpt-5/requests", "POST /slots?quota=openai/gpt-5/requests", "GET /status",
		"POST /quota.v1.QuotaService/Reserve",
	} {
		for _, protocol := range []string{"websocket", "h2c, websocket", "h2c\r\nUpgrade: websocket", "TLS/1.2", "HTTP/3"} {
			got := raw(t, "tcp", address, request+" HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n", 1)
			if len(got) != 1 || got[0] != "426" || len(f.provider.seen()) != 0 {
				t.Errorf("%s with %q: got %v", request, protocol, got)
			}
		}
	}
	f.cluster.consumed("openai/gpt-5/requests", 0)
}

// TestUpgrade_OfferOfHTTP2IsIgnored: curl --http2 and Java's client offer h2c with every plaintext request. The gateway answers over
// HTTP/1.1, and the provider does not see the offer.
func TestUpgrade_OfferOfHTTP2IsIgnored(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	address := f.listen()
	const body = `{"model":"gpt-5","messages":[]}`
	for request, body := range map[string]string{
		"POST /openai/v1/chat/completions": body, "POST /take?quota=openai/gpt-5/requests": "", "GET /status": "",
		"POST /quota.v1.QuotaService/GetQuota": `{"name":"openai/gpt-5/requests"}`,
	} {
		for _, offer := range []string{
			"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
			"Connection: upgrade\r\nUpgrade: H2C\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
			"Connection: Upgrade\r\nUpgrade: h2c, h2c\r\n", "Upgrade:\r\n",
		} {
			head := " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + offer
			got := raw(t, "tcp", address, fmt.Sprintf("%s%sContent-Length: %d\r\n\r\n%s", request, head, len(body), body), 1)
			if len(got) != 1 || got[0] != "200" {
				t.Errorf("%s with %q: got %v", request, offer, got)
			}
		}
	}
	seen := f.provider.seen()
	if len(seen) != 4 {
		t.Errorf("the provider saw %d requests, want 4", len(seen))
	}
	for _, sent := range seen {
		for _, name := range []string{"Upgrade", "Http2-Settings", "Connection"} {
			if value := sent.header.Get(name); value != "" {
				t.Errorf("the provider saw %s: %s", name, value)
			}
		}
	}
}

func TestA5_SocketRoutesByHostAndNamesThePeer(t *testing.T) {
	c := startCluster(t, rate("github/core", 5000))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", `<`+"http://"+r.Host+`/user/repos?page=2>; rel="next"`)
		speak(200, `{}`)(w, r)
	})
	github := upstreamOf(p, "github")
	github.Hosts = []string{"api.github.com"}
	conf := configOf(c, map[string]config.Upstream{"github": github})
	conf.Listen = config.Listen{Unix: filepath.Join(t.TempDir(), "gateway.sock")}
	f := startGateway(t, c, p, conf, gateway.Options{})
	f.listen()
	request := "GET /user/repos HTTP/1.1\r\nHost: api.github.com\r\nAuthorization: token ghp_made_up\r\nUser-Agent: GitHub CLI 2.23.0\r\n\r\n"
	if got := raw(t, "unix", conf.Listen.Unix, request, 1); len(got) != 1 || got[0] != "200" {
		t.Fatalf("got %v", got)
	}
	if sent := p.one(t); sent.uri != "/user/repos" || sent.header.Get("Authorization") != "token ghp_made_up" {
		t.Errorf("the provider saw %+v", sent)
	}
	c.consumed("github/core", 1)
}

// captured is a transport that records the URLs of requests.
type captured struct{ urls chan string }

func (c captured) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	c.urls <- fmt.Sprintf("%s %s %s %d", r.Method, r.URL, r.Host, len(body))
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{}, Body: http.NoBody, Request: r, ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// TestHost_OfGitHub: uploads have a separate host, and draw on the limits of the API.
func TestHost_OfGitHub(t *testing.T) {
	c := startCluster(t, rate("github/core", 100))
	sent := captured{make(chan string, 10)}
	conf := configOf(c, map[string]config.Upstream{"github": {}})
	conf.Limits.Body = 1 << 10
	f := startGateway(t, c, nil, conf, gateway.Options{Transport: sent})
	large := strings.Repeat("x", 1<<16)
	for i, want := range []struct{ host, path, kind, body, sent string }{
		{
			"api.github.com", "/repos/o/r/releases?x=1", "application/json", "{}",
			"POST https://api.github.com/repos/o/r/releases?x=1 api.github.com 2",
		},
		{
			"uploads.github.com", "/repos/o/r/releases/1/assets?name=a", "application/zip", large,
			"POST https://uploads.github.com/repos/o/r/releases/1/assets?name=a uploads.github.com 65536",
		},
		{
			"UPLOADS.github.com:443", "/repos/o/r/releases/1/assets?name=a.json", "application/json", large,
			"POST https://uploads.github.com/repos/o/r/releases/1/assets?name=a.json uploads.github.com 65536",
		},
		{
			"localhost", "/github/api/v3/repos/o/r/issues", "application/json", "{}",
			"POST https://api.github.com/repos/o/r/issues api.github.com 2",
		},
	} {
		got := f.do(http.MethodPost, want.path, want.body, "Host", want.host, "Content-Type", want.kind)
		if got.status != http.StatusCreated {
			t.Fatalf("%s: %d %s", want.host, got.status, got.body)
		}
		if to := <-sent.urls; to != want.sent {
			t.Errorf("sent %s, want %s", to, want.sent)
		}
		c.consumed("github/core", int64(i+1))
	}
}

// TestSocket_RefusesHostsThatAreNotServed: gh sends calls of all hosts to its socket. A path of such a host that begins like an
// upstream does not belong to that upstream, whose provider must not receive the token.
func TestSocket_RefusesHostsThatAreNotServed(t *testing.T) {
	c := startCluster(t, rate("github/core", 100))
	p := startProvider(t, speak(200, `{}`))
	github := upstreamOf(p, "github")
	github.Hosts = []string{"api.github.com"}
	conf := configOf(c, map[string]config.Upstream{"github": github, "openai": upstreamOf(p, "openai")})
	conf.Listen, conf.Hosts = config.Listen{Unix: filepath.Join(t.TempDir(), "gateway.sock")}, []string{"gateway.corp"}
	f := startGateway(t, c, p, conf, gateway.Options{})
	f.listen()
	for _, target := range []string{
		"github.com /login/device/code", "github.com /openai/codex/releases/download/v1/a.zip", "codeload.github.com /github/gh-ost/zip/main",
		"objects.githubusercontent.com /x", "release-assets.githubusercontent.com /github/x", "evil.example /status",
	} {
		host, path, _ := strings.Cut(target, " ")
		connection, err := net.Dial("unix", conf.Listen.Unix)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: token ghp_made_up\r\n\r\n", path, host)
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = connection.Close()
		if response.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "served: api.github.com") ||
			!strings.Contains(string(body), "http_unix_socket") {
			t.Errorf("%s: %d %s", target, response.StatusCode, body)
		}
	}
	if n := len(p.seen()); n != 0 {
		t.Fatalf("%d requests were sent", n)
	}
	for _, host := range []string{"localhost", "quotad", "unix", "gateway.corp", "127.0.0.1:7452"} {
		if got := raw(t, "unix", conf.Listen.Unix, "GET /github/user HTTP/1.1\r\nHost: "+host+"\r\n\r\n", 1); len(got) != 1 || got[0] != "200" {
			t.Errorf("host %s: %v", host, got)
		}
	}
}

func TestA4_PagesStayOnTheGateway(t *testing.T) {
	c := startCluster(t, rate("github/core", 5000))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		var page int
		_, _ = fmt.Sscanf(r.URL.Query().Get("page"), "%d", &page)
		if page < 5 {
			w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?page=%d>; rel="next", <https://elsewhere.example/x>; rel="help"`, r.Host,
				r.URL.Path, max(page, 1)+1))
		}
		speak(200, `[]`)(w, r)
	})
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"github": upstreamOf(p, "github")}), gateway.Options{})
	path := "/as/octo~background/github/api/v3/user/repos"
	for range 5 {
		got := f.do(http.MethodGet, path, "")
		next, rest, more := strings.Cut(strings.TrimPrefix(got.header.Get("Link"), "<"), ">")
		if !more {
			break
		}
		if !strings.Contains(rest, "<https://elsewhere.example/x>") {
			t.Errorf("another host's URL was changed: %s", rest)
		}
		path = strings.TrimPrefix(next, f.url)
	}
	for i, sent := range p.seen() {
		if !strings.HasPrefix(sent.uri, "/user/repos") {
			t.Errorf("page %d was asked at %s", i, sent.uri)
		}
	}
	c.consumed("github/core", 5)
	f.logs(t, "holder=octo@node-7", 5)
	f.logs(t, "class=background", 5)
}

// TestSend_ProviderThatSwitchesProtocolsIsRefused: the body of such an answer never ends, so it must hold neither slot nor lease. The
// error must not claim that nothing was sent.
func TestSend_ProviderThatSwitchesProtocolsIsRefused(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	provider := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		connection, out, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = out.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n")
		_ = out.Flush()
		_, _ = io.Copy(io.Discard, connection) // until the gateway closes it
		_ = connection.Close()
	})}
	defer func() { _ = provider.Close() }()
	go func() { _ = provider.Serve(listener) }()
	c := startCluster(t, slots("anthropic/m/streams", 1), rate("anthropic/m/requests", 100))
	conf := configOf(c, map[string]config.Upstream{"anthropic": {Base: "http://" + listener.Addr().String(), Plain: true}})
	f := startGateway(t, c, nil, conf, gateway.Options{})
	for i := range 2 {
		got := f.do(http.MethodPost, forms["anthropic"].path, forms["anthropic"].body)
		if got.status != http.StatusBadGateway || !strings.Contains(got.body, "101") || strings.Contains(got.body, "nothing was sent") ||
			!strings.Contains(got.body, `"type":"api_error"`) {
			t.Errorf("call %d: %d %s", i, got.status, got.body)
		}
		eventually(t, "the slot is free", func() bool { return c.quota("anthropic/m/streams").Available == 1 })
	}
	c.consumed("anthropic/m/requests", 2)
}

// TestGuard_TakesTheConnectionsOwnAddressAsHost: pods reach the gateway of their node by its address. No name can match it, so a web
// page of another site cannot either.
func TestGuard_TakesTheConnectionsOwnAddressAsHost(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, chatAnswer))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	for _, tt := range []struct {
		local, host, origin string
		status              int
	}{
		{"10.1.2.3", "10.1.2.3:7452", "", 200},
		{"::ffff:10.1.2.3", "10.1.2.3", "", 200},
		{"fd00::1", "[fd00::1]:7452", "", 200},
		{"10.1.2.3", "10.1.2.4:7452", "", 403},
		{"10.1.2.3", "gateway.example:7452", "", 403},
		{"10.1.2.3", "10.1.2.3.example", "", 403},
		{"10.1.2.3", "10.1.2.3:7452", "http://evil.example", 403},
	} {
		local := &net.TCPAddr{IP: net.ParseIP(tt.local), Port: 7452}
		request := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, local), http.MethodGet,
			"/openai/v1/models", nil)
		request.Host = tt.host
		if tt.origin != "" {
			request.Header.Set("Origin", tt.origin)
		}
		answer := httptest.NewRecorder()
		f.gateway.Handler().ServeHTTP(answer, request)
		if answer.Code != tt.status {
			t.Errorf("%s at %s, from a page of %q: %d %s", tt.host, tt.local, tt.origin, answer.Code, answer.Body)
		}
	}
}
