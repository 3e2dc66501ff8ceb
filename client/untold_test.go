package client

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
)

var errLost = errors.New("the answer was lost")

// TestTransport_BaseWithoutTraceHasWritten: if a base without httptrace loses the answer, the provider may have counted the call.
// If the base reports that it found no connection, or was never called, the amounts are returned.
func TestTransport_BaseWithoutTraceHasWritten(t *testing.T) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		served.Add(1)
	}))
	defer server.Close()
	plain := &http.Transport{}
	defer plain.CloseIdleConnections()
	for name, c := range map[string]struct {
		base  roundTrip
		body  string
		spent int64
	}{
		"it tells nothing": {base: func(r *http.Request) (*http.Response, error) {
			untraced, err := http.NewRequest(r.Method, r.URL.String(), r.Body)
			if err != nil {
				return nil, err
			}
			response, err := plain.RoundTrip(untraced)
			if err == nil {
				_ = response.Body.Close()
			}
			return nil, errors.Join(errLost, err)
		}, spent: 1},
		"it tells of looking for a connection, and reads the body": {base: func(r *http.Request) (*http.Response, error) {
			httptrace.ContextClientTrace(r.Context()).GetConn("provider:443")
			_, _ = io.Copy(io.Discard, r.Body)
			return nil, errLost
		}, body: "ask", spent: 1},
		"it buffers the body, and finds no connection": {base: func(r *http.Request) (*http.Response, error) {
			_, _ = io.Copy(io.Discard, r.Body)
			httptrace.ContextClientTrace(r.Context()).GetConn("provider:443")
			return nil, errLost
		}, body: "ask", spent: 0},
		"it tells of the request alone": {base: func(r *http.Request) (*http.Response, error) {
			httptrace.ContextClientTrace(r.Context()).WroteRequest(httptrace.WroteRequestInfo{})
			return nil, errLost
		}, spent: 1},
		"net/http finds nobody": {base: func(r *http.Request) (*http.Response, error) {
			nobody := &http.Transport{Dial: func(string, string) (net.Conn, error) { return nil, errLost }} //nolint:staticcheck // shortest
			return nobody.RoundTrip(r)
		}, spent: 0},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := full()
			client := connected(t, cluster)
			calls := &http.Client{Transport: NewTransport(client, c.base, Match(core))}
			response, err := calls.Post(server.URL, "text/plain", strings.NewReader(c.body))
			if err == nil {
				_ = response.Body.Close()
				t.Fatal("there is an answer")
			}
			if err := client.Close(); err != nil {
				t.Fatal(err)
			}
			if spent := 1_000 - cluster.Available("t/core"); spent != c.spent {
				t.Errorf("%d spent, want %d; the provider saw %d calls", spent, c.spent, served.Load())
			}
		})
	}
}
