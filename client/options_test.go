package client

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/signals"
)

func TestRetryWindows_ByClass(t *testing.T) {
	const cooldown = 5 * time.Second
	own := RetryWindows(RetryWindow{From: 0, To: 0}, RetryWindow{From: 20 * time.Second, To: 21 * time.Second},
		RetryWindow{From: 40 * time.Second, To: 41 * time.Second})
	for _, tt := range []struct {
		class Class
		from  time.Duration
	}{{Critical, 0}, {Standard, 20 * time.Second}, {Background, 40 * time.Second}} {
		virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
			tries := 0
			base := roundTrip(func(*http.Request) (*http.Response, error) {
				if tries++; tries == 1 {
					return respond(http.StatusTooManyRequests, http.Header{"Retry-After": {"5"}}, ""), nil
				}
				return respond(http.StatusOK, nil, ""), nil
			})
			began := time.Now()
			response, err := NewTransport(c, base, Match(core), own).RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if waited := time.Since(began); tries != 2 || waited < cooldown+tt.from || waited > cooldown+tt.from+time.Second {
				t.Errorf("%v: sent %d times, again after %v", tt.class, tries, waited)
			}
		}, WithClass(tt.class))
	}
}

func TestWithAttemptTimeout_BoundsEachAttempt(t *testing.T) {
	for _, tt := range []struct {
		timeout time.Duration
		least   int
	}{{100 * time.Millisecond, 5}, {900 * time.Millisecond, 1}} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.Break(0, fakequota.Silent)
			began := time.Now()
			_, err := c.Quota(t.Context(), "t/core")
			if asked := cluster.Asked(0); !errors.Is(err, ErrClusterAway) || asked < tt.least || asked > 2*tt.least+1 ||
				time.Since(began) > time.Second {
				t.Errorf("attempts of %v: asked %d times in %v: %v", tt.timeout, asked, time.Since(began), err)
			}
		}, WithAttemptTimeout(tt.timeout), WithCallTimeout(time.Second))
	}
	if _, err := New([]string{"x:1"}, WithAttemptTimeout(0)); err == nil {
		t.Error("attempts of no length")
	}
}

// heard is an HTTP client that records the Authorization header of callers.
type heard struct {
	*fakequota.Cluster
	said atomic.Value
}

func (h *heard) Do(r *http.Request) (*http.Response, error) {
	h.said.Store(r.Header.Get("Authorization"))
	return h.Cluster.Do(r)
}

func TestWithToken_IdentifiesTheCaller(t *testing.T) {
	h := &heard{Cluster: full()}
	c, err := New(h.Addresses(), WithHTTPClient(h), WithToken("secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Quota(t.Context(), "t/core"); err != nil || h.said.Load() != "Bearer secret" {
		t.Errorf("said %q: %v", h.said.Load(), err)
	}
}

func TestWithLogger_LogsUnacknowledgedLimit(t *testing.T) {
	var lines bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&lines, nil))
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			cluster.Break(0, fakequota.Silent) // the cluster goes away before the report
			return respond(http.StatusTooManyRequests, nil, ""), nil
		})
		request := httptest.NewRequest(http.MethodGet, "http://provider.example", nil).WithContext(context.Background())
		response, err := NewTransport(c, base, Match(core), Speak(signals.GitHub), Retries(0)).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		cluster.Break(0, fakequota.Healthy)
	}, WithLogger(logger))
	if !strings.Contains(lines.String(), "could not report a provider's limit") {
		t.Errorf("logged %q", lines.String())
	}
	if _, err := New([]string{"x:1"}, WithLogger(nil)); err == nil {
		t.Error("no logger was taken")
	}
}
