package gateway_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// frame returns one message of an Amazon event stream.
func frame(event, payload string) string {
	var header bytes.Buffer
	for _, pair := range [][2]string{{":message-type", "event"}, {":event-type", event}} {
		header.WriteByte(byte(len(pair[0])))
		header.WriteString(pair[0])
		header.WriteByte(7)
		_ = binary.Write(&header, binary.BigEndian, uint16(len(pair[1])))
		header.WriteString(pair[1])
	}
	var out bytes.Buffer
	_ = binary.Write(&out, binary.BigEndian, uint32(16+header.Len()+len(payload)))
	_ = binary.Write(&out, binary.BigEndian, uint32(header.Len()))
	_ = binary.Write(&out, binary.BigEndian, crc32.ChecksumIEEE(out.Bytes()))
	out.Write(header.Bytes())
	out.WriteString(payload)
	_ = binary.Write(&out, binary.BigEndian, crc32.ChecksumIEEE(out.Bytes()))
	return out.String()
}

// TestBody_RefusesRepeatedKeys: another reader might use the other model, which nothing governs.
func TestBody_RefusesRepeatedKeys(t *testing.T) {
	c := startCluster(t, tokens("openai/small/tokens", 100_000))
	p := startProvider(t, speak(200, `{}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"small","input":"x","mod\u0065l":"large"}`)
	if got.status != http.StatusBadRequest || !strings.Contains(got.body, "is repeated") {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"small","input":"x"}`); got.status != http.StatusOK {
		t.Errorf("once: got %d %s", got.status, got.body)
	}
}

// TestSend_ReplacesLateAllowance: a connection that takes longer than the spend-by is closed unused, and the gateway asks for
// another allowance.
func TestSend_ReplacesLateAllowance(t *testing.T) {
	quota := rate("openai/gpt-5/requests", 10)
	quota.SpendBy, quota.Transit = durationpb.New(2*time.Second), durationpb.New(time.Second)
	c := startCluster(t, quota)
	p := startProvider(t, speak(200, chatAnswer))
	var dials atomic.Int64
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			time.Sleep(1100 * time.Millisecond) //nolint:forbidigo // what is tested is that the last take passes meanwhile
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	f := startGateway(t, c, p, conf, gateway.Options{Transport: transport})
	got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","messages":[]}`)
	if got.status != http.StatusOK || len(p.seen()) != 1 || dials.Load() < 2 {
		t.Errorf("%d %s after %d connections and %d requests", got.status, got.body, dials.Load(), len(p.seen()))
	}
}

func TestA22_BedrockIsDrainedAfterItsClientHasLeft(t *testing.T) {
	c := startCluster(t, tokens("bedrock/m/tokens", 100_000))
	left := make(chan struct{})
	first := frame("contentBlockDelta", `{"contentBlockIndex":0,"delta":{"text":"Hi"}}`)
	p := startProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
		_, _ = io.WriteString(w, first)
		_ = http.NewResponseController(w).Flush()
		<-left
		for range 100 {
			_, _ = io.WriteString(w, first)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, frame("metadata", `{"usage":{"inputTokens":12,"outputTokens":7,"totalTokens":19}}`))
	})
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"bedrock": upstreamOf(p, "bedrock")}), gateway.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	response := f.open(ctx, "/bedrock/model/m/converse-stream", `{"messages":[]}`)
	if _, err := io.ReadFull(response.Body, make([]byte, len(first))); err != nil {
		t.Fatal(err)
	}
	cancel()
	close(left)
	c.consumed("bedrock/m/tokens", 19)
}

func TestA3_GeminiStreamIsSettledByItsInput(t *testing.T) {
	c := startCluster(t, rate("gemini/gemini-3/requests", 10), tokens("gemini/gemini-3/tokens", 100_000))
	stream := "data: {\"candidates\":[],\"usageMetadata\":{\"promptTokenCount\":8,\"candidatesTokenCount\":3}}\n\n" +
		"data: {\"candidates\":[],\"usageMetadata\":{\"promptTokenCount\":8,\"candidatesTokenCount\":12,\"thoughtsTokenCount\":40}}\n\n"
	p := startProvider(t, events(nil, stream))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"gemini": upstreamOf(p, "gemini")}), gateway.Options{})
	got := f.do(http.MethodPost, "/gemini/v1beta/models/gemini-3:streamGenerateContent?alt=sse", `{"contents":[{"parts":[{"text":"Hi"}]}]}`,
		"X-Goog-Api-Key", "made-up")
	if got.body != stream || p.one(t).uri != "/v1beta/models/gemini-3:streamGenerateContent?alt=sse" ||
		p.one(t).header.Get("X-Goog-Api-Key") != "made-up" {
		t.Fatalf("got %d %q, sent %+v", got.status, got.body, p.one(t))
	}
	c.consumed("gemini/gemini-3/tokens", 8)
}

