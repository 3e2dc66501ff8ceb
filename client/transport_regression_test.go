package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/signals"
)

// stalled is a connection whose next write, once armed, blocks until letGo is closed.
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

// Regression: over HTTP/2 a call cancelled while its headers were being written was returned as unspent, although the provider received
// it.
func TestTransport_CallCancelledWhileWrittenIsCharged(t *testing.T) {
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

// streams returns a base whose response bodies never end, and a pointer to its last request.
func streams() (http.RoundTripper, **http.Request) {
	var last *http.Request
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		last = r
		response := respond(200, nil, "")
		response.Body, _ = io.Pipe()
		return response, nil
	}), &last
}

// Regression: a stream continued after its slot was lost, while the slot's next holder already used it.
func TestTransport_StreamEndsWithItsSlot(t *testing.T) {
	both := []Item{{Quota: "t/core", Amount: 1}, {Quota: "t/streams", Amount: 1}}
	for _, tt := range []struct {
		name  string
		items []Item
		lose  func(*fakequota.Cluster)
		cause error
	}{
		{"the cluster is away", one("t/streams", 1), func(c *fakequota.Cluster) { c.Break(0, fakequota.Silent) }, ErrLeaseExpired},
		{"it was revoked", one("t/streams", 1), (*fakequota.Cluster).Revoke, ReasonStaleFence},
		{"a rate besides", both, (*fakequota.Cluster).Revoke, ReasonStaleFence},
		{"nobody reads it any more", one("t/streams", 1), func(*fakequota.Cluster) { pass(20 * time.Minute) }, ErrLeaseExpired},
		{"a rate alone has no slot to lose", one("t/core", 1), (*fakequota.Cluster).Revoke, nil},
	} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.Set("t/streams", fakequota.Quota{Usable: 1, Available: 1, Slots: true})
			base, call := streams()
			transport := NewTransport(c, base, Match(func(*http.Request) Call { return Call{Items: tt.items} }))
			response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
			if err != nil {
				t.Fatal(err)
			}
			tt.lose(cluster)
			pass(10 * time.Minute)
			synctest.Wait()
			if cause := context.Cause((*call).Context()); !errors.Is(cause, tt.cause) || (cause == nil) != (tt.cause == nil) {
				t.Errorf("%s: the call ended with %v, want %v", tt.name, cause, tt.cause)
			}
			_ = response.Body.Close()
		})
	}
}

// TestTransport_MaxCallBoundsAnUnreadCall: the body of a call is never read. Its slot is kept alive until MaxCall, and lost soon after.
func TestTransport_MaxCallBoundsAnUnreadCall(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/streams", fakequota.Quota{Usable: 1, Available: 1, Slots: true})
		base, call := streams()
		transport := NewTransport(c, base, Match(func(*http.Request) Call { return Call{Items: one("t/streams", 1)} }), MaxCall(time.Hour))
		response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
		if err != nil {
			t.Fatal(err)
		}
		pass(59 * time.Minute)
		if err := context.Cause((*call).Context()); err != nil {
			t.Errorf("before MaxCall: %v", err)
		}
		pass(7 * time.Minute) // the last renewal extended it by 5 min
		if err := context.Cause((*call).Context()); !errors.Is(err, ErrLeaseExpired) {
			t.Errorf("after MaxCall: %v", err)
		}
		_ = response.Body.Close()
	})
}

// Regression: a slot was kept alive for at most ten minutes, even while its stream was being read.
func TestTransport_KeepsSlotWhileStreamIsRead(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/streams", fakequota.Quota{Usable: 1, Available: 1, Slots: true})
		base, call := streams()
		transport := NewTransport(c, base, Match(func(*http.Request) Call { return Call{Items: one("t/streams", 1)} }))
		response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, response.Body)
			ended <- err
		}()
		pass(time.Hour)
		if (*call).Context().Err() != nil || cluster.Leases() != 1 {
			t.Errorf("the call: %v, %d leases", context.Cause((*call).Context()), cluster.Leases())
		}
		_ = response.Body.Close()
		if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the read ended with %v", err)
		}
		synctest.Wait()
		if cluster.Leases() != 0 {
			t.Error("the slot is still held")
		}
	})
}

// A call whose slot is lost before there is an answer fails with that reason.
func TestTransport_LostSlotNamesReason(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/streams", fakequota.Quota{Usable: 1, Available: 1, Slots: true})
		base := roundTrip(func(r *http.Request) (*http.Response, error) {
			cluster.Revoke()
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		transport := NewTransport(c, base, Match(func(*http.Request) Call { return Call{Items: one("t/streams", 1)} }))
		response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
		if err == nil {
			_ = response.Body.Close()
		}
		if !errors.Is(err, ReasonStaleFence) {
			t.Errorf("got %v", err)
		}
	})
}

// Regression: a refused call waited two seconds for an absent cluster to take its report, whatever the caller's deadline.
func TestReport_KeepsCallersDeadline(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		transport := NewTransport(c, roundTrip(func(*http.Request) (*http.Response, error) {
			cluster.Break(0, fakequota.Silent)
			return respond(429, http.Header{"Retry-After": {"5"}}, ""), nil
		}), Match(core))
		request, err := http.NewRequestWithContext(within(t, 300*time.Millisecond), http.MethodGet, "http://provider.example", nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		response, err := transport.RoundTrip(request)
		if took := time.Since(start); err != nil || took > 350*time.Millisecond {
			t.Fatalf("%v after %v", err, took)
		}
		_ = response.Body.Close()
		cluster.Break(0, fakequota.Healthy)
		pass(10 * time.Second)
		if len(cluster.Reports()) != 1 || cluster.Leases() != 0 {
			t.Errorf("%d reports, %d leases", len(cluster.Reports()), cluster.Leases())
		}
	})
}

