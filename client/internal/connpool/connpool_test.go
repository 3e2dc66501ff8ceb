package connpool

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestPool_WaitingCallsLeaveOthersAConnection: on a path that carries fewer calls on a connection than a node, calls that wait for quotas
// do not delay those that renew leases.
func TestPool_WaitingCallsLeaveOthersAConnection(t *testing.T) {
	const most = 10
	entered, end := make(chan struct{}, most), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == quotav1connect.QuotaServiceReserveProcedure {
			entered <- struct{}{}
			<-end
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: most}
	server.Start()
	pool := newPool(nil)
	// Those that wait for room on their connection end by this.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, most)
	t.Cleanup(func() {
		cancel()
		close(end)
		for range most {
			<-ended //nolint:errcheck // they end with ctx
		}
		pool.Close()
		server.Close()
	})
	call := func(path string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, http.NoBody)
		if err != nil {
			return err
		}
		response, err := pool.RoundTrip(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	for range most {
		go func() { ended <- call(quotav1connect.QuotaServiceReserveProcedure) }()
	}
	for n := range most {
		select {
		case <-entered:
		case <-time.After(time.Minute):
			t.Fatalf("%d calls wait", n)
		}
	}
	renewed := make(chan error, 1)
	go func() { renewed <- call(quotav1connect.QuotaServiceRenewProcedure) }()
	select {
	case err := <-renewed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a renewal waits for calls that wait")
	}
}
