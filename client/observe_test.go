package client

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/signals"
)

func TestOpenAI_EstimatesAndSettlesTokens(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Set("openai/gpt-5/requests", fakequota.Quota{Usable: 100, Available: 100})
		cluster.Set("openai/gpt-5/tokens", fakequota.Quota{Usable: 10_000, Available: 10_000})
		ask := `{"messages":[{"role":"user","content":"hello"}],"model":"gpt-5","max_completion_tokens":1000}`
		base, _ := answers(func(*http.Request) *http.Response {
			return respond(200, nil, `{"content":"\"total_tokens\": 7","usage":{"prompt_tokens": 20,"completion_tokens":117,"total_tokens": 137}}`)
		})
		client := &http.Client{Transport: NewTransport(c, base, OpenAI())}
		response, err := client.Post("https://api.openai.com/v1/chat/completions", "application/json", strings.NewReader(ask))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := 10_000-cluster.Available("openai/gpt-5/tokens"), int64(9/4+1000); got != want {
			t.Errorf("estimate %d, want %d", got, want)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		synctest.Wait()
		if got := 10_000 - cluster.Available("openai/gpt-5/tokens"); got != 137 {
			t.Errorf("settled to %d, want 137", got)
		}
		if got := 100 - cluster.Available("openai/gpt-5/requests"); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
	})
}

func TestUsageScanner_FindsUsageInAnyPieces(t *testing.T) {
	body := "data: {\"usage\":null,\"total_tokens\":\"x\"}\n\ndata: {\"usage\":{\"total_tokens\":12}}\n\ndata: " +
		"{\"usage\":{\"total_tokens\": 4096}}\n\ndata: [DONE]\n"
	for size := 1; size <= len(body); size++ {
		u := scanFor("total_tokens")
		for rest := body; rest != ""; {
			n := min(size, len(rest))
			u.scan([]byte(rest[:n]))
			rest = rest[n:]
		}
		if got, ok := u.total(); !ok || got != 4096 {
			t.Fatalf("pieces of %d: got %d, %v", size, got, ok)
		}
	}
	u := scanFor("total_tokens")
	u.scan([]byte(`{"a":"\"total_tokens\":99","total_tokens":99999999999999999999}`))
	if got, ok := u.total(); ok {
		t.Errorf("made up %d", got)
	}
}

