package rpc_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

const reservePath = "/quota.v1.QuotaService/Reserve"

func zipped(t *testing.T, text []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// bombOf returns gzip that decompresses to so many MiB of zeros. It repeats one member: to compress everything would take longer than its
// use.
func bombOf(t *testing.T, mebibytes int) []byte {
	t.Helper()
	return bytes.Repeat(zipped(t, make([]byte, 1<<20)), mebibytes)
}

// TestBodies_UnreadableAreTypedErrors: whatever the body, the answer is a typed error in the caller's protocol.
func TestBodies_UnreadableAreTypedErrors(t *testing.T) {
	n := newNodes(t, 1)[0]
	good := []byte(`{"holder":"a","items":[{"quota":"nowhere"}]}`)
	for name, c := range map[string]struct {
		contentType, encoding string
		body                  []byte
		status                int
		reason                string
	}{
		"zipped":                 {"application/json", "gzip", zipped(t, good), 404, "UNKNOWN_QUOTA"},
		"a bomb":                 {"application/json", "gzip", bombOf(t, 64), 413, "TOO_LARGE"},
		"not gzip at all":        {"application/json", "gzip", good, 400, "INVALID"},
		"gzip cut off":           {"application/json", "gzip", zipped(t, good)[:20], 400, "INVALID"},
		"protobuf, broken UTF-8": {"application/proto", "", []byte{0x12, 0x01, 0xff}, 400, "INVALID"},
		"protobuf, cut off":      {"application/proto", "", []byte{0x12, 0x7f, 'a'}, 400, "INVALID"},
		"JSON as protobuf":       {"application/proto", "", good, 400, "INVALID"},
		"JSON with a charset":    {"application/json; charset=utf-8", "", good, 404, "UNKNOWN_QUOTA"},
		"a form":                 {"application/x-www-form-urlencoded", "", good, 415, ""},
		"an unknown packing":     {"application/json", "brotli", good, 501, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := ledgerHash(t, n)
			req := httptest.NewRequest(http.MethodPost, reservePath, bytes.NewReader(c.body))
			req.Header.Set("Content-Type", c.contentType)
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			res := httptest.NewRecorder()
			n.server.Handler().ServeHTTP(res, req)
			if res.Code != c.status || c.reason != "" && !strings.Contains(res.Body.String(), `"REASON_`+c.reason+`"`) {
				t.Errorf("%d %s", res.Code, res.Body)
			}
			if ledgerHash(t, n) != before {
				t.Error("the ledger changed")
			}
		})
	}
}

// h2c makes a client for HTTP/2 without TLS.
func h2c(t *testing.T) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestBodies_SlowAreCutOff: a body that does not arrive ends with a typed error over both versions of HTTP, within the server's time for
// it.
func TestBodies_SlowAreCutOff(t *testing.T) {
	n := newNodes(t, 1, func(c *rpc.Config) { c.ReadBody = 100 * time.Millisecond })[0]
	h1 := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(h1.CloseIdleConnections)
	for name, client := range map[string]*http.Client{"HTTP/1.1": h1, "HTTP/2": h2c(t)} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			body, writer := io.Pipe()
			defer func() { _ = writer.Close() }()
			go func() { _, _ = writer.Write([]byte(`{"holder":`)) }()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+reservePath, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			text, err := io.ReadAll(res.Body)
			if err != nil || !strings.Contains(string(text), "REASON_CANCELED") {
				t.Errorf("%d %s %v", res.StatusCode, text, err)
			}
		})
	}
}

// TestBodies_CutOffChangesNothing: a caller that disconnects in the middle of its body changes nothing, and the server continues.
func TestBodies_CutOffChangesNothing(t *testing.T) {
	n := newNodes(t, 1)[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	before := ledgerHash(t, n)
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	body := `{"holder":"a","items":[{"quota":"t/core"}]}`
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", reservePath,
		len(body)+1, body)
	if half, ok := conn.(*net.TCPConn); !ok || half.CloseWrite() != nil {
		t.Fatal("the connection cannot be closed by half")
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	_ = conn.Close()
	if res.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "REASON_INVALID") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if ledgerHash(t, n) != before {
		t.Error("the ledger changed")
	}
}

