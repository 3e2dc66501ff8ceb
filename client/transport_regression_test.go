package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// stalled is a connection whose next write, once armed, waits to be let go.
type stalled struct {
	net.Conn
	armed          *atomic.Bool
	reached, letGo chan struct{}
}

func (s stalled) Write(p []byte) (int, error) {
	if s.armed.CompareAndSwap(true, false) {
		close(s.reached)
		<-s.letGo
	}
	return s.Conn.Write(p)
}

// Regression: over HTTP/2 a call that was given up while its headers were being written went back as unspent, and the
// provider got it all the same.
func TestACallThatIsGivenUpWhileItIsWrittenIsSpent(t *testing.T) {
	cluster := full()
	c := connected(t, cluster)
	defer func() { _ = c.Close() }()
	var served atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	stall := stalled{armed: &atomic.Bool{}, reached: make(chan struct{}), letGo: make(chan struct{})}
	trusting, ok := server.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("not net/http's transport")
	}
	base := trusting.Clone()
	defer base.CloseIdleConnections()
	base.ForceAttemptHTTP2 = true
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
		return stalled{conn, stall.armed, stall.reached, stall.letGo}, err
	}
	client := &http.Client{Transport: NewTransport(c, base, Match(core))}
	response, err := client.Get(server.URL)
	if err != nil || response.ProtoMajor != 2 {
		t.Fatalf("%v, %v", response, err)
	}
	_ = response.Body.Close()
	eventually(t, "the first call is over", func() bool { return cluster.Leases() == 0 })

	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	stall.armed.Store(true)
	ended := make(chan error, 1)
	go func() {
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		ended <- err
	}()
	<-stall.reached
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the second call is settled", func() bool { return cluster.Leases() == 0 })
	close(stall.letGo)
	eventually(t, "the provider has both", func() bool { return served.Load() == 2 })
	if got := taken(cluster); got != 2 {
		t.Errorf("the provider served 2, %d are charged", got)
	}
}
