package providertest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// handClock is a clock that only the test advances.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func newHandClock() *handClock {
	return &handClock{now: time.Date(2026, 1, 1, 0, 0, 0, 300_000_000, time.UTC)}
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// send serves one request without a network.
func send(h http.Handler, method, path, key, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(h http.Handler, key string) *httptest.ResponseRecorder {
	return send(h, http.MethodGet, "/repos/a/b", key, "")
}

// expect fails unless the answer has the status and the headers (an empty value: no such header).
func expect(t *testing.T, w *httptest.ResponseRecorder, status int, headers map[string]string) {
	t.Helper()
	if w.Code != status {
		t.Errorf("status %d, want %d: %s", w.Code, status, w.Body)
	}
	for name, want := range headers {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestGitHub_PrimaryWindow(t *testing.T) {
	clock := newHandClock()
	p := New(Config{Now: clock.Now, GitHub: GitHub{Core: 2}})
	reset := strconv.FormatInt(clock.Now().Unix()+3600, 10)
	expect(t, get(p, "k"), 200, map[string]string{
		"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "1", "X-Ratelimit-Used": "1", "X-Ratelimit-Reset": reset,
		"X-Ratelimit-Resource": "core", "Retry-After": "",
	})
	clock.pass(30 * time.Minute)
	expect(t, get(p, "k"), 200, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": reset})
	refused := get(p, "k")
	expect(t, refused, 403, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": reset, "Retry-After": ""})
	if !strings.Contains(refused.Body.String(), "API rate limit exceeded for") {
		t.Errorf("body: %s", refused.Body)
	}
	expect(t, get(p, "other"), 200, map[string]string{"X-Ratelimit-Remaining": "1"})

	// The window ends at the whole second of its reset, and the next one begins only with the next request.
	clock.pass(30*time.Minute - 301*time.Millisecond)
	expect(t, get(p, "k"), 403, nil)
	clock.pass(time.Millisecond)
	clock.pass(10 * time.Minute)
	expect(t, get(p, "k"), 200, map[string]string{
		"X-Ratelimit-Used": "1", "X-Ratelimit-Reset": strconv.FormatInt(clock.Now().Unix()+3600, 10),
	})
}

func TestGitHub_ScaledHour(t *testing.T) {
	clock := newHandClock()
	p := New(Config{Now: clock.Now, Scale: 60, GitHub: GitHub{Core: 1, Status: http.StatusTooManyRequests}})
	expect(t, get(p, "k"), 200, map[string]string{"X-Ratelimit-Reset": strconv.FormatInt(clock.Now().Unix()+60, 10)})
	expect(t, get(p, "k"), 429, nil)
	clock.pass(time.Minute)
	expect(t, get(p, "k"), 200, nil)
}

func TestGitHub_ResourcesAreSeparate(t *testing.T) {
	p := New(Config{Now: newHandClock().Now, GitHub: GitHub{Core: 1, Search: 1, CodeSearch: 1, GraphQL: 1}})
	for path, resource := range map[string]string{"/repos/a/b": "core", "/search/issues": "search", "/search/code": "code_search"} {
		expect(t, send(p, "GET", path, "k", ""), 200, map[string]string{"X-Ratelimit-Resource": resource})
		expect(t, send(p, "GET", path, "k", ""), 403, map[string]string{"X-Ratelimit-Resource": resource})
	}
	expect(t, send(p, "POST", "/graphql", "k", `{"query":"{viewer{login}}"}`), 200, map[string]string{"X-Ratelimit-Resource": "graphql"})
	limited := send(p, "POST", "/graphql", "k", `{"query":"{viewer{login}}"}`)
	expect(t, limited, 200, map[string]string{"X-Ratelimit-Remaining": "0"})
	if !strings.Contains(limited.Body.String(), `"type":"RATE_LIMITED"`) {
		t.Errorf("GraphQL says it in the body: %s", limited.Body)
	}

	var shown struct {
		Resources map[string]struct{ Limit, Used, Remaining int64 }
	}
	w := send(p, "GET", "/rate_limit", "k", "")
	if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil || shown.Resources["core"].Used != 1 {
		t.Errorf("rate_limit: %v %s", err, w.Body)
	}
	if used := p.Totals()[0].Used; used != 1 {
		t.Errorf("reading the limit was charged: %d", used)
	}
}

func TestGitHub_SecondaryLimits(t *testing.T) {
	post := func(p *Provider) *httptest.ResponseRecorder {
		return send(p, "POST", "/repos/a/b/issues", "k", `{"title":"x"}`)
	}
	read := func(p *Provider) *httptest.ResponseRecorder { return get(p, "k") }
	for name, c := range map[string]struct {
		limits GitHub
		send   func(*Provider) *httptest.ResponseRecorder
		fit    int
		why    Verdict
	}{
		"points of reads":  {GitHub{Points: 7}, read, 7, LimitPoints},
		"points of writes": {GitHub{Points: 14}, post, 2, LimitPoints},
		"content":          {GitHub{Content: 3}, post, 3, LimitContent},
		"content by hour":  {GitHub{Content: Unlimited, ContentHour: 4}, post, 4, LimitContent},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newHandClock()
			p := New(Config{Now: clock.Now, GitHub: c.limits})
			for range c.fit {
				if w := c.send(p); w.Code >= 300 {
					t.Fatalf("refused within the limit: %d %s", w.Code, w.Body)
				}
			}
			w := c.send(p)
			expect(t, w, 403, map[string]string{"Retry-After": "60", "X-Ratelimit-Used": strconv.Itoa(c.fit)})
			if !strings.Contains(w.Body.String(), "secondary rate limit") || !strings.Contains(w.Body.String(), "about-secondary-rate-limits") {
				t.Errorf("body: %s", w.Body)
			}
			clock.pass(59 * time.Second)
			expect(t, read(p), 403, map[string]string{"Retry-After": "1"})
			clock.pass(time.Second)
			expect(t, read(p), 200, nil)
			records := p.Records()
			if got := []Verdict{records[c.fit].Verdict, records[c.fit+1].Verdict}; !slices.Equal(got, []Verdict{c.why, LimitPenalty}) {
				t.Errorf("verdicts: %v", got)
			}
		})
	}
}

func TestGitHub_SecondaryWithoutRetryAfter(t *testing.T) {
	p := New(Config{Now: newHandClock().Now, GitHub: GitHub{Points: 1, OmitRetryAfter: true, SecondaryStatus: http.StatusTooManyRequests}})
	get(p, "k")
	expect(t, get(p, "k"), 429, map[string]string{"Retry-After": ""})
}

func TestGitHub_LimitsConcurrentRequests(t *testing.T) {
	s := serve(t, Config{GitHub: GitHub{Concurrent: 3, Latency: time.Hour}})
	for range 3 {
		go func() {
			// Served until the server closes: the answer does not matter.
			if response, err := call(s, "GET", "/repos/a/b", ""); err == nil {
				_ = response.Body.Close()
			}
		}()
	}
	eventually(t, "three requests are served", func() bool { return len(s.Records()) == 3 })
	response, err := call(s, "GET", "/repos/a/b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusForbidden || s.Records()[3].Verdict != LimitConcurrent {
		t.Errorf("a fourth request at once: %d", response.StatusCode)
	}
}

func completion(tokens int) string {
	return `{"model":"gpt-5","messages":[{"role":"user","content":"hi"}],"max_tokens":` + strconv.Itoa(tokens) + `}`
}

func TestOpenAI_SlidingRequests(t *testing.T) {
	clock := newHandClock()
	p := New(Config{Now: clock.Now, OpenAI: OpenAI{Requests: 2, RefusedFree: true}})
	ask := func() *httptest.ResponseRecorder {
		return send(p, "POST", "/v1/chat/completions", "k", completion(100))
	}
	expect(t, ask(), 200, map[string]string{
		"X-Ratelimit-Limit-Requests": "2", "X-Ratelimit-Remaining-Requests": "1", "X-Ratelimit-Reset-Requests": "1m0s",
		"X-Ratelimit-Limit-Tokens": "200000", "X-Ratelimit-Remaining-Tokens": "199900", "X-Ratelimit-Reset-Tokens": "1m0s",
	})
	clock.pass(40 * time.Second)
	expect(t, ask(), 200, map[string]string{"X-Ratelimit-Remaining-Requests": "0"})
	clock.pass(18*time.Second + 276*time.Millisecond)
	w := ask()
	expect(t, w, 429, map[string]string{"Retry-After": "2", "Retry-After-Ms": "1724", "X-Ratelimit-Remaining-Requests": "0"})
	var body struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	if body.Error.Code != "rate_limit_exceeded" || body.Error.Type != "requests" ||
		!strings.Contains(body.Error.Message, "Limit 2, Used 2, Requested 1. Please try again in 1.724s.") {
		t.Errorf("error: %+v", body.Error)
	}
	clock.pass(1724 * time.Millisecond)
	expect(t, ask(), 200, nil)
	expect(t, ask(), 429, nil)
}

func TestOpenAI_Tokens(t *testing.T) {
	clock := newHandClock()
	p := New(Config{Now: clock.Now, OpenAI: OpenAI{Tokens: 10_000}})
	ask := func(tokens int) *httptest.ResponseRecorder {
		return send(p, "POST", "/v1/chat/completions", "k", completion(tokens))
	}
	expect(t, ask(8_782), 200, map[string]string{"X-Ratelimit-Remaining-Tokens": "1218"})
	w := ask(8_172)
	expect(t, w, 429, map[string]string{"Retry-After": "60", "Retry-After-Ms": "60000"})
	if !strings.Contains(w.Body.String(), "on tokens per min (TPM): Limit 10000, Used 8782, Requested 8172. Please try again in 60.000s.") {
		t.Errorf("body: %s", w.Body)
	}
	expect(t, ask(1_218), 200, map[string]string{"X-Ratelimit-Remaining-Tokens": "0"})
	tooLarge := ask(10_001)
	expect(t, tooLarge, 429, map[string]string{"Retry-After": "", "X-Should-Retry": "false"})
	if !strings.Contains(tooLarge.Body.String(), "Request too large for gpt-5") {
		t.Errorf("body: %s", tooLarge.Body)
	}
	expect(t, send(p, "POST", "/v1/chat/completions", "k", strings.Replace(completion(5_000), "gpt-5", "other", 1)), 200, nil)
}

// Requests that OpenAI refuses count as well, so a caller that retries at once stays locked out.
func TestOpenAI_CountsRefusedRequests(t *testing.T) {
	clock := newHandClock()
	p := New(Config{Now: clock.Now, OpenAI: OpenAI{Requests: 1}})
	ask := func() int { return send(p, "POST", "/v1/chat/completions", "k", completion(1)).Code }
	got := []int{ask()}
	for range 3 {
		clock.pass(50 * time.Second)
		got = append(got, ask())
	}
	clock.pass(time.Minute)
	got = append(got, ask())
	if want := []int{200, 429, 429, 429, 200}; !slices.Equal(got, want) {
		t.Errorf("statuses %v, want %v", got, want)
	}
}

func TestOpenAI_BucketRefillsEvenly(t *testing.T) {
	clock := newHandClock()
	p := New(Config{Now: clock.Now, OpenAI: OpenAI{Requests: 60, Algorithm: Bucket, RefusedFree: true}})
	ask := func() *httptest.ResponseRecorder { return send(p, "POST", "/v1/responses", "k", completion(1)) }
	for range 60 {
		expect(t, ask(), 200, nil)
	}
	expect(t, ask(), 429, map[string]string{"Retry-After-Ms": "1000", "X-Ratelimit-Reset-Requests": "1m0s"})
	clock.pass(time.Second)
	expect(t, ask(), 200, nil)
	expect(t, ask(), 429, nil)
	clock.pass(time.Hour)
	expect(t, ask(), 200, map[string]string{"X-Ratelimit-Remaining-Requests": "59", "X-Ratelimit-Reset-Requests": "1s"})
}

func TestOpenAI_StreamEndsWithUsage(t *testing.T) {
	p := New(Config{})
	w := send(p, "POST", "/v1/chat/completions", "k", `{"model":"m","messages":[],"max_tokens":10,"stream":true}`)
	expect(t, w, 200, map[string]string{"Content-Type": "text/event-stream"})
	if !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") || !strings.Contains(w.Body.String(), `"total_tokens"`) {
		t.Errorf("stream: %s", w.Body)
	}
}

func TestUnlimited_RefusesNothing(t *testing.T) {
	for _, algorithm := range []Algorithm{Sliding, Bucket} {
		p := New(Config{
			GitHub: GitHub{Core: Unlimited, Points: Unlimited, Content: Unlimited, ContentHour: Unlimited, Concurrent: Unlimited},
			OpenAI: OpenAI{Requests: Unlimited, Tokens: Unlimited, Algorithm: algorithm},
		})
		for range 1_000 {
			expect(t, send(p, "POST", "/repos/a/b/issues", "k", "{}"), 201, nil)
			expect(t, send(p, "POST", "/v1/responses", "k", completion(1_000_000)), 200, map[string]string{"X-Ratelimit-Limit-Requests": ""})
		}
	}
}

func TestProvider_RefusesWrongRequests(t *testing.T) {
	p := New(Config{})
	for name, c := range map[string]struct {
		method, path, key, body string
		status                  int
	}{
		"no key":          {"GET", "/user", "", "", 401},
		"no key, OpenAI":  {"POST", "/v1/responses", "", completion(1), 401},
		"unknown path":    {"POST", "/v1/nothing", "k", completion(1), 404},
		"no JSON":         {"POST", "/v1/responses", "k", "{", 400},
		"no model":        {"POST", "/v1/responses", "k", "{}", 400},
		"read, not asked": {"GET", "/v1/responses", "k", completion(1), 400},
		"body too long":   {"POST", "/user", "k", strings.Repeat("x", maxBody+1), 400},
	} {
		if w := send(p, c.method, c.path, c.key, c.body); w.Code != c.status {
			t.Errorf("%s: %d, want %d", name, w.Code, c.status)
		}
	}
	for _, totals := range p.Totals() {
		if totals.Rejected != totals.Arrived || totals.Limited != 0 || totals.Used != 0 {
			t.Errorf("a wrong request was charged: %+v", totals)
		}
	}
}

func TestFaults_AreInjected(t *testing.T) {
	s := serve(t, Config{})
	s.Inject(Fault{Key: "k", Path: "/repos", Times: 2, Status: 429, RetryAfter: 1500 * time.Millisecond, Body: "no"})
	s.Inject(Fault{Key: "another"})
	for _, want := range []int{429, 429, 200} {
		response, err := call(s, "GET", "/repos/a/b", "")
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != want || (want == 429) != (response.Header.Get("Retry-After") == "2") {
			t.Errorf("%d %v, want %d", response.StatusCode, response.Header, want)
		}
		_ = response.Body.Close()
	}
	s.Inject(Fault{Close: true})
	if response, err := call(s, "POST", "/repos/a/b/issues", `{"title":"x"}`); err == nil {
		t.Errorf("an answer on a closed connection: %d", response.StatusCode)
	}
	totals := s.Totals()[0]
	if totals.Injected != 3 || totals.Limited != 0 || totals.Used != 1 {
		t.Errorf("injected faults are not limits, and charge nothing: %+v", totals)
	}
}

func TestControl_ConfiguresProvider(t *testing.T) {
	s := serve(t, Config{})
	for body, want := range map[string]int{
		`{"status":429,"times":1}`: 204, `{"status":42}`: 400, `{"sttus":429}`: 400, `{`: 400,
	} {
		response, err := http.Post(s.URL+"/_provider/faults", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", body, response.StatusCode, want)
		}
	}
	response, err := call(s, "GET", "/repos/a/b", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response, err = http.Get(s.URL + "/_provider/records"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	records, err := ReadRecords(response.Body)
	if err != nil || len(records) != 1 || records[0] != s.Records()[0] || records[0].Verdict != Injected {
		t.Errorf("records: %+v, %v", records, err)
	}
	if response, err = http.Get(s.URL + "/_provider/totals"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var totals []Totals
	if err := json.NewDecoder(response.Body).Decode(&totals); err != nil || len(totals) != 1 || totals[0].Injected != 1 {
		t.Errorf("totals: %+v, %v", totals, err)
	}
}

func TestRecords_ShowRetriesAndHolders(t *testing.T) {
	clock := newHandClock()
	p := New(Config{Now: clock.Now, MaxRecords: 3})
	for _, holder := range []string{"picard", "picard", "ralph", "riker"} {
		send(p, "GET", "/repos/a/b", "k", "", HolderHeader, holder, CallHeader, holder)
		clock.pass(time.Second)
	}
	records := p.Records()
	if len(records) != 3 || records[0].Repeat || !records[1].Repeat || records[2].Repeat || records[2].Holder != "ralph" ||
		records[2].At != 2*time.Second {
		t.Errorf("records: %+v", records)
	}
	if totals := p.Totals()[0]; totals.Arrived != 4 || totals.Repeats != 1 {
		t.Errorf("what is not recorded is counted: %+v", totals)
	}
	var out bytes.Buffer
	if err := WriteRecords(&out, records); err != nil {
		t.Fatal(err)
	}
	if again, err := ReadRecords(&out); err != nil || !slices.Equal(again, records) {
		t.Errorf("written and read: %v %v", again, err)
	}
}

// With any number of callers, each key gets exactly its limit.
func TestProvider_ConcurrentCallersGetExactLimit(t *testing.T) {
	s := serve(t, Config{
		GitHub: GitHub{Core: 50, Concurrent: Unlimited, Points: Unlimited}, OpenAI: OpenAI{Requests: 30, RefusedFree: true},
	})
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for range 10 {
				path, method, body := "/repos/a/b", "GET", ""
				if i%2 == 0 {
					path, method, body = "/v1/responses", "POST", completion(1)
				}
				response, err := call(s, method, path, body)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	callers.Wait()
	totals := s.Totals()
	if len(totals) != 2 || totals[0].Admitted != 50 || totals[0].Limited403 != 30 || totals[1].Admitted != 30 || totals[1].Limited429 != 50 {
		t.Errorf("totals: %+v", totals)
	}
	if !slices.IsSortedFunc(s.Records(), byTime) {
		t.Error("records are not in the order of time")
	}
}

// serve starts a server that stops with the test.
func serve(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// call sends a request over the network, with a body that cannot be read again, so that net/http repeats nothing.
func call(s *Server, method, path, body string) (*http.Response, error) {
	r, err := http.NewRequest(method, s.URL+path, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer k")
	return http.DefaultClient.Do(r)
}

// eventually waits until the condition holds.
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
			t.Fatalf("in vain: %s", what)
		}
	}
}
