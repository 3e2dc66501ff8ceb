package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/signals"
)

func TestHooks(t *testing.T) {
	var mu sync.Mutex
	var reported []string
	tell := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, fmt.Sprintf(format, args...))
	}
	hooks := Hooks{
		Wait: func(_ context.Context, request ReserveRequest) func(*Lease, error) {
			tell("waits %s %v", request.Holder, request.Items)
			return func(lease *Lease, err error) { tell("waited %v %v", lease != nil, errors.Is(err, ReasonExhausted)) }
		},
		Refusal:  func(r *RefusalError) { tell("refused %s", r.Reason) },
		Retry:    func(r *http.Request, after time.Duration) { tell("retries %s %v", r.URL.Path, after > 0) },
		Cooldown: func(r Reported) { tell("cools down %s", r.Quota) },
		Batch:    func(unit []Item, units int64) { tell("batch %s %v", unit[0].Quota, units > 1) },
	}
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(429, http.Header{"Retry-After": {"2"}}, "")
		}, ok)
		response, err := NewTransport(c, base, Match(core)).RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example/path", nil))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		synctest.Wait()
		want := []string{
			"waits picard [{t/core 1}]", "waited true false", "cools down t/core", "retries /path true",
			"waits picard [{t/core 1}]", "waited true false",
		}
		mu.Lock()
		if !slices.Equal(reported, want) {
			t.Errorf("told %q, want %q", reported, want)
		}
		reported = nil
		mu.Unlock()

		cluster.Set("t/empty", fakequota.Quota{Usable: 10})
		if _, err := c.Reserve(context.Background(), ReserveRequest{Items: one("t/empty", 1), Holder: "worf"}); !errors.Is(err, ReasonExhausted) {
			t.Errorf("%v", err)
		}
		mu.Lock()
		if want := []string{"waits worf [{t/empty 1}]", "refused EXHAUSTED", "waited false true"}; !slices.Equal(reported, want) {
			t.Errorf("told %q, want %q", reported, want)
		}
		mu.Unlock()

		limiter := c.Limiter("t/core", Holders(1))
		for range 20 {
			if err := limiter.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		mu.Lock()
		if !slices.Contains(reported, "batch t/core true") {
			t.Errorf("told %q, want a batch", reported)
		}
		mu.Unlock()
	}, WithHooks(Hooks{}), WithHooks(hooks))
}

// A refusal in a provider's own form parses as a refusal in that provider's dialect.
func TestAnswerRefusals_InFormOfProvider(t *testing.T) {
	for _, tt := range []struct {
		option TransportOption
		url    string
		quota  string
		of     signals.Dialect
	}{
		{OpenAI(), responses, "openai/m/tokens", signals.OpenAI},
		{Azure(Hosts("*")), "https://azure.example/openai/deployments/m/chat/completions", "azure/m/tokens", signals.Azure},
		{Anthropic(), "https://api.anthropic.com/v1/messages", "anthropic/m/output-tokens", signals.Anthropic},
		{GitHub(), "https://api.github.com/user", "github/core", signals.GitHub},
		{Gemini(), "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent", "gemini/m/tokens", signals.Gemini},
		{Bedrock(), "https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/converse", "bedrock/m/tokens", signals.Bedrock},
		{Match(core), "https://own.example", "t/core", signals.Generic},
	} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			name := tt.of.Name()
			for _, suffix := range []string{"requests", "requests-per-day", "tokens", "input-tokens", "output-tokens"} {
				plenty(cluster, 100_000, name+"/m/"+suffix)
			}
			cluster.Set(tt.quota, fakequota.Quota{Usable: 100_000})
			base, asked := answers(ok)
			transport := NewTransport(c, base, tt.option, AnswerRefusals(), QueueWait(0))
			request := httptest.NewRequest(http.MethodPost, tt.url, http.NoBody)
			request.Body = io.NopCloser(strings.NewReader(`{"model":"m"}`))
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			verdict, refused := signals.Verdict(tt.of.Observe(time.Now(), response.StatusCode, response.Header, body))
			if !refused || !verdict.Class.Limited() || verdict.RetryAfter.D != time.Second || !verdict.NoRetry {
				t.Errorf("%s: %s is read as %+v", name, body, verdict)
			}
			if got, want := response.Header.Get("X-Quotad-Refusal"), fmt.Sprintf("EXHAUSTED; quota=%q", tt.quota); got != want || len(*asked) != 0 {
				t.Errorf("%s: refusal %q, want %q; %d calls", name, got, want, len(*asked))
			}
		})
	}
}
