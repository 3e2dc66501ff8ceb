package rpc_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
)

// form is a way to send a message: its content type, and the header that names its compression.
type form struct {
	contentType, encodingHeader string
	enveloped                   bool
}

var forms = []form{
	{"application/proto", "Content-Encoding", false},
	{"application/json", "Content-Encoding", false},
	{"application/connect+proto", "Connect-Content-Encoding", true},
	{"application/grpc", "Grpc-Encoding", true},
	{"application/grpc-web", "Grpc-Encoding", true},
}

// body puts a packed or a plain message into the form.
func (f form) body(message []byte, packed bool) []byte {
	if !f.enveloped {
		return message
	}
	flags := byte(0)
	if packed {
		flags = 1
	}
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message))), message...) //nolint:gosec // a few MiB
}

// sendForm sends one request and reads its whole answer, within a minute. It returns its status, 0 if the connection ended without one.
func sendForm(t *testing.T, client *http.Client, method, url string, f form, packed bool, body io.Reader) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", f.contentType)
	if packed {
		req.Header.Set(f.encodingHeader, "gzip")
	}
	res, err := client.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	if ctx.Err() != nil {
		t.Errorf("%s %s as %s: no answer: %v", method, url, f.contentType, err)
	}
	if res == nil {
		return 0
	}
	return res.StatusCode
}

// clients returns a client for HTTP/1.1 and one for HTTP/2.
func clients(t *testing.T) []*http.Client {
	t.Helper()
	h1 := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(h1.CloseIdleConnections)
	return []*http.Client{h1, h2c(t)}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// mostForOne generously bounds what one request may make a node allocate, in bytes: several times the largest message.
const mostForOne = 64 << 20

// bombed sends to a path, in each form, a message that decompresses to a thousand times its size, and a large one without compression.
func bombed(t *testing.T, url, path string, bomb []byte, as []form, by ...*http.Client) {
	t.Helper()
	plain := make([]byte, 5<<20)
	if testing.Short() { // with the race detector megabytes take long
		plain = plain[:1<<20]
	}
	for _, client := range by {
		for _, f := range as {
			for _, packed := range []bool{true, false} {
				message := plain
				if packed {
					message = bomb
				}
				body := f.body(message, packed)
				before := allocated()
				sendForm(t, client, http.MethodPost, url+path, f, packed, bytes.NewReader(body))
				if took := allocated() - before; took > mostForOne {
					t.Errorf("%s as %s, packed %v: %d MiB were allocated", path, f.contentType, packed, took>>20)
				}
			}
		}
	}
}

// TestBombs_WithoutAToken: calls that need no token take no more memory for a bomb than for anything else.
func TestBombs_WithoutAToken(t *testing.T) {
	n := newNodes(t, 1)[0]
	bomb, by := bombOf(t, 128), clients(t)
	for _, path := range []string{
		"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/metrics", "/readyz", "/livez", "/nowhere",
	} {
		bombed(t, n.url, path, bomb, forms, by...)
	}
}

// TestRoutes_AreBounded: each served path takes a bounded body in a bounded time, in each form and by each method. Each call of each
// schema is among the paths.
func TestRoutes_AreBounded(t *testing.T) {
	n := newNodes(t, 1, func(c *rpc.Config) { c.ReadBody = 100 * time.Millisecond })[0]
	routes := rpc.Routes(n.server)
	for _, file := range []protoreflect.FileDescriptor{
		quotav1.File_quota_v1_quota_proto, quotav1.File_quota_v1_admin_proto, quotav1.File_quota_v1_task_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				path := fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(j).Name())
				if _, served := routes[path]; !served {
					t.Errorf("%s is not served", path)
				}
			}
		}
	}
	bomb, by := bombOf(t, 96), h2c(t)
	for path, limits := range routes { // in any order
		if limits.Body > 4<<20 || limits.Body == 0 && slices.Contains(limits.Methods, http.MethodPost) {
			t.Errorf("%s takes a body of %d bytes", path, limits.Body)
		}
		if strings.HasSuffix(path, "/") {
			path += "nowhere"
		}
		bombed(t, n.url, path, bomb, forms[1:4], by)
	}
}