func TestMatchers(t *testing.T) {
	for path, want := range map[string]string{
		"/repos/a/b": "github/core", "/search/issues": "github/search", "/search/code": "github/code_search", "/graphql": "github/graphql",
		"/api/v3/search/code": "github/code_search", "/api/graphql": "github/graphql", "/rate_limit": "",
	} {
		call := MatchGitHub(httptest.NewRequest(http.MethodGet, "https://host.example"+path, nil))
		if want == "" && len(call.Items) != 0 || want != "" && (len(call.Items) != 1 || call.Items[0] != Item{want, 1}) {
			t.Errorf("%s: %+v", path, call.Items)
		}
	}
	for body, want := range map[string][]Item{
		"":                                     nil,
		"not json":                             {{"openai/requests", 1}},
		`{"model":7}`:                          {{"openai/requests", 1}},
		`{"model":"m"}`:                        {{"openai/m/requests", 1}, {"openai/m/tokens", 4001}},
		`{"model":"m","max_tokens":100,"n":2}`: {{"openai/m/requests", 1}, {"openai/m/tokens", 201}},
		`{"model":"m","max_tokens":-5}`:        {{"openai/m/requests", 1}, {"openai/m/tokens", 4001}},
		`{"model":"m","max_tokens":9223372036854775807,"n":99}`: {{"openai/m/requests", 1}, {"openai/m/tokens", 1<<30 + 1}},
	} {
		request, err := http.NewRequest(http.MethodPost, "https://host.example/v1/responses", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := MatchOpenAI(request).Items; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"usage":{"total_tokens": 137}}`), 3)
	f.Add([]byte(`"total_tokens":"total_tokens":12,`), 1)
	f.Fuzz(func(t *testing.T, body []byte, size int) {
		whole, pieces := scanFor("total_tokens"), scanFor("total_tokens")
		whole.scan(body)
		for rest := body; len(rest) > 0; {
			n := min(max(size, 1), len(rest))
			pieces.scan(rest[:n])
			rest = rest[n:]
		}
		if whole != pieces {
			t.Fatalf("whole %+v, in pieces %+v", whole, pieces)
		}
		if total, ok := whole.total(); total < 0 || (!ok && total != 0) {
			t.Fatalf("made up %d", total)
		}
	})
}

func TestTransport_BrokenBodyReadsToSamePlace(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		broken := errors.New("broken")
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			response := respond(http.StatusForbidden, nil, "")
			response.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), failing{broken}))
			return response, nil
		})
		response, err := NewTransport(c, base, Match(core)).RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if string(body) != "half" || !errors.Is(err, broken) {
			t.Errorf("read %q, %v", body, err)
		}
		_ = response.Body.Close()
	})
}

// TestObserve_ReadsErrorsInGzip: a caller that requests gzip itself gets the answer as it came, and the limit is still read. An answer
// that decompresses to more is read up to the bound for errors.
func TestObserve_ReadsErrorsInGzip(t *testing.T) {
	const said = `{"error":{"message":"Rate limit reached. Please try again in 20s.","type":"requests","code":"rate_limit_exceeded"}}`
	inGzip := func(text string) string {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = io.WriteString(w, text)
		_ = w.Close()
		return out.String()
	}
	cut := inGzip(said + strings.Repeat(" ", 100_000))
	cut = cut[:len(cut)-20]
	for name, of := range map[string]struct {
		encoding, body string
		after          time.Duration
	}{
		"plain":               {"", said, 20 * time.Second},
		"gzip":                {"gzip", inGzip(said), 20 * time.Second},
		"old name":            {"X-Gzip", inGzip(said), 20 * time.Second},
		"broken off":          {"gzip", cut, 20 * time.Second},
		"behind much else":    {"gzip", inGzip(strings.Repeat(" ", signals.MaxBody) + said), 0},
		"another encoding":    {"br", said, 0},
		"plain, but labelled": {"gzip", said, 20 * time.Second},
	} {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			cluster.Set("openai/gpt-5/requests", fakequota.Quota{Usable: 100, Available: 100})
			cluster.Set("openai/gpt-5/tokens", fakequota.Quota{Usable: 10_000, Available: 10_000})
			base := roundTrip(func(*http.Request) (*http.Response, error) {
				header := http.Header{}
				if of.encoding != "" {
					header.Set("Content-Encoding", of.encoding)
				}
				return respond(http.StatusTooManyRequests, header, of.body), nil
			})
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.openai.com/v1/responses",
				strings.NewReader(`{"model":"gpt-5","input":"x"}`))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Accept-Encoding", "gzip")
			response, err := NewTransport(c, base, OpenAI(), Retries(0)).RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var after time.Duration
			for _, report := range cluster.Reports() { // before the body is read, which reports its error once more
				for _, signal := range report.GetSignals() {
					after = max(after, signal.GetRetryAfter().AsDuration())
				}
			}
			if after != of.after {
				t.Errorf("%s: reported to open after %v, want %v", name, after, of.after)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if string(body) != of.body || err != nil {
				t.Errorf("%s: the caller read %q, %v", name, body, err)
			}
		})
	}
}

// TestReport_ThatNothingIsLeftIsNotPutOff: ordinary counts of a quota are reported once a second, exhaustion at once.
func TestReport_ThatNothingIsLeftIsNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := NewTransport(nil, nil)
		left := func(n int64) signals.Signal { return signals.Signal{Remaining: signals.Count{N: n, Known: true}} }
		for i, step := range []struct {
			said signals.Signal
			due  bool
		}{{left(5), true}, {left(4), false}, {signals.Signal{}, false}, {left(0), true}, {left(0), true}, {left(3), false}} {
			if due := transport.due("q", step.said); due != step.due {
				t.Errorf("step %d: due %v", i, due)
			}
		}
		pass(reportEvery)
		if !transport.due("q", left(3)) {
			t.Error("a second later it is not due")
		}
	})
}

// TestReport_ARefusalKeepsItsTime: counts and a refusal of one quota become one signal, with the Retry-After.
func TestReport_ARefusalKeepsItsTime(t *testing.T) {
	n, wait := int64(7), time.Minute
	got := merged([]Signal{
		{Quota: "q", Cause: CauseOK, Remaining: &n}, {Quota: "other", Cause: CauseOK}, {Quota: "q", Cause: CauseSaturated, RetryAfter: &wait},
	})
	if len(got) != 2 || got[0].Cause != CauseSaturated || got[0].RetryAfter != &wait || got[0].Remaining != &n {
		t.Errorf("%+v", got)
	}
}

// TestReserve_SendsEveryField: each field of a ReserveRequest reaches the cluster, and each field of the API's request is set.
func TestReserve_SendsEveryField(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		sent := c.reserveMessage(ReserveRequest{
			Items: one("t/core", 1), TTL: time.Minute, Consume: true, Class: Background, Resume: true, Emergency: true, Fallback: true,
			Holder: "data", Member: "a",
		}, time.Second).ProtoReflect()
		fields := sent.Descriptor().Fields()
		for i := range fields.Len() {
			if field := fields.Get(i); field.Name() != "request_id" && !sent.Has(field) {
				t.Errorf("%s is not sent", field.Name())
			}
		}
	})
}

// TestReportAnswer_SendsReadableParts: all lines of a header, no cookies, and a body truncated and converted to UTF-8.
func TestReportAnswer_SendsReadableParts(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		lease, err := c.Reserve(t.Context(), ReserveRequest{Items: one("t/core", 1), Consume: true})
		if err != nil {
			t.Fatal(err)
		}
		header := http.Header{"Retry-After": {"30"}, "Ratelimit": {"a", "b"}, "Set-Cookie": {"session=secret"}}
		body := append([]byte("\xff"), bytes.Repeat([]byte("x"), 40<<10)...)
		_, err = lease.Operation().ReportAnswer(t.Context(), Answer{Status: 429, Header: header, Body: body, Dialect: "github"})
		if err != nil {
			t.Fatal(err)
		}
		got := cluster.Reports()[0]
		want := map[string]string{"Retry-After": "30", "Ratelimit": "a\nb"}
		if a := got.GetAnswer(); a.GetStatus() != 429 || a.GetDialect() != "github" || !maps.Equal(a.GetHeaders(), want) ||
			!strings.HasPrefix(a.GetBody(), "\uFFFDxx") || len(a.GetBody()) > 33<<10 {
			t.Errorf("status %d, dialect %q, headers %v, %d bytes", a.GetStatus(), a.GetDialect(), a.GetHeaders(), len(a.GetBody()))
		}
		if got.GetLease() != lease.ID() || got.GetFence() != lease.Fence() || got.GetOp() != 1 || len(got.GetSignals()) != 0 {
			t.Errorf("%v", got)
		}
	})
}
