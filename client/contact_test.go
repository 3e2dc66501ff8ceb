package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// unused returns an address without a listener.
func unused(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func TestClient_NamesAWrongEndpoint(t *testing.T) {
	nobody := unused(t)
	foreign := httptest.NewServer(http.NotFoundHandler())
	defer foreign.Close()
	elsewhere := strings.TrimPrefix(foreign.URL, "http://")
	for _, tt := range []struct {
		name, address, want string
	}{
		{"nobody listens", nobody, "no quotad node answers at " + nobody + ": connection refused"},
		{"it is something else", elsewhere, elsewhere + " does not answer as a quotad node"},
	} {
		c, err := New([]string{tt.address}, WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		for call, do := range map[string]func(context.Context) error{
			"Ping":  c.Ping,
			"Ready": c.Ready,
			"Reserve": func(ctx context.Context) error {
				_, err := c.Reserve(ctx, ReserveRequest{Items: one("t/core", 1)})
				return err
			},
			"Quota": func(ctx context.Context) error { _, err := c.Quota(ctx, "t/core"); return err },
			"Wait":  c.Limiter("t/core").Wait,
		} {
			began := time.Now()
			err := do(context.Background())
			if err == nil {
				t.Fatalf("%s, %s: no error", tt.name, call)
			}
			text := err.Error()
			if strings.Count(text, tt.want) != 1 || strings.Count(text, "quotad: ") != 1 || strings.Contains(text, "\n") {
				t.Errorf("%s, %s: %v, want it to say %q", tt.name, call, err, tt.want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s, %s: it took %v", tt.name, call, took)
			}
		}
		_ = c.Close()
	}
}

// A client that has reached its cluster before waits until the call timeout.
func TestClient_WaitsForAClusterThatItKnows(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		if err := c.Ready(context.Background()); err != nil {
			t.Fatal(err)
		}
		cluster.Break(0, fakequota.Refusing)
		began := time.Now()
		_, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
		if took := time.Since(began); !errors.Is(err, ErrClusterAway) || took != 10*time.Second {
			t.Errorf("%v after %v, want that the cluster is away after 10s", err, took)
		}
		if errors.As(err, new(*UnknownOutcomeError)) {
			t.Errorf("%v, but nothing was sent", err)
		}
	})
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Break(0, fakequota.Refusing)
		began := time.Now()
		_, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/core", 1)})
		if took := time.Since(began); !errors.Is(err, ErrClusterAway) || took > time.Second {
			t.Errorf("%v after %v, want within a second", err, took)
		}
		cluster.Break(0, fakequota.Healthy)
		if err := c.Ping(context.Background()); err != nil {
			t.Error(err)
		}
		cluster.Lead(-1)
		if err := c.Ping(context.Background()); err != nil {
			t.Errorf("Ping of a node without a leader: %v", err)
		}
		if err := c.Ready(context.Background()); !errors.Is(err, ReasonNoLeader) {
			t.Errorf("Ready without a leader: %v", err)
		}
	})
}

func TestErrors_ReadWell(t *testing.T) {
	dial := connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	away := &UnreachableError{nodes: []contact{
		{"a:1", dial}, {"b:2", context.DeadlineExceeded}, {"c:3", &net.DNSError{Err: "no such host"}}, {"d:4", dial},
	}}
	const nobody = "no quotad node answers (a:1: connection refused; b:2: no answer; c:3: no such host; and 1 more)"
	noLeader := &NotAcceptedError{Reason: ReasonNoLeader, Err: errors.New("no leader is known")}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&NotAcceptedError{Err: joined(context.DeadlineExceeded, away)}, "quotad: not accepted: context deadline exceeded: " + nobody},
		{&NotAcceptedError{Err: joined(away, away)}, "quotad: not accepted: " + nobody},
		{
			&NotAcceptedError{Err: joined(context.Canceled, joined(ErrClusterAway, noLeader))},
			"quotad: not accepted: context canceled: the cluster is away: NO_LEADER: no leader is known",
		},
		{
			&UnknownOutcomeError{Reason: ReasonStopping, Err: &NotAcceptedError{Reason: ReasonStopping, Err: errors.New("STOPPING: it stops")}},
			"quotad: outcome unknown: STOPPING: it stops",
		},
		{
			&RefusalError{Reason: ReasonExhausted, Quota: "t/core", RetryAfter: 1234567891},
			"quotad: refused: EXHAUSTED of t/core, retry after 1.2s",
		},
		{
			&RefusalError{Reason: ReasonExhausted, Quota: "t/core", RetryAfter: 3*time.Minute + 987654321},
			"quotad: refused: EXHAUSTED of t/core, retry after 3m1s",
		},
		{&RefusalError{Reason: ReasonExhausted, Quota: "t/core", RetryAfter: 12345678}, "quotad: refused: EXHAUSTED of t/core, retry after 12ms"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}

// Regression: Allow always returned false for a misspelt quota, without a reason anywhere.
func TestLimiter_NamesWhyNothingIsTaken(t *testing.T) {
	var log bytes.Buffer
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("t/slots", fakequota.Quota{Usable: 2, Available: 2, Slots: true})
		for name, want := range map[string]error{"t/coer": ReasonUnknownQuota, "t/slots": ErrSlots} {
			log.Reset()
			limiter := c.Limiter(name)
			for range 3 {
				if limiter.Allow() {
					t.Errorf("%s: allowed", name)
				}
				taken := limiter.TryTake()
				if taken.OK() || !errors.Is(taken.Err(), want) || taken.Delay() != math.MaxInt64 {
					t.Errorf("%s: %v, delay %v, %v", name, taken.OK(), taken.Delay(), taken.Err())
				}
				pass(time.Minute)
				if limiter.Allow() {
					t.Errorf("%s: allowed", name)
				}
			}
			if err := limiter.Err(); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
			if got := strings.Count(log.String(), "a limiter cannot get any units"); got != 1 {
				t.Errorf("%s: %d warnings, want 1: %s", name, got, &log)
			}
		}
		// Once the quota exists, takes succeed.
		limiter := c.Limiter("t/later")
		if limiter.Allow() {
			t.Error("allowed")
		}
		cluster.Set("t/later", fakequota.Quota{Usable: 10, Available: 10})
		pass(time.Minute)
		if !limiter.Allow() || limiter.Err() != nil {
			t.Errorf("not allowed: %v", limiter.Err())
		}
	}, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
}

func TestLimiter_Limit(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		limiter := c.LimiterOf([]Item{{Quota: "t/core", Amount: 10}})
		if got := fmt.Sprint(limiter.Limit(), limiter.Burst(), limiter.Tokens()); got != "+Inf 0 0" {
			t.Errorf("before the cluster was asked: %s", got)
		}
		if err := limiter.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		// 1,000 units a minute are 100 calls a minute.
		if got := fmt.Sprintf("%.3f %d", limiter.Limit(), limiter.Burst()); got != "1.667 100" {
			t.Errorf("limit and burst %s, want 1.667 100", got)
		}
	})
}
