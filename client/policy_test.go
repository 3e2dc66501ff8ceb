package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// asked is the JSON of a call in these tests.
type asked struct {
	Model string `json:"model"`
	Most  int    `json:"max_tokens"`
}

// caller makes calls through a Transport, and returns what the provider received.
type caller func(body asked) (asked, error)

// throughTransport returns a caller whose provider accepts everything.
func throughTransport(c *client.Client, options ...client.TransportOption) caller {
	var received asked
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		received = asked{}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r},
			json.NewDecoder(r.Body).Decode(&received)
	})
	transport := client.NewTransport(c, base, options...)
	return func(body asked) (asked, error) {
		data, err := json.Marshal(body)
		if err != nil {
			return asked{}, err
		}
		request := httptest.NewRequest(http.MethodPost, "http://provider.example/v1/responses", bytes.NewReader(data))
		response, err := transport.RoundTrip(request)
		if err != nil {
			return asked{}, err
		}
		return received, response.Body.Close()
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// changed returns a copy of a request with another body.
func changed(r *http.Request, change func(*asked)) (*http.Request, error) {
	var body asked
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return nil, err
	}
	change(&body)
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	out := r.Clone(r.Context())
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return out, nil
}

// draws returns an option by which each call draws on one quota.
func draws(quota string, amount int64, change func(*client.Call)) client.TransportOption {
	return client.Match(func(*http.Request) client.Call {
		call := client.Call{Items: []client.Item{{Quota: quota, Amount: amount}}}
		change(&call)
		return call
	})
}

// TestTransport_CallMayFallBack: a call that allows it is granted the next quota of the chain, and the Granted option sees which.
func TestTransport_CallMayFallBack(t *testing.T) {
	big := quotatest.Rate("big", 1, time.Hour)
	big.Fallback = "small"
	cluster := quotatest.New(t, quotatest.Rate("small", 10, time.Hour), big)
	falls := true
	call := throughTransport(cluster.Client(), client.QueueWait(0),
		draws("big", 1, func(call *client.Call) { call.Fallback = falls }),
		client.Granted(func(r *http.Request, lease *client.Lease) (*http.Request, error) {
			item, _ := lease.For("big")
			return changed(r, func(body *asked) { body.Model = item.Quota })
		}))
	for _, want := range []string{"big", "small", "small"} {
		if got, err := call(asked{Model: "big"}); err != nil || got.Model != want {
			t.Fatalf("the provider got %+v, %v, want %s", got, err, want)
		}
	}
	falls = false
	if got, err := call(asked{Model: "big"}); !errors.Is(err, client.ReasonExhausted) {
		t.Errorf("a call that may not fall back: %+v, %v", got, err)
	}
}

// TestTransport_CallMayBeAnEmergency: only such a call may use the last of a window with strict zones.
func TestTransport_CallMayBeAnEmergency(t *testing.T) {
	window := quotatest.Window("w", 100)
	window.Policy = &quotav1.Policy{Zones: quotav1.Zones_ZONES_STRICT}
	cluster := quotatest.New(t)
	operator := quotav1connect.NewAdminServiceClient(cluster.HTTPClient(), "http://quotatest")
	if _, err := operator.ApplyQuotas(t.Context(), &quotav1.ApplyQuotasRequest{
		Quotas: []*quotav1.Quota{window}, Holders: []*quotav1.HolderRule{{Pattern: "boss", Class: quotav1.Class_CLASS_CRITICAL}},
		ReplaceHolders: true,
	}); err != nil {
		t.Fatal(err)
	}
	amount, urgent := int64(95), false
	call := throughTransport(cluster.Client(client.WithHolder("boss")), client.QueueWait(0),
		client.Match(func(*http.Request) client.Call {
			return client.Call{Items: []client.Item{{Quota: "w", Amount: amount}}, Emergency: urgent}
		}))
	if _, err := call(asked{}); err != nil {
		t.Fatal(err)
	}
	amount = 1
	if _, err := call(asked{}); !errors.Is(err, client.ReasonZone) {
		t.Fatalf("an ordinary call: %v", err)
	}
	urgent = true
	if _, err := call(asked{}); err != nil {
		t.Errorf("an emergency: %v", err)
	}
}

// TestTransport_CallMayBecomeSmaller: while a quota will be used up soon, the Granted option can shrink a call by the forecast's factor.
func TestTransport_CallMayBecomeSmaller(t *testing.T) {
	tokens := quotatest.Rate("tokens", 600, time.Minute)
	tokens.Policy = &quotav1.Policy{Prediction: &quotav1.Prediction{}}
	cluster := quotatest.New(t, tokens)
	smaller := 1.0
	call := throughTransport(cluster.Client(), client.QueueWait(0), draws("tokens", 100, func(*client.Call) {}),
		client.Granted(func(r *http.Request, lease *client.Lease) (*http.Request, error) {
			if lease.Forecast() == nil {
				return r, nil
			}
			smaller = lease.Forecast().Smaller
			return changed(r, func(body *asked) { body.Most = int(float64(body.Most) * smaller) })
		}))
	if got, err := call(asked{Most: 1_000}); err != nil || got.Most != 1_000 {
		t.Fatalf("the first call: the provider got %+v, %v", got, err)
	}
	for range 4 { // at once, which is ten times the pace that the quota lasts for
		if _, err := call(asked{Most: 1_000}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := call(asked{Most: 1_000})
	if err != nil || smaller < 0.1 || smaller >= 1 || got.Most != int(1_000*smaller) {
		t.Errorf("with a forecast of %v the provider got %+v, %v", smaller, got, err)
	}
}

// TestLimiter_UsesSlidingLimitFully: several programs together get nearly all that a rate allows, and no period sees more. The clock is
// virtual, so that a busy machine changes nothing.
func TestLimiter_UsesSlidingLimitFully(t *testing.T) {
	const limit, period, periods = 100, 4 * time.Second, 5
	synctest.Test(t, func(t *testing.T) {
		cluster := quotatest.New(t, quotatest.Rate("t/core", limit, period))
		cluster.Clock().Run()
		ctx, cancel := context.WithTimeout(t.Context(), periods*period)
		defer cancel()
		var mu sync.Mutex
		var takes []time.Time
		var programs sync.WaitGroup
		for range 3 {
			limiter := cluster.Client().Limiter("t/core", client.Holders(3))
			for range 4 {
				programs.Go(func() {
					for limiter.Wait(ctx) == nil {
						mu.Lock()
						takes = append(takes, time.Now())
						mu.Unlock()
					}
				})
			}
		}
		programs.Wait()
		for i := range takes {
			if j := i + limit; j < len(takes) && takes[j].Sub(takes[i]) < period {
				t.Fatalf("takes %d to %d came within %v", i, j, takes[j].Sub(takes[i]))
			}
		}
		if len(takes) < periods*limit*95/100 {
			t.Errorf("%d takes, the limit allows %d", len(takes), periods*limit)
		}
	})
}
