package rpc_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// held returns the memory in use for objects and stacks, in bytes.
func held() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse) //nolint:gosec // less than that
}

// literal is a header field of HTTP/2 without compression.
func literal(name, value string) string {
	return "\x00" + string(rune(len(name))) + name + string(rune(len(value))) + value
}

// callFirst sends one call of HTTP/1.1 on a connection of its own.
func callFirst(t *testing.T, address, path, kind, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", path, kind, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
}

// callSecond sends calls on one connection of HTTP/2, whose answers nobody reads.
func callSecond(t *testing.T, address, path, kind, body string, calls int) {
	t.Helper()
	c := dialRaw(t, address)
	head := "\x83\x86" + literal(":path", path) + literal(":authority", "x") + literal("content-type", kind)
	for i := range calls {
		stream := uint32(2*i + 1) //nolint:gosec // few
		err := c.send(frameHeaders, flagEndHeaders, stream, []byte(head))
		if err = errors.Join(err, c.send(frameData, 1, stream, []byte(body))); err != nil {
			t.Fatal(err)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, c) }()
}

// TestNodeCosts_AreWhatThePlanHas: a waiting call and an open stream, each with its part of a connection, take no more memory than a node's
// plan has for them. (TestReceive_UnreadBodiesOfManyConnections is about connections.)
func TestNodeCosts_AreWhatThePlanHas(t *testing.T) {
	if testing.Short() {
		t.Skip("tens of seconds, and the race detector changes what it measures")
	}
	const many = 1000
	wait := `{"holder":"h","items":[{"quota":"s"}],"wait":"600s"}`
	watch := "\x00\x00\x00\x00\x02{}"
	for name, c := range map[string]struct {
		path, kind, body string
		perConn          int
		budget           string
		most             int64
	}{
		"calls of HTTP/1.1":   {"/quota.v1.QuotaService/Reserve", "application/json", wait, 0, "calls", rpc.CallBytes},
		"calls of HTTP/2":     {"/quota.v1.QuotaService/Reserve", "application/json", wait, 500, "calls", rpc.CallBytes},
		"streams of HTTP/1.1": {"/quota.v1.QuotaService/Watch", "application/connect+json", watch, 0, "streams", rpc.StreamBytes},
		"streams of HTTP/2":   {"/quota.v1.QuotaService/Watch", "application/connect+json", watch, 500, "streams", rpc.StreamBytes},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNodes(t, 1)[0]
			const quota = `{"quotas":[{"name":"s","slots":{"limit":1}}]}`
			post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", quota)
			post(t, n.url, "/quota.v1.QuotaService/Reserve", `{"holder":"h","items":[{"quota":"s"}]}`)
			admin := quotav1connect.NewAdminServiceClient(h2c(t), n.url)
			use := func() int64 {
				status, err := admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range status.NodeBudgets {
					if b.Name == c.budget {
						return b.Used
					}
				}
				return 0
			}
			use()
			before := held()
			if c.perConn == 0 {
				for range many {
					callFirst(t, n.config.APIAddress, c.path, c.kind, c.body)
				}
			} else {
				for range many / c.perConn {
					callSecond(t, n.config.APIAddress, c.path, c.kind, c.body, c.perConn)
				}
			}
			eventually(t, "all are there", func() bool { return use() >= many })
			each := (held() - before) / many
			t.Logf("%d bytes each", each)
			if each > c.most {
				t.Errorf("each takes %d bytes, the plan has %d", each, c.most)
			}
		})
	}
}
