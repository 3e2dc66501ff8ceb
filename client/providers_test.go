package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/signals"
)

// plenty sets quotas of n units each.
func plenty(cluster *fakequota.Cluster, n int64, names ...string) {
	for _, name := range names {
		cluster.Set(name, fakequota.Quota{Usable: n, Available: n})
	}
}

// post sends a body through a Transport and reads the answer.
func post(t *testing.T, transport http.RoundTripper, url, body string) {
	t.Helper()
	response, err := (&http.Client{Transport: transport}).Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	synctest.Wait()
}

const responses = "https://api.openai.com/v1/responses"

func TestTransport_CountsLongPromptsWithoutABound(t *testing.T) {
	for name, tt := range map[string]struct {
		body        string
		least, most int64
	}{
		"80,000 tokens, no bound": {`{"model":"m","input":"` + strings.Repeat("abcd", 80_000) + `"}`, 84_000, 85_000},
		"the bound behind a megabyte": {
			`{"model":"m","input":"` + strings.Repeat("abcd", 300_000) + `","max_output_tokens":500}`, 300_500, 301_000,
		},
		"a picture of 930 kB": {
			`{"model":"m","max_output_tokens":500,"input":[{"content":[{"type":"input_image","image_url":"data:image/png;base64,` +
				strings.Repeat("A", 930_000) + `"}]}]}`, 1_000, 5_000,
		},
		"the model behind the messages": {`{"input":"` + strings.Repeat("abcd", 500_000) + `","model":"m"}`, 500_000, 505_000},
	} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			plenty(cluster, 1_000_000, "openai/m/requests", "openai/m/tokens")
			base, _ := answers(ok)
			post(t, NewTransport(c, base, OpenAI()), responses, tt.body)
			if got := 1_000_000 - cluster.Available("openai/m/tokens"); got < tt.least || got > tt.most {
				t.Errorf("%s: %d tokens, want %d to %d", name, got, tt.least, tt.most)
			}
		})
	}
}

func TestTransport_LeavesMaxTokensOfAnthropicOut(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 100_000, "anthropic/m/requests", "anthropic/m/input-tokens", "anthropic/m/output-tokens")
		base, _ := answers(ok)
		transport := NewTransport(c, base, Anthropic(), QueueWait(0))
		for i := range 10 {
			body := strings.NewReader(`{"model":"m","max_tokens":32000,"messages":[]}`)
			request, err := http.NewRequest(http.MethodPost, "https://api.anthropic.com/v1/messages?beta=true", body)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatalf("call %d at once: %v", i+1, err)
			}
			defer func() { _ = response.Body.Close() }()
		}
	})
}

func TestTransport_LearnsWhatCallsUse(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 1_000_000, "openai/m/requests", "openai/m/tokens")
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(200, nil, `{"usage":{"input_tokens":200,"output_tokens":50}}`)
		})
		shared := estimate.NewLearner(nil)
		transport := NewTransport(c, base, OpenAI(), Learner(shared))
		body := `{"model":"m","input":"` + strings.Repeat("abcd", 100) + `"}`
		for range 20 {
			post(t, transport, responses, body)
		}
		reserves := func(transport *Transport) int64 {
			before := cluster.Available("openai/m/tokens")
			response, err := (&http.Client{Transport: transport}).Post(responses, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			return before - cluster.Available("openai/m/tokens")
		}
		if got := reserves(transport); got != 250 {
			t.Errorf("the 21st call was estimated at %d, want 250", got)
		}
		if got := reserves(NewTransport(c, base, OpenAI(), Learner(shared))); got != 250 {
			t.Errorf("the first call of another transport with the same learner was estimated at %d, want 250", got)
		}
		if got := reserves(NewTransport(c, base, OpenAI())); got == 250 {
			t.Error("a transport with a learner of its own knows what another one learnt")
		}
	})
}

