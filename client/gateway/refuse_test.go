package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

func TestA24_ProviderLimitIsRetriedWithinTheWait(t *testing.T) {
	t.Parallel() // mostly waiting
	var calls atomic.Int64
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			speak(429, `{"error":{"message":"Rate limit reached. Please try again in 1s.",`+
				`"type":"requests","param":null,"code":"rate_limit_exceeded"}}`)(w, r)
			return
		}
		speak(200, chatAnswer)(w, r)
	}, nil)
	got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, "X-Quotad-Class", "critical")
	if got.status != 200 || calls.Load() != 2 {
		t.Fatalf("got %d after %d calls: %s", got.status, calls.Load(), got.body)
	}
	if n := f.cluster.closing.Load(); n != 1 {
		t.Errorf("the provider's limit was reported %d times, want once", n)
	}
	// The refused call counts against the requests, but its tokens do not.
	f.cluster.consumed("openai/gpt-5/requests", 2)
	f.cluster.consumed("openai/gpt-5/tokens", 11)
}

func TestA24_ProviderLimitBeyondTheWaitPasses(t *testing.T) {
	const said = `{"error":{"message":"Rate limit reached. Please try again in 20s.",` +
		`"type":"requests","param":null,"code":"rate_limit_exceeded"}}`
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "20")
		speak(429, said)(w, r)
	}, nil)
	got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, "X-Quotad-Wait", "2s")
	if got.status != 429 || got.body != said || got.header.Get("X-Quotad-Refusal") != "" {
		t.Fatalf("got %d %s %v", got.status, got.body, got.header)
	}
	if after := got.header.Get("Retry-After"); after != "20" {
		t.Errorf("the provider's Retry-After became %s", after)
	}
	if q, n := f.cluster.quota("openai/gpt-5/requests"), f.cluster.closing.Load(); q.CooldownLeft == 0 || n != 1 {
		t.Errorf("the provider's limit was reported %d times, want once; the cooldown is %v", n, q.CooldownLeft)
	}
}

func TestA25_ErrorsOfTheProviderPassByteForByte(t *testing.T) {
	for status, body := range map[int]string{
		529: `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},  "x":1}`,
		400: `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: Field required"}}`,
		401: `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f := messages(t, speak(status, body), nil)
			got := f.do(http.MethodPost, "/anthropic/v1/messages", messageBody)
			if got.status != status || got.body != body || len(f.provider.seen()) != 1 {
				t.Fatalf("got %d %s after %d calls", got.status, got.body, len(f.provider.seen()))
			}
		})
	}
}

// TestObserve_OverloadIsReported: once, as what it is. Other failures of the provider say nothing about its capacity.
func TestObserve_OverloadIsReported(t *testing.T) {
	var status atomic.Int64
	f := messages(t, func(w http.ResponseWriter, r *http.Request) {
		speak(int(status.Load()), `{"type":"error","error":{"type":"api_error","message":"no"}}`)(w, r)
	}, nil)
	overloads := int64(0)
	for _, code := range []int{400, 500, 502, 503, 504, 529, 503, 500} {
		status.Store(int64(code))
		if got := f.do(http.MethodPost, "/anthropic/v1/messages", messageBody); got.status != code {
			t.Fatalf("got %d %s, want %d", got.status, got.body, code)
		}
		// A call's report precedes its settlement.
		eventually(t, "the call is settled", func() bool { return f.cluster.quota("anthropic/claude-opus-4/requests").Leases == 0 })
		if code == 503 || code == 529 {
			overloads++
		}
		if all, n := f.cluster.closing.Load(), f.cluster.overloads.Load(); all != overloads || n != overloads {
			t.Errorf("after %d: %d reports, %d of them of an overload; want %d", code, all, n, overloads)
		}
	}
	if q := f.cluster.quota("anthropic/claude-opus-4/requests"); q.CooldownLeft != 0 {
		t.Errorf("a cooldown of %v", q.CooldownLeft)
	}
}

// forms are the paths of calls in each dialect, and what their refusals contain.
var forms = map[string]struct{ path, body, quota, away, refused string }{
	"openai": {
		"/openai/v1/responses", `{"model":"m","input":"x"}`, "openai/m/requests", `"type":"server_error"`, `"code":"rate_limit_exceeded"`,
	},
	"anthropic": {
		"/anthropic/v1/messages", `{"model":"m","messages":[]}`, "anthropic/m/requests", `"type":"api_error"`, `"type":"rate_limit_error"`,
	},
	"gemini": {
		"/gemini/v1beta/models/m:generateContent", `{"contents":[]}`, "gemini/m/requests", `"status":"UNAVAILABLE"`, `"retryDelay":"`,
	},
	"azure": {
		"/azure/openai/deployments/m/chat/completions", `{"messages":[]}`, "azure/m/requests", `"type":"server_error"`, `"code":"429"`,
	},
	"bedrock": {
		"/bedrock/model/m/converse", `{"messages":[]}`, "bedrock/m/requests", `"message":"quotad`, `"message":"Too many requests`,
	},
	"codex": {
		"/codex/responses", `{"model":"m","input":"x"}`, "codex/m/requests", `"type":"server_error"`, `"code":"rate_limit_exceeded"`,
	},
	"github": {
		"/github/user", "", "github/core", `"message":"quotad`, `API rate limit exceeded`,
	},
}