func TestBody_IsBoundedAndUnpacked(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), func(c *config.Config) { c.Limits.Body, c.Limits.Memory = 1<<16, 1<<16 })
	long := `{"model":"gpt-5","input":"` + strings.Repeat("a", 1<<16) + `"}`
	if got := f.do(http.MethodPost, forms["openai"].path, long); got.status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(got.body, "limits.body") || !strings.Contains(got.body, `"code":"request_too_large"`) {
		t.Errorf("a long body: %d %s", got.status, got.body)
	}
	got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5"}`, "Content-Encoding", "zstd")
	if got.status != http.StatusUnsupportedMediaType || !strings.Contains(got.body, "the Content-Encoding of the body") {
		t.Errorf("zstd: %d %s", got.status, got.body)
	}
	if n := len(f.provider.seen()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	packed := func(text string) string {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = io.WriteString(w, text)
		_ = w.Close()
		return out.String()
	}
	got = f.do(http.MethodPost, forms["openai"].path, packed(`{"model":"gpt-5","input":"x"}`), "Content-Encoding", "gzip")
	if got.status != 200 || f.provider.one(t).header.Get("Content-Encoding") != "gzip" {
		t.Errorf("gzip: %d %s", got.status, got.body)
	}
	got = f.do(http.MethodPost, forms["openai"].path, packed(long), "Content-Encoding", "gzip")
	if got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body in gzip: %d %s", got.status, got.body)
	}
	eventually(t, "the memory of bodies is released", func() bool {
		return strings.Contains(f.do(http.MethodGet, "/metrics", "").body, "quotad_gateway_buffered_bytes 0\n")
	})
}