func TestTransport_ReturnsTokensOfRefusedCalls(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 10_000, "openai/m/requests", "openai/m/tokens")
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(429, http.Header{"Openai-Version": {"x"}}, `{"error":{"code":"rate_limit_exceeded","message":"no"}}`)
		})
		post(t, NewTransport(c, base, OpenAI(), Retries(0)), responses, `{"model":"m","max_output_tokens":500}`)
		if got := cluster.Available("openai/m/tokens"); got != 10_000 {
			t.Errorf("%d tokens are left, want 10000", got)
		}
		if got := cluster.Available("openai/m/requests"); got != 9_999 {
			t.Errorf("%d requests are left, want 9999", got)
		}
	})
}

func TestTransport_CutsEstimatesThatNeverFit(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 10_000, "openai/m/requests", "openai/m/tokens")
		base, asked := answers(ok)
		transport := NewTransport(c, base, OpenAI())
		post(t, transport, responses, `{"model":"m","max_output_tokens":50000}`)
		if got := transport.Stats().Cut; got != 1 || len(*asked) != 1 {
			t.Errorf("%d estimates cut, %d calls sent, want 1 and 1", got, len(*asked))
		}
	})
}

// Regression: a redirect to a blob store that answers 429 closed github/core for the whole fleet.
func TestTransport_BelievesOnlyTheProvidersHosts(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 5_000, "github/core")
		base, asked := answers(func(*http.Request) *http.Response {
			return respond(302, http.Header{"Location": {"https://blobs.example/a"}}, "")
		}, func(*http.Request) *http.Response { return respond(429, http.Header{"Retry-After": {"3600"}}, "") })
		client := &http.Client{Transport: NewTransport(c, base, GitHub())}
		response, err := client.Get("https://api.github.com/repos/a/b/tarball")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		synctest.Wait()
		if len(*asked) != 2 || response.StatusCode != http.StatusTooManyRequests || response.Header.Get("X-Should-Retry") != "" {
			t.Errorf("%d calls, status %d, header %v", len(*asked), response.StatusCode, response.Header)
		}
		if reports := cluster.Reports(); len(reports) != 0 || cluster.Available("github/core") != 4_999 {
			t.Errorf("reported %v, %d left", reports, cluster.Available("github/core"))
		}
	})
}