func TestRefusal_HasTheFormOfItsProvider(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, `{}`))
	upstreams := map[string]config.Upstream{}
	for name, form := range forms {
		upstreams[name] = upstreamOf(p, name)
		c.apply(ratePer(form.quota, 1, time.Hour))
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	for name, form := range forms {
		method := http.MethodPost
		if form.body == "" {
			method = http.MethodGet
		}
		for i, want := range []int{200, 429} {
			got := f.do(method, form.path, form.body, "X-Quotad-Wait", "0")
			if got.status != want {
				t.Fatalf("%s call %d: %d %s", name, i, got.status, got.body)
			}
			if want == 429 && (!strings.Contains(got.body, form.refused) || got.header.Get("Retry-After") == "" ||
				!strings.Contains(got.header.Get("X-Quotad-Refusal"), form.quota)) {
				t.Errorf("%s refuses with %s, %v", name, got.body, got.header)
			}
		}
	}
	if n := len(p.seen()); n != len(forms) {
		t.Errorf("the provider saw %d calls, want %d", n, len(forms))
	}
}

func TestA13_ClusterAwayIsSaidInEachDialectAndEndsByItself(t *testing.T) {
	t.Parallel() // mostly waiting
	c := startCluster(t)
	p := startProvider(t, speak(200, `{}`))
	upstreams := map[string]config.Upstream{}
	for name, form := range forms {
		upstreams[name] = upstreamOf(p, name)
		c.apply(rate(form.quota, 100))
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	c.stop()
	type result struct {
		name string
		answer
	}
	results := make(chan result, len(forms))
	for name, form := range forms {
		go func() {
			method := http.MethodPost
			if form.body == "" {
				method = http.MethodGet
			}
			results <- result{name, f.do(method, form.path, form.body)}
		}()
	}
	for range forms {
		got := <-results
		if got.status != 503 || !strings.Contains(got.body, forms[got.name].away) || got.header.Get("Retry-After") != "5" {
			t.Errorf("%s: %d %s, %v", got.name, got.status, got.body, got.header)
		}
	}
	if n := len(p.seen()); n != 0 {
		t.Errorf("%d calls were sent while the cluster was away", n)
	}
	c.start()
	eventually(t, "calls pass again", func() bool {
		return f.do(http.MethodPost, forms["openai"].path, forms["openai"].body).status == 200
	})
}

func TestA26_LeavingWhileWaitingDrawsNothing(t *testing.T) {
	c := startCluster(t, slots("anthropic/m/streams", 1))
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo() // also if the test fails: the servers wait for their handlers
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		speak(200, `{}`)(w, r)
	})
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"anthropic": upstreamOf(p, "anthropic")}), gateway.Options{})
	form := forms["anthropic"]
	first := make(chan int, 1)
	go func() { first <- f.do(http.MethodPost, form.path, form.body).status }()
	eventually(t, "the slot is held", func() bool { return len(p.seen()) == 1 })
	connection, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", form.path, len(form.body),
		form.body)
	eventually(t, "the second call waits", func() bool { return c.quota("anthropic/m/streams").Waiting == 1 })
	_ = connection.Close()
	eventually(t, "its place is withdrawn", func() bool { return c.quota("anthropic/m/streams").Waiting == 0 })
	letGo()
	if status := <-first; status != 200 {
		t.Errorf("the first call: %d", status)
	}
	eventually(t, "the slot is free", func() bool { return c.quota("anthropic/m/streams").Available == 1 })
	if n := len(p.seen()); n != 1 {
		t.Errorf("the provider saw %d calls", n)
	}
}

