package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/signals"
)

// core governs every request by one unit of t/core.
func core(*http.Request) Call { return Call{Items: one("t/core", 1)} }

// roundTrip is a base that answers without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, header http.Header, body string) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), ProtoMajor: 1, ProtoMinor: 1}
}

// provider starts an HTTP server as the provider, and returns a governed client of it.
func provider(
	t *testing.T, cluster *fakequota.Cluster, handler http.Handler, options ...TransportOption,
) (*httptest.Server, *Transport, *http.Client) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c := connected(t, cluster)
	t.Cleanup(func() { _ = c.Close() })
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	transport := NewTransport(c, base, append([]TransportOption{Match(core)}, options...)...)
	return server, transport, &http.Client{Transport: transport}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

func full() *fakequota.Cluster {
	cluster := fakequota.New(1)
	cluster.Set("t/core", fakequota.Quota{Usable: 1_000, Available: 1_000})
	return cluster
}

func TestTransport_ReservesAndSettlesEachCall(t *testing.T) {
	cluster := full()
	server, transport, client := provider(t, cluster, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	for range 3 {
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if string(body) != "hello" {
			t.Errorf("body %q", body)
		}
	}
	eventually(t, "all leases have ended", func() bool { return cluster.Leases() == 0 })
	if stats := transport.Stats(); stats.Calls != 3 || stats.Written != 3 || taken(cluster) != 3 || stats.Overrun != 0 {
		t.Errorf("stats %+v, taken %d", stats, taken(cluster))
	}
}

func TestTransport_RefusalSendsNothing(t *testing.T) {
	cluster := full()
	cluster.Set("t/core", fakequota.Quota{Usable: 10})
	var served atomic.Int64
	server, _, client := provider(t, cluster, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }), QueueWait(0))
	_, err := client.Get(server.URL)
	var refusal *RefusalError
	if !errors.As(err, &refusal) || !errors.Is(err, ReasonExhausted) || served.Load() != 0 {
		t.Errorf("got %v, served %d", err, served.Load())
	}
}

func TestTransport_RedirectReservesAgain(t *testing.T) {
	cluster := full()
	server, transport, client := provider(t, cluster, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/there", http.StatusFound)
		}
	}))
	response, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if got := transport.Stats().Written; got != 2 || taken(cluster) != 2 {
		t.Errorf("written %d, taken %d, want 2", got, taken(cluster))
	}
}

// closing is a provider that answers the first request on each connection, and closes the connection after reading the second one.
// net/http treats that as a dead kept-alive connection and repeats the request.
func closing(t *testing.T) (address string, reads *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reads = &atomic.Int64{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(conn)
			for served := 0; ; served++ {
				request, err := http.ReadRequest(in)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, request.Body)
				reads.Add(1)
				if served == 1 {
					break
				}
				_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return "http://" + listener.Addr().String(), reads
}

func TestTransport_ReservesEachRepeatOfNetHTTP(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		t.Run(method, func(t *testing.T) {
			cluster := full()
			address, reads := closing(t)
			_, transport, client := provider(t, cluster, http.NotFoundHandler())
			for range 4 {
				var body io.Reader
				if method == http.MethodPut {
					body = strings.NewReader("x")
				}
				request, err := http.NewRequest(method, address, body)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Idempotency-Key", "k")
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			stats := transport.Stats()
			if reads.Load() != 7 || stats.Written != 7 || taken(cluster) != 7 || stats.Overrun != 0 {
				t.Errorf("the provider read %d requests, %d were allowed: %+v", reads.Load(), taken(cluster), stats)
			}
		})
	}
}

func TestTransport_WritesNoRepeatWithoutAllowance(t *testing.T) {
	cluster := fakequota.New(1)
	cluster.Set("t/core", fakequota.Quota{Usable: 2, Available: 2})
	address, reads := closing(t)
	_, _, client := provider(t, cluster, http.NotFoundHandler(), QueueWait(0))
	response, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	_, err = client.Get(address)
	if !errors.Is(err, ReasonExhausted) || reads.Load() != 2 {
		t.Errorf("got %v, the provider read %d requests", err, reads.Load())
	}
}

func TestTransport_SecondWriteIsAnOverrun(t *testing.T) {
	cluster := full()
	c := connected(t, cluster)
	defer func() { _ = c.Close() }()
	transport := NewTransport(c, roundTrip(func(r *http.Request) (*http.Response, error) {
		trace := traceOf(r)
		trace.WroteHeaders()
		trace.WroteHeaders()
		return respond(200, nil, ""), nil
	}), Match(core))
	response, err := (&http.Client{Transport: transport}).Get("http://provider.example")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	eventually(t, "the overrun is charged", func() bool { return taken(cluster) == 2 })
}

func TestTransport_ReturnsUnwrittenAttempt(t *testing.T) {
	cluster := full()
	c := connected(t, cluster)
	defer func() { _ = c.Close() }()
	client := &http.Client{Transport: NewTransport(c, &http.Transport{}, Match(core))}
	if _, err := client.Get("http://127.0.0.1:1"); err == nil {
		t.Fatal("no error")
	}
	eventually(t, "the unit is back", func() bool { return taken(cluster) == 0 && cluster.Leases() == 0 })
}

func TestTransport_HoldsLeaseUntilBodyIsClosed(t *testing.T) {
	cluster := full()
	more := make(chan struct{})
	server, _, client := provider(t, cluster, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
	}))
	for _, how := range []string{"EOF", "close"} {
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if cluster.Leases() != 1 {
			t.Errorf("%s: %d leases while the body is open", how, cluster.Leases())
		}
		if how == "EOF" {
			more <- struct{}{}
			_, _ = io.Copy(io.Discard, response.Body)
		} else {
			_ = response.Body.Close()
		}
		eventually(t, how+" ends the lease", func() bool { return cluster.Leases() == 0 })
		_ = response.Body.Close()
	}
}