// TestStreams_OutliveTimeouts: a stream and a wait last longer than any of the timeouts for headers, bodies and idle connections.
func TestStreams_OutliveTimeouts(t *testing.T) {
	const short = 100 * time.Millisecond
	n := newNodes(t, 1, func(c *rpc.Config) { c.ReadBody = short })[0]
	server := rpc.NewHTTPServer(n.server.Handler(), nil, hclog.NewNullLogger())
	server.ReadHeaderTimeout, server.IdleTimeout = short, short
	listener, err := rpc.Listen("127.0.0.1:0", 100)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	url := "http://" + listener.Addr().String()
	for name, client := range map[string]*http.Client{"HTTP/2": h2c(t), "HTTP/1.1": {Transport: &http.Transport{DisableKeepAlives: true}}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stream, err := quotav1connect.NewQuotaServiceClient(client, url).Watch(ctx, &quotav1.WatchRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stream.Close() }()
			until := time.Now().Add(5 * short)
			for i := 0; time.Now().Before(until); i++ {
				if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
					fmt.Sprintf(`{"quotas":[{"name":"q%d","slots":{"limit":%d}}]}`, i%2, i+1)); status != http.StatusOK {
					t.Fatalf("%d %s", status, body)
				}
				if !stream.Receive() {
					t.Fatalf("the stream ended: %v", stream.Err())
				}
			}
		})
	}
}

// TestConnections_SilentOnesMakeRoom: while many more silent connections are open than there is room for, a new one is served. Those on
// which a caller was admitted stay.
func TestConnections_SilentOnesMakeRoom(t *testing.T) {
	n := newNodes(t, 1)[0]
	listener, err := rpc.Listen("127.0.0.1:0", 100)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewHTTPServer(n.server.Handler(), nil, hclog.NewNullLogger())
	server.ReadHeaderTimeout = time.Hour // silence alone closes none
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	url := "http://" + listener.Addr().String()
	var dials atomic.Int64
	kept := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}}
	defer kept.CloseIdleConnections()
	call := func() int {
		return sendForm(t, kept, http.MethodPost, url+reservePath, forms[1], false, strings.NewReader(`{}`))
	}
	if status := call(); status != http.StatusBadRequest {
		t.Fatal(status)
	}
	for _, first := range []string{"", "GET /livez HTTP/1.1\r\nHo", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		for range 100 {
			silent, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = silent.Close() })
			_, _ = io.WriteString(silent, first)
		}
		for range 5 {
			fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			if status := sendForm(t, fresh, http.MethodGet, url+"/livez", form{}, false, nil); status != http.StatusOK {
				t.Fatalf("among silent connections: %d", status)
			}
		}
	}
	if status := call(); status != http.StatusBadRequest || dials.Load() != 1 {
		t.Errorf("a caller's connection: status %d, dialed %d times", status, dials.Load())
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// TestConnections_OfOneCallerLeaveRoom: a caller that keeps its connections busy is refused beyond its part, with the budget's name.
// Others are not.
func TestConnections_OfOneCallerLeaveRoom(t *testing.T) {
	n, secrets := guarded(t, func(*rpc.Config) {})
	listener, err := rpc.Listen("127.0.0.1:0", 60)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewHTTPServer(n.server.Handler(), nil, hclog.NewNullLogger())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	other, _ := apisAs(t, n.url, secrets["other"])
	granted, err := other.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: "o", Items: []*quotav1.Item{{Quota: "t/core"}}})
	if err != nil {
		t.Fatal(err)
	}
	watch := func(name string) error {
		transport := &http.Transport{} // a connection of its own
		t.Cleanup(transport.CloseIdleConnections)
		api := quotav1connect.NewQuotaServiceClient(&http.Client{Transport: withToken{transport, secrets[name]}},
			"http://"+listener.Addr().String())
		return watches(t, api, granted.Meta.Index)
	}
	held := 0
	for range 40 {
		if err := watch("hostile"); err == nil {
			held++
		} else if info := infoOf(err); info.GetReason() != quotav1.Reason_REASON_CALLER_BUDGET || info.Budget != "connections" {
			t.Fatalf("beyond its part: %v", err)
		}
	}
	if held != 21 { // half of the part that is neither anonymous callers' nor the operators'
		t.Errorf("%d connections of one caller", held)
	}
	for _, name := range []string{"other", "operator"} {
		if err := watch(name); err != nil {
			t.Errorf("a connection of %s: %v", name, err)
		}
	}
}

// TestNewHTTPServer_AnonymousCallersDoNotFillTheLog: however many handshakes of an address fail, the server logs that once per interval.
func TestNewHTTPServer_AnonymousCallersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	secured := httptest.NewTLSServer(http.NotFoundHandler())
	defer secured.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := new(lines)
	server := rpc.NewHTTPServer(http.NotFoundHandler(), &tls.Config{Certificates: secured.TLS.Certificates},
		hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: log}))
	go func() { _ = server.ServeTLS(listener, "", "") }()
	defer func() { _ = server.Close() }()
	for range 20 {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	eventually(t, "a line", func() bool { return strings.Contains(log.String(), "HTTP request to an HTTPS server") })
	if got := strings.Count(log.String(), "127.0.0.1"); got != 1 {
		t.Errorf("%d lines, want one:\n%s", got, log)
	}
}
