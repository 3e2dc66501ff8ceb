package client_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// keyed is a provider with three keys, some of them limited for half a minute.
type keyed struct {
	limited map[string]bool
	used    []string
}

func (p *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.Header.Get("Authorization")
	p.used = append(p.used, key)
	response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
	if p.limited[key] {
		response.StatusCode = http.StatusTooManyRequests
		response.Header.Set("Retry-After", "30")
	}
	return response, nil
}

// TestTransport_OfAPoolTriesTheNextMember: if one key is refused, another serves the call at once: the cluster knows the closed ones.
func TestTransport_OfAPoolTriesTheNextMember(t *testing.T) {
	cluster := quotatest.New(t,
		quotatest.Rate("p/a", 10, time.Minute), quotatest.Rate("p/b", 9, time.Minute), quotatest.Rate("p/c", 8, time.Minute),
		&quotav1.Quota{Name: "p/requests", Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{Members: []*quotav1.PoolMember{
			{Name: "a", Quota: "p/a"}, {Name: "b", Quota: "p/b"}, {Name: "c", Quota: "p/c"},
		}}}})
	c := cluster.Client()
	provider := &keyed{limited: map[string]bool{"a": true, "b": true}}
	transport := client.NewTransport(c, provider,
		client.Match(func(*http.Request) client.Call {
			return client.Call{Items: []client.Item{{Quota: "p/requests", Amount: 1}}}
		}),
		client.Granted(func(r *http.Request, lease *client.Lease) (*http.Request, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", lease.Member())
			return r, nil
		}))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://provider.example/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if used := strings.Join(provider.used, " "); response.StatusCode != http.StatusOK || used != "a b c" {
		t.Errorf("status %d, of keys %s; want 200 of the third", response.StatusCode, used)
	}
	for name, closed := range map[string]bool{"p/a": true, "p/b": true, "p/c": false} {
		if q, err := c.Quota(t.Context(), name); err != nil || (q.CooldownLeft > 0) != closed {
			t.Errorf("%s: cooldown %v left, %v", name, q.CooldownLeft, err)
		}
	}
}

// TestTransport_OfAPoolPassesWhenToComeBack: once no member is left, the caller learns when to call again.
func TestTransport_OfAPoolPassesWhenToComeBack(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Rate("p/a", 10, time.Minute),
		&quotav1.Quota{Name: "p/requests", Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{Members: []*quotav1.PoolMember{
			{Name: "a", Quota: "p/a"},
		}}}})
	transport := client.NewTransport(cluster.Client(), &keyed{limited: map[string]bool{"": true}}, client.Retries(0),
		client.Match(func(*http.Request) client.Call {
			return client.Call{Items: []client.Item{{Quota: "p/requests", Amount: 1}}}
		}))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://provider.example/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if after, _ := strconv.Atoi(response.Header.Get("Retry-After")); response.StatusCode != http.StatusTooManyRequests || after < 30 {
		t.Errorf("status %d, Retry-After %q", response.StatusCode, response.Header.Get("Retry-After"))
	}
}

// TestTransport_OfAPoolCutsEstimatesThatNeverFit: an estimate above every member's maximum is cut to the largest member's, and the call
// is made.
func TestTransport_OfAPoolCutsEstimatesThatNeverFit(t *testing.T) {
	clamped := quotatest.Rate("b/tokens", 1000, time.Minute)
	clamped.ClampHold = true
	for name, c := range map[string]struct {
		members  []*quotav1.Quota
		consumed int64
	}{
		"above usable": {[]*quotav1.Quota{quotatest.Rate("a/tokens", 600, time.Minute), quotatest.Rate("b/tokens", 900, time.Minute)}, 900},
		"a clamp":      {[]*quotav1.Quota{clamped}, 500},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := quotatest.New(t, c.members...)
			pool := &quotav1.Pool{}
			for _, q := range c.members {
				pool.Members = append(pool.Members, &quotav1.PoolMember{Name: q.Name, Quota: q.Name})
			}
			cluster.Apply(quotatest.Rate("openai/m/requests", 10, time.Minute),
				&quotav1.Quota{Name: "openai/m/tokens", Rule: &quotav1.Quota_Pool{Pool: pool}})
			provider := &keyed{}
			transport := client.NewTransport(cluster.Client(), provider, client.OpenAI(client.Hosts("provider.example")))
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://provider.example/v1/responses",
				strings.NewReader(`{"model":"m","max_output_tokens":5000}`))
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if got := cluster.Quota("openai/m/tokens").Consumed; got != c.consumed || len(provider.used) != 1 || transport.Stats().Cut != 1 {
				t.Errorf("%d consumed, %d calls sent, %d estimates cut", got, len(provider.used), transport.Stats().Cut)
			}
		})
	}
}