func TestMultipart_IsGovernedByItsModelAndStreamed(t *testing.T) {
	c := startCluster(t, rate("openai/whisper/requests", 10))
	p := startProvider(t, speak(200, `{"text":"x","usage":{"type":"duration","seconds":9}}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	body := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--b\r\n" +
		"Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n" +
		strings.Repeat("x", 200_000) + "\r\n--b--\r\n"
	got := f.do(http.MethodPost, "/openai/v1/audio/transcriptions", body, "Content-Type", "multipart/form-data; boundary=b")
	if got.status != 200 || p.one(t).body != body {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	c.consumed("openai/whisper/requests", 1)
	// The name has to stand in the first 64 KiB.
	late := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n" + strings.Repeat("x", 64<<10) + "\r\n" + body
	got = f.do(http.MethodPost, "/openai/v1/audio/transcriptions", late, "Content-Type", "multipart/form-data; boundary=b")
	if got.status != http.StatusForbidden || !strings.Contains(got.body, "a call without a model") {
		t.Errorf("a late name: %d %s", got.status, got.body)
	}
}

// TestBody_TextIsStreamedAndJSONInItIsRead: the provider receives the first bytes of a text before the client sends the last. JSON
// declared as text, as by curl -d, is governed by its content.
func TestBody_TextIsStreamedAndJSONInItIsRead(t *testing.T) {
	c := startCluster(t, rate("github/core", 100), rate("openai/gpt-5/requests", 10))
	const first, last = "first line\n", "last line\n"
	arrived := make(chan string, 1)
	streaming := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := make([]byte, len(first))
		_, _ = io.ReadFull(r.Body, head)
		arrived <- string(head)
		rest, _ := io.ReadAll(r.Body)
		speak(200, string(rest))(w, r)
	}))
	defer streaming.Close()
	p := startProvider(t, speak(200, chatAnswer))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{
		"github": {Dialect: "github", Base: streaming.URL, Plain: true}, "openai": upstreamOf(p, "openai"),
	}), gateway.Options{})

	body, write := io.Pipe()
	go func() {
		_, _ = io.WriteString(write, first)
		select {
		case <-arrived:
			_, _ = io.WriteString(write, last)
			_ = write.Close()
		case <-t.Context().Done():
			_ = write.CloseWithError(t.Context().Err())
		}
	}()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/github/markdown/raw", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "text/plain")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if rest, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || string(rest) != last {
		t.Fatalf("got %d %q, %v", response.StatusCode, rest, err)
	}
	c.consumed("github/core", 1)

	for i, kind := range []string{"text/plain", "application/x-www-form-urlencoded"} {
		got := f.do(http.MethodPost, "/openai/v1/chat/completions", ` {"model":"gpt-5","messages":[]}`, "Content-Type", kind)
		if got.status != 200 {
			t.Errorf("%s: %d %s", kind, got.status, got.body)
		}
		c.consumed("openai/gpt-5/requests", int64(i+1))
	}
}

func TestReload_IsWholeOrNotAtAll(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	bad := configOf(f.cluster, map[string]config.Upstream{"openai": {Auth: "nonsense"}})
	if err := f.gateway.Reload(bad); err == nil {
		t.Fatal("a wrong configuration was taken")
	}
	ask := func(path string) int { return f.do(http.MethodPost, path, `{"model":"gpt-5","input":"x"}`).status }
	if status := ask("/openai/v1/responses"); status != 200 {
		t.Fatalf("after a wrong configuration: %d", status)
	}
	other := upstreamOf(f.provider, "openai")
	other.Quotas = "openai"
	if err := f.gateway.Reload(configOf(f.cluster, map[string]config.Upstream{"other": other})); err != nil {
		t.Fatal(err)
	}
	if was, is := ask("/openai/v1/responses"), ask("/other/v1/responses"); was != 404 || is != 200 {
		t.Errorf("after a new configuration: %d and %d", was, is)
	}
}

func TestStop_EndsWaitingCallsAndLetsRunningOnesFinish(t *testing.T) {
	c := startCluster(t, slots("anthropic/m/streams", 1))
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo() // also if the test fails: the servers wait for their handlers
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		speak(200, `{}`)(w, r)
	})
	conf := configOf(c, map[string]config.Upstream{"anthropic": upstreamOf(p, "anthropic")})
	f := startGateway(t, c, p, conf, gateway.Options{})
	results := make(chan answer, 2)
	form := forms["anthropic"]
	go func() { results <- f.do(http.MethodPost, form.path, form.body) }()
	eventually(t, "one call runs", func() bool { return len(p.seen()) == 1 })
	go func() { results <- f.do(http.MethodPost, form.path, form.body) }()
	eventually(t, "one call waits", func() bool { return c.quota("anthropic/m/streams").Waiting == 1 })
	f.gateway.Stop()
	if got := <-results; got.status != 503 || got.header.Get("Retry-After") != "1" {
		t.Errorf("the waiting call: %d %s", got.status, got.body)
	}
	if got := f.do(http.MethodGet, "/readyz", ""); got.status != 503 {
		t.Errorf("readyz: %d", got.status)
	}
	letGo()
	if got := <-results; got.status != 200 {
		t.Errorf("the running call: %d %s", got.status, got.body)
	}
}

// TestA31_WaitingCallsShareConnectionsToTheNodes: with those that the gateway itself opened before, a process has at most four.
func TestA31_WaitingCallsShareConnectionsToTheNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("1,500 connections")
	}
	const waiting = 1_500
	c := startCluster(t, slots("anthropic/m/streams", 1))
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo() // also if the test fails: the servers wait for their handlers
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		speak(200, `{}`)(w, r)
	})
	conf := configOf(c, map[string]config.Upstream{"anthropic": upstreamOf(p, "anthropic")})
	conf = conf.Complete()
	conf.Wait[config.Standard] = 10 * time.Minute
	f := startGateway(t, c, p, conf, gateway.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	form := forms["anthropic"]
	ask := func() {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+form.path, strings.NewReader(form.body))
		if err != nil {
			t.Error(err)
			return
		}
		if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
			_ = response.Body.Close()
		}
	}
	go ask()
	eventually(t, "one call runs", func() bool { return len(p.seen()) == 1 })
	http.DefaultClient.CloseIdleConnections() // by one of them this test applied its quota
	open := descriptors(t)
	for range waiting {
		go ask()
	}
	eventually(t, "all others wait", func() bool { return c.quota("anthropic/m/streams").Waiting == waiting })
	if n := sockets(t, c.config.APIAddress); n < 1 || n > 4 {
		t.Errorf("%d connections to the node", n)
	}
	// Both ends of the clients' connections belong to this test.
	if now := descriptors(t) - open; now > 2*waiting+100 {
		t.Errorf("%d descriptors more for %d waiting calls", now, waiting)
	}
	cancel()
	eventually(t, "nobody waits", func() bool { return c.quota("anthropic/m/streams").Waiting == 0 })
	letGo()
}

// descriptors counts this process's open files and connections.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("only Linux shows its descriptors")
	}
	return len(all)
}

// sockets counts this process's connections to an address.
func sockets(t *testing.T, address string) int {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Skip("only Linux shows its connections")
	}
	_, port, _ := strings.Cut(address, ":")
	var number int
	_, _ = fmt.Sscan(port, &number)
	// Established connections to it. A connection's other end belongs to this process as well: it has the address first.
	remote := fmt.Sprintf("0100007F:%04X 01 ", number)
	return strings.Count(string(table), remote)
}

func TestListen_RefusesASocketThatIsServed(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, `{}`))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Listen = config.Listen{Unix: filepath.Join(t.TempDir(), "gateway.sock")}
	f := startGateway(t, c, p, conf, gateway.Options{})
	f.listen()
	if info, err := os.Stat(conf.Listen.Unix); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	if _, err := f.gateway.Listen(context.Background()); err == nil || !strings.Contains(err.Error(), "another process listens there") {
		t.Errorf("got %v", err)
	}
}

func TestA6_EnterpriseFormOfGitHubIsMapped(t *testing.T) {
	c := startCluster(t, rate("github/core", 100), rate("github/graphql", 100))
	p := startProvider(t, speak(200, `{}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"github": upstreamOf(p, "github")}), gateway.Options{})
	f.do(http.MethodGet, "/github/api/v3/repos/a/b%2Fc?per_page=1", "")
	f.do(http.MethodPost, "/github/api/graphql", `{"query":"query { viewer { login } }"}`)
	f.do(http.MethodGet, "/github/rate_limit", "")
	seen := p.seen()
	if len(seen) != 3 || seen[0].uri != "/repos/a/b%2Fc?per_page=1" || seen[1].uri != "/graphql" || seen[2].uri != "/rate_limit" {
		t.Fatalf("the provider saw %+v", seen)
	}
	c.consumed("github/core", 1)
	c.consumed("github/graphql", 1)
}

