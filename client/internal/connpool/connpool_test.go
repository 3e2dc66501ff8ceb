package connpool

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// held is a server that answers Reserves only once they are let go, and a pool that calls it.
type held struct {
	t    *testing.T
	ctx  context.Context
	pool *Pool
	url  string
	// entered has an element for each Reserve that arrived, until letGo.
	entered chan struct{}
	letGo   func()
	calls   sync.WaitGroup
}

// hold starts a server that carries a number of calls on a connection.
func hold(t *testing.T, most int) *held {
	t.Helper()
	end := make(chan struct{})
	h := &held{t: t, pool: newPool(nil), entered: make(chan struct{}, 1_000), letGo: sync.OnceFunc(func() { close(end) })}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == quotav1connect.QuotaServiceReserveProcedure {
			h.entered <- struct{}{}
			<-end
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: most}
	server.Start()
	h.url = server.URL
	// Calls that wait for a place on their connection end by this.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	h.ctx = ctx
	t.Cleanup(func() {
		cancel()
		h.letGo()
		h.calls.Wait()
		h.pool.Close()
		server.Close()
	})
	return h
}

func (h *held) call(path string) error {
	request, err := http.NewRequestWithContext(h.ctx, http.MethodPost, h.url+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := h.pool.RoundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// reserve starts Reserves.
func (h *held) reserve(n int) {
	for range n {
		h.calls.Go(func() { _ = h.call(quotav1connect.QuotaServiceReserveProcedure) })
	}
}

// arrive waits until further Reserves have arrived.
func (h *held) arrive(n int) {
	h.t.Helper()
	late := time.After(time.Minute)
	for arrived := range n {
		select {
		case <-h.entered:
		case <-late:
			h.t.Fatalf("%d of %d calls arrived", arrived, n)
		}
	}
}

// TestPool_WaitingCallsLeaveOthersAConnection: on a path that carries fewer calls on a connection than a node, calls that wait for quotas
// do not delay those that renew leases.
func TestPool_WaitingCallsLeaveOthersAConnection(t *testing.T) {
	const most = 10
	h := hold(t, most)
	h.reserve(most)
	h.arrive(most)
	renewed := make(chan error, 1)
	go func() { renewed <- h.call(quotav1connect.QuotaServiceRenewProcedure) }()
	select {
	case err := <-renewed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a renewal waits for calls that wait")
	}
}

// TestPool_CallsTakeFurtherConnections: calls take as many connections as the path needs: a node carries most of them on one, a balancer
// may carry few.
func TestPool_CallsTakeFurtherConnections(t *testing.T) {
	for _, c := range []struct{ most, calls, connections int }{{1_000, 950, 2}, {900, 900, 1}, {100, 330, 4}, {10, 150, 15}} {
		t.Run(fmt.Sprintf("%d on each", c.most), func(t *testing.T) {
			h := hold(t, c.most)
			h.reserve(c.calls)
			h.arrive(c.calls)
			used := 0
			s, err := h.pool.detect(t.Context(), host{"http", strings.TrimPrefix(h.url, "http://")})
			if err != nil {
				t.Fatal(err)
			}
			for i := range s.calls {
				if s.calls[i].Load() > 0 {
					used++
				}
			}
			if used != c.connections {
				t.Errorf("%d calls have %d connections, want %d", c.calls, used, c.connections)
			}
		})
	}
}