// Regression: a count above the cluster's maximum made it reject the whole report, and the cooldown in it was lost.
func TestReport_OmitsAbsurdCounts(t *testing.T) {
	header := http.Header{"X-Ratelimit-Limit": {"999999999999999999"}, "X-Ratelimit-Remaining": {"9007199254740992"}, "Retry-After": {"30"}}
	report := NewTransport(nil, nil).signalsFor(Call{Items: one("t/core", 1)}, signals.Generic.Observe(time.Now(), 429, header, nil), true)
	if len(report) != 1 || report[0].Limit != nil || report[0].Remaining != nil || report[0].RetryAfter == nil ||
		*report[0].RetryAfter != 30*time.Second {
		t.Errorf("reported %+v", report)
	}
}

// watched is a context that counts the functions registered with it.
type watched struct {
	context.Context
	hanging *atomic.Int64
}

func (watched) Done() <-chan struct{} { return make(chan struct{}) }

func (w watched) AfterFunc(func()) func() bool {
	w.hanging.Add(1)
	return func() bool { w.hanging.Add(-1); return true }
}

// Regression: the context of a call without a body stayed registered with the caller's context for the lifetime of that one.
func TestTransport_BodylessCallLeavesNoContext(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		transport := NewTransport(c, roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNotModified, Header: http.Header{}, Body: http.NoBody}, nil
		}), Match(core))
		parent := watched{context.Background(), &atomic.Int64{}}
		for range 10 {
			request, err := http.NewRequestWithContext(parent, http.MethodGet, "http://provider.example", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
		}
		synctest.Wait()
		if got := parent.hanging.Load(); got != 0 {
			t.Errorf("%d contexts hang on the caller's", got)
		}
	})
}

// endless is a body that does not end until it is closed.
type endless struct{ closed *atomic.Bool }

func (e endless) Read(p []byte) (int, error) {
	if e.closed.Load() {
		return 0, io.EOF
	}
	return copy(p, `data: {"total_tokens": 5} `), nil
}

func (e endless) Close() error {
	e.closed.Store(true)
	return nil
}

// Regression: a data race.
func TestTransport_BodyClosedWhileRead(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		transport := NewTransport(c, roundTrip(func(*http.Request) (*http.Response, error) {
			response := respond(200, nil, "")
			response.Body = endless{&atomic.Bool{}}
			return response, nil
		}), Match(func(*http.Request) Call {
			return Call{Items: one("t/core", 7), Usage: map[string]string{"total_tokens": "t/core"}}
		}))
		for range 20 {
			response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
			if err != nil {
				t.Fatal(err)
			}
			started, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.ReadFull(response.Body, make([]byte, 100))
				close(started)
				_, _ = io.Copy(io.Discard, response.Body)
			}()
			<-started
			_ = response.Body.Close()
			<-ended
		}
		synctest.Wait()
		if got := taken(cluster); got != 20*5 {
			t.Errorf("%d were used, want 100", got)
		}
	})
}

// open is a body that counts as open until it is closed.
type open struct {
	io.Reader
	count *atomic.Int64
}

func (o open) Close() error {
	o.count.Add(-1)
	return nil
}

// Regression: the body for a retry stayed open if the caller left before the retry.
func TestTransport_ClosesBodyOfAbandonedRetry(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		base, _ := answers(tooMany("5"))
		var count atomic.Int64
		body := func() (io.ReadCloser, error) {
			count.Add(1)
			return open{strings.NewReader("x"), &count}, nil
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		first, _ := body()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider.example", first)
		if err != nil {
			t.Fatal(err)
		}
		request.GetBody = body
		response, err := NewTransport(c, base, Match(core)).RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if !errors.Is(err, context.Canceled) || count.Load() != 0 {
			t.Errorf("%v; %d bodies are open", err, count.Load())
		}
	})
}

// Regression: a panic.
func TestTransport_RetriesRefusalWithoutBody(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		base, asked := answers(func(*http.Request) *http.Response { return &http.Response{StatusCode: http.StatusTooManyRequests} }, ok)
		response, err := NewTransport(c, base, Match(core)).RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
		if err != nil || response.StatusCode != http.StatusOK || len(*asked) != 2 {
			t.Fatalf("%v, %v, asked %d times", response, err, len(*asked))
		}
		_ = response.Body.Close()
	})
}

// TestTransport_UsageAtEndCountsWholeBodiesOnly closes a stream early whose counters rise: with UsageAtEnd the estimate stays, without
// it the last counter is the use.
func TestTransport_UsageAtEndCountsWholeBodiesOnly(t *testing.T) {
	const stream = "data: {\"total_tokens\": 2}\n\ndata: {\"total_tokens\": 5}\n\n"
	for name, c := range map[string]struct {
		atEnd, whole bool
		want         int64
	}{
		"cut off, at the end only": {true, false, 7},
		"whole, at the end only":   {true, true, 5},
		"cut off, anywhere":        {false, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, client *Client) {
				transport := NewTransport(client, roundTrip(func(*http.Request) (*http.Response, error) {
					return respond(200, nil, stream), nil
				}), Match(func(*http.Request) Call {
					return Call{Items: one("t/core", 7), Usage: map[string]string{"total_tokens": "t/core"}, UsageAtEnd: c.atEnd}
				}))
				response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
				if err != nil {
					t.Fatal(err)
				}
				read := len("data: {\"total_tokens\": 2}\n\ndata")
				if c.whole {
					read = len(stream) + 1
				}
				_, _ = io.ReadFull(response.Body, make([]byte, read))
				_ = response.Body.Close()
				synctest.Wait()
				if got := taken(cluster); got != c.want {
					t.Errorf("%d are used, want %d", got, c.want)
				}
			})
		})
	}
}
