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

// TestPick_FillsNoConnectionBeyondItsRoom: many calls start at once, and there is room for exactly as many.
func TestPick_FillsNoConnectionBeyondItsRoom(t *testing.T) {
	const most = 10
	for range 200 {
		s := &hostState{}
		s.most.Store(most)
		begin := make(chan struct{})
		var calls sync.WaitGroup
		for range (nodeConns - 1) * most {
			calls.Go(func() {
				<-begin
				s.pick(true)
			})
		}
		close(begin)
		calls.Wait()
		for i := range s.calls {
			if got := s.calls[i].Load(); got > most {
				t.Fatalf("connection %d has %d calls, and room for %d", i, got, most)
			}
		}
	}
}

// TestPool_AsksAgainWhatAConnectionCarries: a host may get another balancer. An answer that ends its connection shows nothing.
func TestPool_AsksAgainWhatAConnectionCarries(t *testing.T) {
	for name, c := range map[string]struct {
		ends bool
		want int64
	}{"a balancer": {want: 100}, "a server that ends its connections": {ends: true, want: connCalls}} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.ends {
					w.Header().Set("Connection", "close")
				}
			}))
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100}
			server.Start()
			defer server.Close()
			pool := newPool(nil)
			defer pool.Close()
			at := host{"http", strings.TrimPrefix(server.URL, "http://")}
			s, err := pool.detect(t.Context(), at)
			if err != nil || s.most.Load() != c.want {
				t.Fatalf("%v: a connection carries %d, want %d", err, s.most.Load(), c.want)
			}
			pool.mu.Lock()
			s.until = time.Now().Add(-time.Second)
			pool.mu.Unlock()
			s.most.Store(1)
			late := time.After(time.Minute)
			for s.most.Load() != c.want {
				if _, err := pool.detect(t.Context(), at); err != nil {
					t.Fatal(err)
				}
				select {
				case <-late:
					t.Fatalf("a connection still carries %d", s.most.Load())
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
}
