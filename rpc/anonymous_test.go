package rpc_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/rpc"
)

// TestConnections_RefusedAnonymousCallersLeaveRoom: anonymous callers of many addresses, each on a connection of its own, wait for their
// refusals at a busy node. Meanwhile a new connection is served.
func TestConnections_RefusedAnonymousCallersLeaveRoom(t *testing.T) {
	const room, attackers = 100, 20 // a fifth of the room is anonymous callers'
	n, _ := guarded(t, rpc.AlwaysBusy)
	listener, err := rpc.Listen("127.0.0.1:0", room)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewHTTPServer(n.server.Handler(), nil, hclog.NewNullLogger())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	address := listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	answered := make(chan struct{}, 1<<16)
	for i := range attackers {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}}
		all.Go(func() { callsWithoutToken(ctx, from, address, answered) })
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	for range 100 { // by then they have used up their turns
		<-answered
	}
	for range 5 {
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if status := sendForm(t, fresh, http.MethodGet, "http://"+address+"/livez", form{}, false, nil); status != http.StatusOK {
			t.Fatalf("among refused anonymous callers: %d", status)
		}
	}
}

// callsWithoutToken opens a connection and calls on it until it ends.
func callsWithoutToken(ctx context.Context, from net.Dialer, address string, answered chan<- struct{}) {
	conn, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	answers := bufio.NewReader(conn)
	for {
		if _, err := io.WriteString(conn, "GET /quota.v1.QuotaService/ListQuotas HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return
		}
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			return
		}
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if err != nil {
			return
		}
		select {
		case answered <- struct{}{}:
		default:
		}
	}
}