func TestA21_LimitWithinAStreamClosesTheQuota(t *testing.T) {
	const failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"usage\":null,\"error\":{\"code\":" +
		"\"rate_limit_exceeded\",\"message\":\"Rate limit reached. Please try again in 11.054s.\"}}}\n\n"
	f := openAI(t, events(nil, failed), nil)
	got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","stream":true,"input":"x"}`)
	if got.status != 200 || got.body != failed {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	eventually(t, "the quota is closed", func() bool { return f.cluster.quota("openai/gpt-5/requests").CooldownLeft > 5*time.Second })
	// The use is unknown, so nothing is returned.
	eventually(t, "the call is settled", func() bool { return f.cluster.quota("openai/gpt-5/tokens").Leases == 0 })
	if q := f.cluster.quota("openai/gpt-5/tokens"); q.Consumed < 4_000 {
		t.Errorf("%d tokens are consumed: some went back", q.Consumed)
	}
}

// TestA21_ErrorWithinAStreamClosesNothing: an error of the provider, or of the call, is no limit, although the status was a success.
func TestA21_ErrorWithinAStreamClosesNothing(t *testing.T) {
	for name, failed := range map[string]string{
		"of the provider": "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"usage\":null,\"error\":{\"code\":" +
			"\"server_error\",\"message\":\"The server had an error\"}}}\n\n",
		"of the call": "event: error\ndata: {\"type\":\"error\",\"code\":\"invalid_prompt\",\"message\":\"no\"}\n\n",
	} {
		f := openAI(t, events(nil, failed), nil)
		got := f.do(http.MethodPost, "/openai/v1/responses", `{"model":"gpt-5","stream":true,"input":"x"}`)
		if got.status != 200 || got.body != failed {
			t.Fatalf("%s: got %d %q", name, got.status, got.body)
		}
		eventually(t, "the call is settled", func() bool { return f.cluster.quota("openai/gpt-5/tokens").Leases == 0 })
		if q := f.cluster.quota("openai/gpt-5/requests"); q.CooldownLeft != 0 {
			t.Errorf("%s: a cooldown of %v", name, q.CooldownLeft)
		}
	}
}

func TestA21_OverloadWithinAStreamClosesNothing(t *testing.T) {
	const failed = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"
	f := messages(t, events(nil, messageEvents[0], failed), nil)
	got := f.do(http.MethodPost, "/anthropic/v1/messages", messageBody)
	if got.status != 200 || got.body != messageEvents[0]+failed {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	eventually(t, "the call is settled", func() bool { return f.cluster.quota("anthropic/claude-opus-4/requests").Leases == 0 })
	if q := f.cluster.quota("anthropic/claude-opus-4/requests"); q.CooldownLeft != 0 {
		t.Errorf("a cooldown of %v", q.CooldownLeft)
	}
}