// TestRefusal_OfTheProviderIsNotHeldByItsOpenBody: the beginning determines the meaning of the refusal. The rest may come much later.
func TestRefusal_OfTheProviderIsNotHeldByItsOpenBody(t *testing.T) {
	t.Parallel() // mostly waiting
	release := make(chan struct{})
	const start, rest = `{"error":{"message":"`, `no such parameter"}}`
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		speak(400, start)(w, r)
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, rest)
	}, nil)
	response := f.open(t.Context(), forms["openai"].path, `{"model":"gpt-5","input":"x"}`)
	if response.StatusCode != http.StatusBadRequest {
		t.Fatalf("got %d", response.StatusCode)
	}
	got := make([]byte, len(start))
	if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != start {
		t.Fatalf("the beginning is %q, %v", got, err)
	}
	close(release)
	after, err := io.ReadAll(response.Body)
	if err != nil || string(after) != rest {
		t.Errorf("the rest is %q, %v", after, err)
	}
}

// TestA24_ProviderLimitWithAnOpenBodyIsRetried: a retry does not wait for a body that nobody reads.
func TestA24_ProviderLimitWithAnOpenBodyIsRetried(t *testing.T) {
	t.Parallel() // mostly waiting
	var calls atomic.Int64
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) > 1 {
			speak(200, chatAnswer)(w, r)
			return
		}
		w.Header().Set("Retry-After", "1")
		speak(429, `{"error":{"message":"Rate limit reached. Please try again in 1s.",`)(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, nil)
	got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, "X-Quotad-Class", "critical")
	if got.status != 200 || calls.Load() != 2 {
		t.Fatalf("got %d after %d calls: %s", got.status, calls.Load(), got.body)
	}
}

// TestRefuse_LongNamesOfModels: refused in a path, truncated in a body. Messages and the log truncate allowed names.
func TestRefuse_LongNamesOfModels(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, chatAnswer))
	upstreams := map[string]config.Upstream{}
	for _, name := range []string{"openai", "gemini", "azure", "bedrock"} {
		upstreams[name] = upstreamOf(p, name)
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	for _, size := range []int{200, 257, 60_000} {
		name := strings.Repeat("-latest", size/7+1)[:size]
		for path, body := range map[string]string{
			"/gemini/v1beta/models/" + name + ":generateContent":      `{"contents":[]}`,
			"/azure/openai/deployments/" + name + "/chat/completions": `{"messages":[]}`,
			"/bedrock/model/" + name + "/converse":                    `{"messages":[]}`,
			"/openai/v1/chat/completions":                             `{"messages":[],"model":"` + name + `"}`,
		} {
			want := http.StatusBadRequest
			if size <= 256 || strings.Contains(body, "model") {
				want = http.StatusForbidden
			}
			got := f.do(http.MethodPost, path, body)
			if got.status != want || strings.Contains(got.body, name[:150]) {
				t.Errorf("a model of %d bytes in %.40s: %d %.600s", size, path, got.status, got.body)
			}
		}
	}
	if n := len(p.seen()); n != 0 {
		t.Errorf("the provider saw %d calls", n)
	}
	f.logs(t, "msg=call", 12)
	if strings.Contains(f.log.String(), strings.Repeat("-latest", 22)) {
		t.Error("the log has a long name")
	}
}