// TestRoutes_BoundHeaderFields: whatever its path, a request with more header fields than clients and proxies send is refused. One with as
// many as they may send is not.
func TestRoutes_BoundHeaderFields(t *testing.T) {
	n := newNodes(t, 1)[0]
	for path := range rpc.Routes(n.server) { // in any order
		for fields, refused := range map[int]bool{90: false, 110: true} {
			for kind, names := range map[string]int{"header fields": fields, "fields of one name": 1} {
				r := httptest.NewRequest(http.MethodPut, path, nil) // no route serves it
				for i := range fields {
					r.Header.Add(fmt.Sprint("x-", i%names), "")
				}
				res := httptest.NewRecorder()
				n.server.Handler().ServeHTTP(res, r)
				if got := res.Code == http.StatusRequestHeaderFieldsTooLarge; got != refused {
					t.Errorf("%s with %d %s: %d", path, fields, kind, res.Code)
				}
			}
		}
	}
}

// trickle is a body that never ends, and arrives very slowly.
type trickle struct{ done <-chan struct{} }

// Read implements io.Reader.
func (b trickle) Read(p []byte) (int, error) {
	select {
	case <-b.done:
		return 0, io.EOF
	case <-time.After(20 * time.Millisecond):
		return copy(p, "{"), nil
	}
}

// TestRoutes_EndSlowBodies: whatever the method and the path, a body that trickles ends.
func TestRoutes_EndSlowBodies(t *testing.T) {
	n := newNodes(t, 1, func(c *rpc.Config) { c.ReadBody = 100 * time.Millisecond })[0]
	ends := make(chan int)
	count := 0
	for path, limits := range rpc.Routes(n.server) { // in any order
		if limits.Endless { // as long as it keeps arriving
			continue
		}
		if strings.HasSuffix(path, "/") {
			path += "nowhere"
		}
		for _, client := range clients(t) {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
				count++
				f := forms[count%len(forms)]
				go func() {
					done := make(chan struct{})
					defer close(done)
					ends <- sendForm(t, client, method, n.url+path, f, false, trickle{done})
				}()
			}
		}
	}
	for range count {
		<-ends
	}
}

// TestPages_TakeNoBody: pages answer GET and HEAD, and nothing with a body.
func TestPages_TakeNoBody(t *testing.T) {
	n := newNodes(t, 1)[0]
	for _, client := range clients(t) {
		for _, path := range []string{"/livez", "/metrics"} {
			for method, want := range map[string]int{
				http.MethodGet: http.StatusOK, http.MethodHead: http.StatusOK, http.MethodPost: http.StatusMethodNotAllowed,
				http.MethodDelete: http.StatusMethodNotAllowed,
			} { // in any order
				if got := sendForm(t, client, method, n.url+path, form{}, false, nil); got != want {
					t.Errorf("%s %s: %d", method, path, got)
				}
			}
			if got := sendForm(t, client, http.MethodGet, n.url+path, form{}, false,
				strings.NewReader("x")); got != http.StatusRequestEntityTooLarge {
				t.Errorf("GET %s with a body: %d", path, got)
			}
		}
	}
}

// TestAnswers_LeaveNoBodyBehindAsRequests: the rest of a body that was refused before its end is never served as a request of its own.
func TestAnswers_LeaveNoBodyBehindAsRequests(t *testing.T) {
	n := newNodes(t, 1)[0]
	const smuggled = "GET /livez HTTP/1.1\r\nHost: b\r\n\r\n"
	body := strings.Repeat(smuggled, (6<<20)/len(smuggled)+1)
	for path := range rpc.Routes(n.server) { // in any order
		for _, size := range []int{2 << 10, 300 << 10, 6 << 20} {
			if testing.Short() && size > 1<<20 && rand.IntN(4) > 0 {
				continue // of the longest bodies, only some paths in each run
			}
			conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			go func() { // until the node ends the connection
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, size)
				_, _ = io.WriteString(conn, body[:size])
			}()
			answers := bufio.NewReader(conn)
			first, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("%s, %d bytes: %v", path, size, err)
			}
			_, _ = io.Copy(io.Discard, first.Body)
			// The one request that may follow is the test's own: it is answered alone, or the connection has ended.
			_, _ = io.WriteString(conn, "GET /own HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n")
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			second, err := http.ReadResponse(answers, nil)
			if err == nil && second.StatusCode != http.StatusNotFound {
				t.Errorf("%s, %d bytes: %s, and then %s for a part of the body", path, size, first.Status, second.Status)
			}
			_ = conn.Close()
		}
	}
}