func TestHosts(t *testing.T) {
	for _, tt := range []struct {
		option TransportOption
		url    string
		want   string
	}{
		{GitHub(), "https://api.github.com/user", "github/core"},
		{GitHub(), "https://API.GitHub.com.:443/user", "github/core"},
		{GitHub(), "https://api.github.com.evil.example/user", ""},
		{GitHub(), "https://codeload.github.com/x", ""},
		{GitHub(Hosts("ghe.corp.example"), Prefix("ghe")), "https://ghe.corp.example/api/v3/search/code", "ghe/code_search"},
		{GitHub(Hosts("ghe.corp.example")), "https://api.github.com/user", ""},
		{GitHub(Hosts("127.0.0.1:8080")), "http://127.0.0.1:8080/user", "github/core"},
		{GitHub(Hosts("127.0.0.1:8080")), "http://127.0.0.1:8081/user", ""},
		{GitHub(Hosts("*")), "http://localhost:1/user", "github/core"},
		{Azure(), "https://mine.openai.azure.com/openai/deployments/d/chat/completions", "azure/d/requests"},
		{Bedrock(), "https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/converse", "bedrock/m/requests"},
		{OpenAI(Alias("gpt-5-mini*", "small"), Alias("*", "all")), "https://api.openai.com/v1/chat/completions", "openai/small/requests"},
		{OpenAI(Alias("gpt-4*", "old"), Alias("*", "all")), "https://api.openai.com/v1/chat/completions", "openai/all/requests"},
	} {
		var s transportSettings
		tt.option(&s)
		request, err := http.NewRequest(http.MethodPost, tt.url, strings.NewReader(`{"model":"gpt-5-mini/x"}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if p := s.providerOf(request); p != nil {
			got = p.call(request).Items[0].Quota
		}
		if got != tt.want {
			t.Errorf("%s draws on %q, want %q", tt.url, got, tt.want)
		}
	}
}

func TestNewTransport_GovernsSeveralProviders(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 1_000, "github/core", "openai/m/requests", "t/core")
		plenty(cluster, 100_000, "openai/m/tokens")
		base, _ := answers(ok)
		transport := NewTransport(c, base, GitHub(), OpenAI(), Match(func(r *http.Request) Call {
			if r.URL.Host == "own.example" {
				return Call{Items: one("t/core", 1)}
			}
			return Call{}
		}))
		for _, url := range []string{"https://api.github.com/user", "https://own.example", "https://elsewhere.example", responses} {
			post(t, transport, url, `{"model":"m"}`)
		}
		for _, name := range []string{"github/core", "openai/m/requests", "t/core"} {
			if got := 1_000 - cluster.Available(name); got != 1 {
				t.Errorf("%d of %s, want 1", got, name)
			}
		}
		if stats := transport.Stats(); stats.Calls != 3 || stats.Ungoverned != 1 {
			t.Errorf("%+v, want 3 calls and 1 that is not governed", stats)
		}
	})
}

func TestNewTransport_FailsWhereItGovernsNothing(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		base, asked := answers(ok)
		_, err := NewTransport(c, base, QueueWait(0)).RoundTrip(httptest.NewRequest(http.MethodGet, "https://api.github.com/user", nil))
		if err == nil || !strings.Contains(err.Error(), "has no provider") || len(*asked) != 0 {
			t.Errorf("%v, %d calls", err, len(*asked))
		}
	})
}

// Regression: a body from a pipe could not be repeated, and its model could not be read.
func TestTransport_MakesBodiesRepeatable(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 100_000, "openai/m/requests", "openai/m/tokens")
		var bodies []string
		give := []int{429, 200}
		base := roundTrip(func(r *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(r.Body)
			bodies = append(bodies, fmt.Sprint(r.ContentLength, string(body)))
			return respond(give[len(bodies)-1], http.Header{"Retry-After": {"1"}}, ""), err
		})
		const body = `{"model":"m","max_output_tokens":9}`
		request, err := http.NewRequest(http.MethodPost, responses, io.MultiReader(strings.NewReader(body[:5]), strings.NewReader(body[5:])))
		if err != nil {
			t.Fatal(err)
		}
		response, err := NewTransport(c, base, OpenAI()).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		want := fmt.Sprint(len(body), body)
		if response.StatusCode != http.StatusOK || len(bodies) != 2 || bodies[0] != want || bodies[1] != want {
			t.Errorf("status %d, sent %q", response.StatusCode, bodies)
		}
	})
}

// A program that calls its provider by another host, such as a proxy's, learns that nothing governs it: once, and only if nothing was
// governed before.
func TestTransport_WarnsOnceWhereItGovernsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		hosts []string
		want  int
	}{
		"another host":               {[]string{"proxy.example", "proxy.example", "elsewhere.example"}, 1},
		"after the provider's":       {[]string{"api.openai.com", "proxy.example"}, 0},
		"its proxy, which was named": {[]string{"named.example"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
				plenty(cluster, 100_000, "openai/m/requests", "openai/m/tokens")
				base, _ := answers(ok)
				transport := NewTransport(c, base, OpenAI(Hosts("api.openai.com", "named.example")))
				for _, host := range tt.hosts {
					post(t, transport, "https://"+host+"/v1/responses", `{"model":"m"}`)
				}
			}, WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
			said := logged.String()
			if n := strings.Count(said, "was sent without a quota"); n != tt.want {
				t.Errorf("%d warnings, want %d: %s", n, tt.want, said)
			}
			if tt.want > 0 && (!strings.Contains(said, "host=proxy.example") || !strings.Contains(said, "api.openai.com")) {
				t.Errorf("the warning is %s", said)
			}
		})
	}
}

// A body that cannot be read to its end is no call: the error says so, nothing is sent, and nothing is taken.
func TestTransport_NamesABodyThatCannotBeRead(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 100, "openai/m/requests", "openai/m/tokens")
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			t.Error("the call was sent")
			return respond(200, nil, ""), nil
		})
		broken := errors.New("the disk is gone")
		body := io.MultiReader(strings.NewReader(`{"model":`), iotest.ErrReader(broken))
		request, err := http.NewRequest(http.MethodPost, responses, body)
		if err != nil {
			t.Fatal(err)
		}
		response, err := NewTransport(c, base, OpenAI()).RoundTrip(request)
		if response != nil {
			_ = response.Body.Close()
		}
		if !errors.Is(err, broken) || err.Error() != "quotad: read the request's body: the disk is gone" {
			t.Errorf("got %v", err)
		}
		if left := cluster.Available("openai/m/requests"); left != 100 {
			t.Errorf("%d requests are left", left)
		}
	})
}

func TestAdjust(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 1_000, "team/requests", "openai/m/requests")
		base, _ := answers(ok)
		transport := NewTransport(c, base, OpenAI(), Adjust(func(r *http.Request, call *Call) {
			call.Items = append(call.Items[:1], Item{Quota: "team/requests", Amount: 7})
			call.Holder = r.Header.Get("X-Agent")
		}))
		request, err := http.NewRequest(http.MethodPost, responses, strings.NewReader(`{"model":"m"}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Agent", "worf")
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := 1_000 - cluster.Available("team/requests"); got != 7 {
			t.Errorf("%d of the team's requests, want 7", got)
		}
		if got := cluster.Holders(); len(got) != 1 || got[0] != "worf" {
			t.Errorf("asked for %q, want worf", got)
		}
	})
}

func TestGranted(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		sent := ""
		base, _ := answers(func(r *http.Request) *http.Response {
			sent = r.Header.Get("X-Granted")
			return respond(200, nil, "")
		})
		failure := errors.New("not like this")
		fail := false
		transport := NewTransport(c, base, Match(core), Granted(func(r *http.Request, lease *Lease) (*http.Request, error) {
			if fail {
				return nil, failure
			}
			r = r.Clone(r.Context())
			item, _ := lease.For("t/core")
			r.Header.Set("X-Granted", fmt.Sprint(item.Amount))
			return r, nil
		}))
		get := func() error {
			response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
			if err == nil {
				_ = response.Body.Close()
			}
			synctest.Wait()
			return err
		}
		if err := get(); err != nil || sent != "1" {
			t.Errorf("%v, sent %q", err, sent)
		}
		fail = true
		if err := get(); !errors.Is(err, failure) || taken(cluster) != 1 || cluster.Leases() != 0 {
			t.Errorf("%v, taken %d, %d leases", err, taken(cluster), cluster.Leases())
		}
	})
}

