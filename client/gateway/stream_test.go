package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// events answers with server-sent events and flushes each. Between events it receives from next, unless next is nil.
func events(next chan struct{}, all ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i, event := range all {
			if next != nil && i > 0 {
				select {
				case <-next:
				case <-r.Context().Done():
					return
				}
			}
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

var messageEvents = []string{
	"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"cache_creation_input_tokens\":0," +
		"\"cache_read_input_tokens\":0,\"output_tokens\":1}}}\n\n",
	": ping\n\n",
	"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"" +
		strings.Repeat("four", 100) + "\"}}\n\n",
	"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}," +
		"\"usage\":{\"input_tokens\":null,\"output_tokens\":150}}\n\n",
	"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
}

// messages starts a gateway for a fake Anthropic.
func messages(t *testing.T, answer http.HandlerFunc, change func(*config.Config)) *fixture {
	t.Helper()
	c := startCluster(t, rate("anthropic/claude-opus-4/requests", 100), tokens("anthropic/claude-opus-4/input-tokens", 100_000),
		tokens("anthropic/claude-opus-4/output-tokens", 100_000), slots("anthropic/claude-opus-4/streams", 20))
	p := startProvider(t, answer)
	conf := configOf(c, map[string]config.Upstream{"anthropic": upstreamOf(p, "anthropic")})
	if change != nil {
		change(&conf)
	}
	return startGateway(t, c, p, conf, gateway.Options{})
}

const messageBody = `{"model":"claude-opus-4-20250929","max_tokens":32000,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`

// open sends a request and returns its answer unread.
func (f *fixture) open(ctx context.Context, path, body string, headers ...string) *http.Response {
	f.tb.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+path, strings.NewReader(body))
	if err != nil {
		f.tb.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func TestA2_StreamPassesEventByEventAndSettles(t *testing.T) {
	next := make(chan struct{})
	f := messages(t, events(next, messageEvents...), nil)
	response := f.open(t.Context(), "/anthropic/v1/messages?beta=true", messageBody)
	in := bufio.NewReader(response.Body)
	for i, want := range messageEvents {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != want {
			t.Fatalf("event %d: %q, %v", i, got, err)
		}
		if i+1 < len(messageEvents) {
			next <- struct{}{} // only now does the provider send the next one: this one was not delayed
		}
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last event: %v", err)
	}
	f.cluster.consumed("anthropic/claude-opus-4/input-tokens", 25)
	f.cluster.consumed("anthropic/claude-opus-4/output-tokens", 150)
	f.cluster.consumed("anthropic/claude-opus-4/requests", 1)
	eventually(t, "the slot is free", func() bool { return f.cluster.quota("anthropic/claude-opus-4/streams").Available == 20 })
}

func TestA18_OutputIsReservedAsItWillBeAndNotAsItIsBounded(t *testing.T) {
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo() // also if the test fails: the servers wait for their handlers
	f := messages(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		events(nil, messageEvents...)(w, r)
	}, nil)
	done := make(chan int, 10)
	for range 10 {
		go func() { done <- f.do(http.MethodPost, "/anthropic/v1/messages", messageBody).status }()
	}
	eventually(t, "all 10 calls are in flight", func() bool { return len(f.provider.seen()) == 10 })
	letGo()
	for range 10 {
		if status := <-done; status != 200 {
			t.Errorf("status %d", status)
		}
	}
}

func TestA22_LeavingClientCancelsUpstreamAndFreesTheSlot(t *testing.T) {
	over := make(chan time.Time, 1)
	f := messages(t, func(w http.ResponseWriter, r *http.Request) {
		events(nil, messageEvents[:3]...)(w, r)
		<-r.Context().Done()
		over <- time.Now()
	}, func(conf *config.Config) { conf.Lease = time.Hour }) // so that no lease's end frees the slot
	ctx, cancel := context.WithCancel(t.Context())
	response := f.open(ctx, "/anthropic/v1/messages", messageBody)
	all := len(messageEvents[0]) + len(messageEvents[1]) + len(messageEvents[2])
	if _, err := io.ReadFull(response.Body, make([]byte, all)); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("the provider never saw that the client had left")
	}
	f.cluster.consumed("anthropic/claude-opus-4/output-tokens", 100)
	eventually(t, "the slot is free", func() bool { return f.cluster.quota("anthropic/claude-opus-4/streams").Available == 20 })
}

func TestA23_BrokenStreamIsNeverEndedCleanly(t *testing.T) {
	f := messages(t, func(w http.ResponseWriter, r *http.Request) {
		events(nil, messageEvents[:2]...)(w, r)
		panic(http.ErrAbortHandler)
	}, func(conf *config.Config) { conf.Listen = certificate(t, "a.example") })
	address := f.listen()
	for _, scheme := range []string{"http", "https"} {
		at := f.url
		transport := &http.Transport{
			Protocols:       new(http.Protocols),
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test's own certificate
		}
		if transport.Protocols.SetHTTP1(scheme == "http"); scheme == "https" {
			at = "https://" + address
			transport.Protocols.SetHTTP2(true)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+"/anthropic/v1/messages", strings.NewReader(messageBody))
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		transport.CloseIdleConnections()
		if want := messageEvents[0] + messageEvents[1]; err == nil || string(got) != want || (response.ProtoMajor == 2) != (scheme == "https") {
			t.Errorf("%s: the client read %q, %v", response.Proto, got, err)
		}
	}
}

var chatEvents = []string{
	"data: {\"choices\":[],\"prompt_filter_results\":[{\"prompt_index\":0}]}\n\n",
	"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n",
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}}\n\n",
	"data: [DONE]\n\n",
}

func TestA20_UsageIsAskedForAndItsEventIsWithheld(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		t.Run(fmt.Sprintf("%q", end), func(t *testing.T) {
			var sent []string
			for _, event := range chatEvents {
				sent = append(sent, strings.ReplaceAll(event, "\n", end))
			}
			f := openAI(t, events(nil, sent...), nil)
			got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","stream":true,"messages":[]}`)
			if want := sent[0] + sent[1] + sent[3]; got.body != want {
				t.Errorf("got %q, want %q", got.body, want)
			}
			if asked := f.provider.one(t).body; asked != `{"stream_options":{"include_usage":true},"model":"gpt-5","stream":true,"messages":[]}` {
				t.Errorf("the provider was asked %s", asked)
			}
			f.cluster.consumed("openai/gpt-5/tokens", 11)
		})
	}
}

func TestA20_OwnStreamOptionsAreLeftAlone(t *testing.T) {
	f := openAI(t, events(nil, chatEvents...), nil)
	for i, own := range []string{`{"include_usage":true}`, "null"} {
		body := `{"model":"gpt-5","stream":true,"stream_options":` + own + `,"messages":[]}`
		got := f.do(http.MethodPost, "/openai/v1/chat/completions", body)
		if want := strings.Join(chatEvents, ""); got.body != want {
			t.Errorf("%s: got %q", own, got.body)
		}
		if sent := f.provider.seen(); len(sent) != i+1 || sent[i].body != body {
			t.Errorf("%s: the provider was asked %+v", own, sent)
		}
	}
}