// answers returns a base that gives one answer after the other, and the times at which it was called.
func answers(give ...func(*http.Request) *http.Response) (http.RoundTripper, *[]time.Time) {
	var asked []time.Time
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		}
		asked = append(asked, time.Now())
		answer := give[min(len(asked), len(give))-1](r)
		return answer, nil
	}), &asked
}

func ok(*http.Request) *http.Response { return respond(200, nil, "fine") }

func tooMany(after string) func(*http.Request) *http.Response {
	return func(*http.Request) *http.Response {
		return respond(429, http.Header{"Retry-After": {after}}, "slow down")
	}
}

func TestTransport_Retries429InWindowOfClass(t *testing.T) {
	for _, tt := range []struct {
		class    Class
		from, to time.Duration
	}{
		{Critical, 0, 500 * time.Millisecond},
		{Standard, 500 * time.Millisecond, 3500 * time.Millisecond},
		{Background, 3500 * time.Millisecond, 9500 * time.Millisecond},
	} {
		for range 20 {
			virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
				base, asked := answers(tooMany("20"), ok)
				client := &http.Client{Transport: NewTransport(c, base, Match(core))}
				response, err := client.Post("http://provider.example", "text/plain", strings.NewReader("body"))
				if err != nil || response.StatusCode != http.StatusOK || len(*asked) != 2 {
					t.Fatalf("%v, %v, asked %d times", response, err, len(*asked))
				}
				_ = response.Body.Close()
				if apart := (*asked)[1].Sub((*asked)[0]) - 20*time.Second; apart < tt.from || apart >= tt.to {
					t.Errorf("class %v came back %v after the cooldown, want %v to %v", tt.class, apart, tt.from, tt.to)
				}
			}, WithClass(tt.class))
		}
	}
}

