package rpc_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
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

// TestBodiesThatCannotBeRead: whatever a body is, the answer is a typed error in the form that the caller speaks.
func TestBodiesThatCannotBeRead(t *testing.T) {
	n := newNodes(t, 1)[0]
	good := []byte(`{"holder":"a","items":[{"quota":"nowhere"}]}`)
	for name, c := range map[string]struct {
		contentType, encoding string
		body                  []byte
		status                int
		reason                string
	}{
		"zipped":                 {"application/json", "gzip", zipped(t, good), 404, "UNKNOWN_QUOTA"},
		"a bomb":                 {"application/json", "gzip", zipped(t, make([]byte, 64<<20)), 413, "TOO_LARGE"},
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

// TestSlowBodiesAreCutOff: a body that does not come ends with a typed error over both versions of HTTP, in the time
// that the server has for it.
func TestSlowBodiesAreCutOff(t *testing.T) {
	n := newNodes(t, 1, func(c *rpc.Config) { c.ReadBody = 100 * time.Millisecond })[0]
	h1 := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(h1.CloseIdleConnections)
	for name, client := range map[string]*http.Client{"HTTP/1.1": h1, "HTTP/2": h2c(t)} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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

// TestCutOffBody: a caller that goes away in the middle of its body does nothing, and the server lives.
func TestCutOffBody(t *testing.T) {
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
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", reservePath, len(body)+1, body)
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

// TestStreamsOutliveTheTimeouts: a stream and a wait go on for longer than any of the timeouts for headers, bodies and
// idle connections.
func TestStreamsOutliveTheTimeouts(t *testing.T) {
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
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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

// TestConnectionsAreBounded: connections beyond the bound wait; one that ends makes room, and closing ends it all.
func TestConnectionsAreBounded(t *testing.T) {
	listener, err := rpc.Listen("127.0.0.1:0", 1000)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	idle := make([]net.Conn, 1000)
	for i := range idle {
		if idle[i], err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = idle[i].Close() })
	}
	last, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = last.Close() })
	fmt.Fprintf(last, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := last.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); err == nil {
		t.Fatal("one connection too many was served")
	}
	_ = idle[0].Close()
	if err := last.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); err != nil {
		t.Fatal("a connection that ended made no room:", err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
