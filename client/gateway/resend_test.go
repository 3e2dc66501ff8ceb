package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// startDying starts a provider that answers the first request of each connection, then reads the second one entirely and closes the
// connection. It returns its URL and the requests that it has read.
func startDying(tb testing.TB) (url string, read func() []received) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = listener.Close() })
	var mu sync.Mutex
	var all []received
	serve := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		for dies := false; ; dies = true {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			all = append(all, received{r.Method, r.RequestURI, r.Host, r.Header, string(body)})
			mu.Unlock()
			if dies {
				return
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(chatAnswer), chatAnswer)
		}
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + listener.Addr().String(), func() []received {
		mu.Lock()
		defer mu.Unlock()
		return append([]received(nil), all...)
	}
}

// TestSend_RepeatsNoRequestThatWasRead: the provider has read the request when the connection breaks, so it may have carried it out. Only
// the client can know whether to repeat it. A GET without a body changes nothing: it is repeated, and each write counts.
func TestSend_RepeatsNoRequestThatWasRead(t *testing.T) {
	t.Parallel() // mostly waiting
	const body = `{"model":"gpt-5","messages":[]}`
	for name, ask := range map[string]struct {
		method, path, body, header string
		status, arrivals           int
	}{
		"POST":                     {http.MethodPost, "/openai/v1/chat/completions", body, "X-A", 502, 1},
		"POST, Idempotency-Key":    {http.MethodPost, "/openai/v1/chat/completions", body, "Idempotency-Key", 502, 1},
		"POST, X-Idempotency-Key":  {http.MethodPost, "/openai/v1/chat/completions", body, "X-Idempotency-Key", 502, 1},
		"POST, no body":            {http.MethodPost, "/github/user/repos", "", "Idempotency-Key", 502, 1},
		"DELETE, Idempotency-Key":  {http.MethodDelete, "/github/user", "", "Idempotency-Key", 502, 1},
		"PATCH, X-Idempotency-Key": {http.MethodPatch, "/github/user", "{}", "X-Idempotency-Key", 502, 1},
		"GET with a body":          {http.MethodGet, "/github/user", "{}", "X-A", 502, 1},
		"GET":                      {http.MethodGet, "/github/user", "", "X-A", 200, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, read := startDying(t)
			c := startCluster(t, rate("openai/gpt-5/requests", 100), tokens("openai/gpt-5/tokens", 100_000), rate("github/core", 100))
			f := startGateway(t, c, nil, configOf(c, map[string]config.Upstream{
				"openai": {Dialect: "openai", Base: url, Plain: true}, "github": {Dialect: "github", Base: url, Plain: true},
			}), gateway.Options{})
			// Each upstream has separate connections, so the first call goes to the same upstream.
			first := f.do(ask.method, ask.path, ask.body)
			second := f.do(ask.method, ask.path, ask.body, ask.header, "k1")
			if first.status != 200 || second.status != ask.status {
				t.Fatalf("got %d, and %d %s", first.status, second.status, second.body)
			}
			all := read()
			if len(all) != 1+ask.arrivals {
				t.Fatalf("the provider read %d requests, want %d", len(all), 1+ask.arrivals)
			}
			if sent := all[1]; sent.header.Get(ask.header) != "k1" || sent.body != ask.body {
				t.Errorf("the provider read %+v", sent)
			}
			quota := "github/core"
			if ask.path == "/openai/v1/chat/completions" {
				quota = "openai/gpt-5/requests"
			}
			c.consumed(quota, int64(len(all)))
		})
	}
}