func TestTransport_Passed429IsWholeWithRetryAfter(t *testing.T) {
	once := func(b io.Reader) io.Reader { return struct{ io.Reader }{b} }
	for name, tt := range map[string]struct {
		after   string
		body    io.Reader
		ctx     time.Duration
		options []TransportOption
		header  http.Header
	}{
		"a wait above the bound":            {after: "3600"},
		"a wait above the caller's":         {after: "20", ctx: 10 * time.Second},
		"a body that cannot be had again":   {after: "5", body: once(strings.NewReader("xy")), options: []TransportOption{MaxBody(1)}},
		"no retries":                        {after: "5", options: []TransportOption{Retries(0)}},
		"the provider asks not to":          {after: "5", header: http.Header{"X-Should-Retry": {"false"}}},
		"a wait that is no number":          {after: "NaN", options: []TransportOption{RetryWait(0)}},
		"a wait of more than a day":         {after: "1000000"},
		"a wait that overflows everything":  {after: "99999999999999999999"},
		"a wait in a date long ago, passed": {after: "Fri, 31 Dec 1999 23:59:59 GMT", options: []TransportOption{RetryWait(0)}},
	} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			base, asked := answers(func(*http.Request) *http.Response {
				header := http.Header{"Retry-After": {tt.after}}
				maps.Copy(header, tt.header)
				return respond(429, header, "the whole body")
			})
			ctx := context.Background()
			if tt.ctx > 0 {
				ctx = within(t, tt.ctx)
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider.example", tt.body)
			if err != nil {
				t.Fatal(err)
			}
			response, err := NewTransport(c, base, append([]TransportOption{Match(core)}, tt.options...)...).RoundTrip(request)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusTooManyRequests || string(body) != "the whole body" || len(*asked) != 1 ||
				response.Request != request {
				t.Errorf("%s: status %d, body %q, asked %d times", name, response.StatusCode, body, len(*asked))
			}
			said, _ := signals.Verdict(signals.Generic.Observe(time.Now(), 429, response.Header, nil))
			if response.Header.Get("X-Should-Retry") != "false" || !said.RetryAfter.Known || said.RetryAfter.D > signals.MaxWait || said.Clamped {
				t.Errorf("%s: header %v", name, response.Header)
			}
		})
	}
}

func TestTransport_UnpaidIsNotRetried(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		base, asked := answers(func(*http.Request) *http.Response {
			return respond(429, nil, `{"error":{"type":"insufficient_quota","code":null}}`)
		})
		response, err := NewTransport(c, base, Match(core),
			Speak(signals.OpenAI)).RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if len(*asked) != 1 || response.Header.Get("X-Should-Retry") != "false" || response.Header.Get("Retry-After") != "" {
			t.Errorf("asked %d times, header %v", len(*asked), response.Header)
		}
		if reports := cluster.Reports(); len(reports) != 1 || reports[0].GetSignals()[0].GetCause() != quotav1.Cause_CAUSE_PLAN {
			t.Errorf("reports %v", reports)
		}
	})
}

func TestTransport_ReportsGitHubCounts(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("github/core", fakequota.Quota{Usable: 5_000, Available: 5_000})
		counts := http.Header{}
		counts.Set("X-RateLimit-Limit", "5000")
		counts.Set("X-RateLimit-Remaining", "4200")
		// This machine's clock is 20 minutes ahead of the provider's.
		theirs := time.Now().Add(-20 * time.Minute)
		counts.Set("Date", theirs.UTC().Format(http.TimeFormat))
		counts.Set("X-RateLimit-Reset", fmt.Sprint(theirs.Add(time.Hour).Unix()))
		counts.Set("X-RateLimit-Resource", "core")
		base, _ := answers(func(*http.Request) *http.Response { return respond(200, counts, "") })
		client := &http.Client{Transport: NewTransport(c, base, GitHub())}
		for range 10 {
			response, err := client.Get("https://api.github.com/repos/a/b")
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
		}
		synctest.Wait()
		reports := cluster.Reports()
		if len(reports) != 1 {
			t.Fatalf("%d reports of ordinary counts within a second, want 1", len(reports))
		}
		s := reports[0].GetSignals()[0]
		if s.GetQuota() != "github/core" || s.GetCause() != quotav1.Cause_CAUSE_OK || s.GetLimit() != 5_000 || s.GetRemaining() != 4_200 ||
			s.GetResetAfter().AsDuration() != time.Hour || s.GetResetResolution().AsDuration() != 2*time.Second {
			t.Errorf("reported %v", s)
		}
		// Without a Date header it is unknown by whose clock the reset is given.
		counts.Del("Date")
		<-time.After(2 * time.Second) // of virtual time
		response, err := client.Get("https://api.github.com/repos/a/b")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		synctest.Wait()
		if reports = cluster.Reports(); len(reports) != 2 || reports[1].GetSignals()[0].ResetAfter != nil ||
			reports[1].GetSignals()[0].GetRemaining() != 4_200 {
			t.Errorf("reported %v", reports)
		}
		if cluster.Leases() != 0 {
			t.Errorf("%d leases are left", cluster.Leases())
		}
	})
}