// The dialect of an answer is that of the provider that owns the host, whatever other providers the Transport governs.
func TestTransport_ReadsAnswersAsTheHostSpeaks(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 5_000, "github/core")
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(200, http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"7"}, "X-Ratelimit-Resource": {"core"}}, "")
		})
		transport := NewTransport(c, base, OpenAI(), GitHub())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.github.com/user", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		synctest.Wait()
		if reports := cluster.Reports(); len(reports) != 1 || reports[0].GetSignals()[0].GetRemaining() != 7 {
			t.Errorf("reported %v", reports)
		}
		if got := transport.settings.dialectOf(Call{}, nil).Name(); got != signals.Auto.Name() {
			t.Errorf("answers of others are read as %s", got)
		}
	})
}

// A stream can reach a limit after its status was sent.
func TestTransport_ReportsLimitsWithinStreams(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 100_000, "openai/m/requests", "openai/m/tokens")
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(200, http.Header{"Content-Type": {"text/event-stream"}}, "event: response.failed\ndata: "+
				`{"type":"response.failed","response":{"usage":null,"error":`+
				`{"code":"rate_limit_exceeded","message":"Please try again in 11.054s."}}}`+"\n\n")
		})
		post(t, NewTransport(c, base, OpenAI()), responses, `{"model":"m","stream":true,"max_output_tokens":500}`)
		reports := cluster.Reports()
		if len(reports) != 1 {
			t.Fatalf("reported %v", reports)
		}
		if got := reports[0].GetSignals()[0]; got.GetRetryAfter().AsDuration() != 11054*time.Millisecond {
			t.Errorf("reported %v, want a wait of 11.054s", got)
		}
		if cluster.Leases() != 0 || cluster.Available("openai/m/tokens") > 99_500 {
			t.Errorf("%d leases are left, %d tokens", cluster.Leases(), cluster.Available("openai/m/tokens"))
		}
	})
}
