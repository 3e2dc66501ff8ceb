package rpc_test

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestBombs_OfAKnownCaller: a token buys no memory. A small compressed bomb is refused or dropped in every protocol, even if it is a
// valid message of one unknown field.
func TestBombs_OfAKnownCaller(t *testing.T) {
	n, secrets := guarded(t, func(*rpc.Config) {})
	message := protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), make([]byte, 3_900_000))
	bomb := zipped(t, message)
	client := &http.Client{Transport: withToken{h2c(t).Transport, secrets["hostile"]}}
	const rounds, most = 20, 1 << 20 // for each; decompressed it is four times as much
	for _, path := range []string{"/quota.v1.QuotaService/ListQuotas", "/quota.v1.QuotaService/Watch", "/quota.v1.QuotaService/Reserve"} {
		for _, f := range forms {
			before := allocated()
			for range rounds {
				sendForm(t, client, http.MethodPost, n.url+path, f, true, strings.NewReader(string(f.body(bomb, true))))
			}
			if took := (allocated() - before) / rounds; took > most {
				t.Errorf("%s as %s: %d KiB were allocated", path, f.contentType, took>>10)
			}
		}
	}
	query := "/quota.v1.QuotaService/ListQuotas?connect=v1&encoding=proto&base64=1&compression=gzip&message=" +
		base64.RawURLEncoding.EncodeToString(bomb)
	before := allocated()
	for range rounds {
		if status := sendForm(t, client, http.MethodGet, n.url+query, form{}, false, nil); status != http.StatusRequestEntityTooLarge {
			t.Errorf("GET: %d", status)
		}
	}
	if took := (allocated() - before) / rounds; took > most {
		t.Errorf("GET: %d KiB were allocated", took>>10)
	}
}

// TestPacked_IsServed: a small packed request is served in every protocol, by POST and by GET.
func TestPacked_IsServed(t *testing.T) {
	n := newNodes(t, 1)[0]
	zip := zipped(t, []byte{})
	for _, client := range clients(t) {
		for _, f := range forms {
			message := zip
			if f.contentType == "application/json" {
				message = zipped(t, []byte("{}"))
			}
			path := "/quota.v1.QuotaService/ListQuotas"
			if f.contentType == "application/connect+proto" {
				continue // for streams only
			}
			if status := sendForm(t, client, http.MethodPost, n.url+path, f, true,
				strings.NewReader(string(f.body(message, true)))); status != http.StatusOK {
				t.Errorf("%s: %d", f.contentType, status)
			}
		}
		query := "/quota.v1.QuotaService/ListQuotas?connect=v1&encoding=json&base64=1&compression=gzip&message=" +
			base64.RawURLEncoding.EncodeToString(zipped(t, []byte(`{"pageSize":1}`)))
		if status, body := get(t, n.url+query); status != http.StatusOK {
			t.Errorf("GET: %d %s", status, body)
		}
	}
}

// inUse returns how much of one of a node's budgets is used.
func inUse(t *testing.T, n *testNode, secret, name string) int64 {
	t.Helper()
	_, operator := apisAs(t, n.url, secret)
	res, err := operator.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range res.NodeBudgets {
		if b.Name == name {
			return b.Used
		}
	}
	t.Fatalf("there is no budget %s", name)
	return 0
}

// TestRequestBytes_OfOneCallerLeaveRoom: a caller with large requests in flight finds no room for another one, and learns which budget is
// used up. Others and the operator find room.
func TestRequestBytes_OfOneCallerLeaveRoom(t *testing.T) {
	n, secrets := guarded(t, func(c *rpc.Config) { c.RequestBytes = 64 << 20 })
	// Only the head and one byte are sent: a body that nobody reads would be reset before the answer is seen.
	begin := func(bytes int) net.Conn {
		conn, err := net.Dial("tcp", n.config.APIAddress)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, err = fmt.Fprintf(conn, "POST /quota.v1.QuotaService/Batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n{", secrets["hostile"], bytes)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var held []net.Conn
	for range 8 {
		held = append(held, begin(2<<20))
	}
	eventually(t, "one is read", func() bool { return inUse(t, n, secrets["operator"], "request_bytes") >= 16<<20 })
	refused, err := http.ReadResponse(bufio.NewReader(begin(3<<20)), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(refused.Body)
	if err = errors.Join(err, refused.Body.Close()); err != nil {
		t.Fatal(err)
	}
	status, body := refused.StatusCode, string(answer)
	if status != http.StatusTooManyRequests || !strings.Contains(body, `"budget":"request_bytes"`) ||
		!strings.Contains(body, `"notAccepted":true`) {
		t.Errorf("beyond its part: %d %s", status, body)
	}
	if status, body := post(t, n.url, reservePath, `{"holder":"o","items":[{"quota":"t/core"}]}`, "Authorization",
		"Bearer "+secrets["other"]); status != http.StatusOK {
		t.Errorf("another caller: %d %s", status, body)
	}
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"s","slots":{"limit":1}}]}`+strings.Repeat(" ", 256<<10),
		"Authorization", "Bearer "+secrets["operator"]); status != http.StatusOK {
		t.Errorf("the operator: %d %s", status, body)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	eventually(t, "all is released", func() bool { return inUse(t, n, secrets["operator"], "request_bytes") < 1<<20 })
}