// Regression: headers of an unauthorised call, or of another resource, closed the wrong quota.
func TestTransport_ReportsNoCountsOfOtherResource(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("github/core", fakequota.Quota{Usable: 5_000, Available: 5_000})
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(401, http.Header{"X-Ratelimit-Limit": {"60"}, "X-Ratelimit-Remaining": {"0"}}, "")
		}, func(*http.Request) *http.Response {
			return respond(200, http.Header{"X-Ratelimit-Limit": {"30"}, "X-Ratelimit-Remaining": {"29"}, "X-Ratelimit-Resource": {"search"}}, "")
		})
		client := &http.Client{Transport: NewTransport(c, base, GitHub())}
		for range 2 {
			response, err := client.Get("https://api.github.com/user")
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
		}
		synctest.Wait()
		if reports := cluster.Reports(); len(reports) != 0 {
			t.Errorf("reported %v", reports)
		}
	})
}

func traceOf(r *http.Request) *httptrace.ClientTrace {
	return httptrace.ContextClientTrace(r.Context())
}

func TestTransport_ReplacesAllowanceThatAgedWhileConnecting(t *testing.T) {
	cluster := fakequota.New(1)
	cluster.Set("t/core", fakequota.Quota{Usable: 10, Available: 10, SpendBy: 300 * time.Millisecond, Transit: 100 * time.Millisecond})
	c := connected(t, cluster)
	defer func() { _ = c.Close() }()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	var dialer net.Dialer
	base := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-time.After(400 * time.Millisecond):
		case <-ctx.Done():
		}
		return dialer.DialContext(ctx, network, address)
	}}
	defer base.CloseIdleConnections()
	transport := NewTransport(c, base, Match(core))
	response, err := (&http.Client{Transport: transport}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	eventually(t, "all leases have ended", func() bool { return cluster.Leases() == 0 })
	if cluster.Executed("reserve") != 2 || transport.Stats().Written != 1 {
		t.Errorf("asked %d times, written %d", cluster.Executed("reserve"), transport.Stats().Written)
	}
}

// TestTransport_SpendsNoLateAllowance: if the cluster's answer takes longer than the allowance may be spent, nothing is written.
// (Found by the fault suite: mix default, seed 3, a leader whose disk was slow.)
func TestTransport_SpendsNoLateAllowance(t *testing.T) {
	cluster := fakequota.New(1)
	cluster.Set("t/core", fakequota.Quota{Usable: 10, Available: 10, SpendBy: time.Nanosecond, Transit: time.Nanosecond})
	c := connected(t, cluster)
	defer func() { _ = c.Close() }()
	called := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called++ }))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	transport := NewTransport(c, base, Match(core))
	response, err := (&http.Client{Transport: transport}).Get(server.URL)
	if err == nil {
		_ = response.Body.Close()
	}
	if !errors.Is(err, ErrLate) || called != 0 || transport.Stats().Written != 0 {
		t.Errorf("%v; the provider was called %d times, written %d", err, called, transport.Stats().Written)
	}
	eventually(t, "all leases have ended", func() bool { return cluster.Leases() == 0 })
}

func TestTransport_GovernsHTTP2(t *testing.T) {
	cluster := full()
	c := connected(t, cluster)
	defer func() { _ = c.Close() }()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	transport := NewTransport(c, client.Transport, Match(core))
	client.Transport = transport
	for range 3 {
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if string(body) != "HTTP/2.0" {
			t.Fatalf("spoke %s", body)
		}
	}
	eventually(t, "all leases have ended", func() bool { return cluster.Leases() == 0 })
	if stats := transport.Stats(); stats.Written != 3 || stats.Overrun != 0 || taken(cluster) != 3 {
		t.Errorf("stats %+v, taken %d", stats, taken(cluster))
	}
}
