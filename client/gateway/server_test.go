package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestSlots_ShowTheirLifeAndTheirLoss: while a slot is held, its connection carries an empty line every 10 s. When the slot is lost, a
// line says so, and the answer ends.
func TestSlots_ShowTheirLifeAndTheirLoss(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Slots("t/slots", 1)}, answer: speak(200, `{}`),
		change: func(conf *config.Config) { conf.Lease = 30 * time.Second },
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		connection := b.send(http.MethodPost, "/slots?quota=t/slots", "")
		defer func() { _ = connection.Close() }()
		_ = connection.SetReadDeadline(time.Now().Add(10 * time.Minute))
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		lines := bufio.NewReader(response.Body)
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"fence":"`) {
			t.Fatalf("got %q, %v", line, err)
		}
		granted := time.Now()
		for i := range 6 {
			line, err := lines.ReadString('\n')
			if want := time.Duration(i+1) * 10 * time.Second; line != "\n" || err != nil || time.Since(granted) != want {
				t.Fatalf("line %d is %q, %v, after %v, want an empty one after %v", i, line, err, time.Since(granted), want)
			}
		}
		b.nodes.cut(true)
		line := "\n"
		for line == "\n" && err == nil {
			line, err = lines.ReadString('\n')
		}
		var last struct{ Lost string }
		if err != nil || json.Unmarshal([]byte(line), &last) != nil || last.Lost == "" {
			t.Errorf("the last line is %q, %v", line, err)
		}
		if rest, err := io.ReadAll(lines); err != nil || len(rest) != 0 {
			t.Errorf("after the loss: %q, %v", rest, err)
		}
		if took := time.Since(granted) - time.Minute; took > 31*time.Second {
			t.Errorf("the loss was reported %v after the nodes went away", took)
		}
		b.nodes.cut(false)
	})
}

// TestServer_SpeaksHTTP2OnLoopback: a client may speak plaintext HTTP/2 on the loopback, for calls and for the gateway's own paths.
func TestServer_SpeaksHTTP2OnLoopback(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	base := "http://" + f.listen()
	for path, body := range map[string]string{
		"/openai/v1/chat/completions": `{"model":"gpt-5","messages":[]}`, "/take?quota=openai/gpt-5/requests": "",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.ProtoMajor != 2 || response.StatusCode != http.StatusOK || body != "" && string(data) != chatAnswer {
			t.Errorf("%s: %s %d %s, %v", path, response.Proto, response.StatusCode, data, err)
		}
	}
}

// serveOn serves the gateway with its own server in the bubble, from now on for b's clients. Cancel ends it, and ended receives its error.
func (b *bubble) serveOn(listener *pipes) (cancel func(), ended chan error) {
	ctx, cancel := context.WithCancel(b.t.Context())
	ended = make(chan error, 1)
	done := make(chan struct{})
	server := b.gateway.ServerOn(listener)
	b.clients = listener
	go func() { ended <- server.Serve(ctx); close(done) }()
	b.t.Cleanup(func() { cancel(); <-done })
	return cancel, ended
}

// ending is how and when a call ended.
type ending struct {
	status int
	err    error
	after  time.Duration
}

// asked makes a call. Its end is timed from the value of since at that time.
func (b *bubble) asked(model string, since *time.Time) chan ending {
	b.t.Helper()
	out := make(chan ending, 1)
	connection := b.send(http.MethodPost, "/openai/v1/responses", `{"model":"`+model+`","input":"x"}`)
	go func() {
		defer func() { _ = connection.Close() }()
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			out <- ending{err: err, after: time.Since(*since)}
			return
		}
		_, err = io.Copy(io.Discard, response.Body)
		out <- ending{response.StatusCode, err, time.Since(*since)}
	}()
	return out
}

// TestServe_DrainsWithinItsBound: when the server ends, calls in flight finish within limits.drain, later ones are aborted, and waiting
// ones are refused. Meanwhile the port stays open: new calls are refused in the provider's form, and /readyz says 503.
func TestServe_DrainsWithinItsBound(t *testing.T) {
	const drain = 20 * time.Second
	with := setting{
		dialects: []string{"openai"},
		quotas: []*quotav1.Quota{
			quotatest.Rate("openai/short/requests", 10, time.Minute), quotatest.Rate("openai/long/requests", 10, time.Minute),
			quotatest.Rate("openai/queued/requests", 1, 90*time.Second),
		},
		answer: func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			took := 10 * time.Second
			if strings.Contains(string(body), "long") {
				took = 10 * drain
			}
			select {
			case <-time.After(took):
			case <-r.Context().Done():
			}
			speak(200, chatAnswer)(w, r)
		},
		change: func(conf *config.Config) { conf.Limits.Drain = drain },
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		cancel, ended := b.serveOn(newPipes())
		began := time.Now()
		ask := func(model string) chan ending { return b.asked(model, &began) }
		if got := <-ask("queued"); got.status != 200 {
			t.Fatalf("got %+v", got)
		}
		short, long, queued := ask("short"), ask("long"), ask("queued")
		b.until("a call waits, and two are in flight", time.Second, func() bool {
			return b.cluster.Quota("openai/queued/requests").Waiting == 1 && len(b.provider.seen()) == 3
		})
		began = time.Now()
		cancel()
		if got := <-queued; got.status != http.StatusServiceUnavailable || got.after > time.Second {
			t.Errorf("the waiting call: %+v", got)
		}
		refusedWhileStopping(t, b)
		if got := <-short; got.status != 200 || got.err != nil || got.after > drain {
			t.Errorf("the short call: %+v", got)
		}
		refusedWhileStopping(t, b)
		if got := <-long; got.err == nil || got.after < drain || got.after > drain+time.Second {
			t.Errorf("the long call: %+v", got)
		}
		if err := <-ended; err != nil || time.Since(began) > drain+time.Second {
			t.Errorf("the server ended with %v after %v", err, time.Since(began))
		}
		if _, err := b.clients.dial(t.Context(), "tcp", "gateway"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a connection after the end: %v", err)
		}
		b.consumed("openai/short/requests", 1)
		b.consumed("openai/long/requests", 1)
	})
}

// refusedWhileStopping checks the answers on new connections to a stopping gateway. Each closes its connection, since the next one may
// reach another gateway.
func refusedWhileStopping(t *testing.T, b *bubble) {
	t.Helper()
	if got := b.do(http.MethodGet, "/readyz", ""); got.status != http.StatusServiceUnavailable || got.body != "stopping\n" {
		t.Errorf("/readyz: %+v", got)
	}
	connection := b.send(http.MethodPost, "/openai/v1/responses", `{"model":"short","input":"x"}`)
	defer func() { _ = connection.Close() }()
	got, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(got.Body)
	if err != nil || got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Retry-After") != "1" || !got.Close ||
		!strings.Contains(got.Header.Get("X-Quotad-Refusal"), "STOPPING") || !strings.Contains(string(body), `"type":"server_error"`) {
		t.Errorf("a new call: %+v, %s, %v", got, body, err)
	}
}

// TestAnswer_MustBeAcceptedWithinAMinute: a client that takes no byte of its answer for 60 s is cut off, and its call is settled like
// that of a client that left. A client that reads slowly is not.
func TestAnswer_MustBeAcceptedWithinAMinute(t *testing.T) {
	const minute = time.Minute
	var ended chan time.Time // created in the bubble
	input := quotatest.Rate("anthropic/claude-opus-4/input-tokens", 100_000, time.Hour)
	input.Settle = quotav1.SettleMode_SETTLE_MODE_ACTUAL
	quotas := []*quotav1.Quota{quotatest.Slots("anthropic/claude-opus-4/streams", 1), input}
	with := setting{dialects: []string{"anthropic"}, quotas: quotas, answer: func(w http.ResponseWriter, r *http.Request) {
		events(nil, messageEvents[:2]...)(w, r)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, messageEvents[2])
			_ = http.NewResponseController(w).Flush()
		}
		ended <- time.Now()
	}}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ended = make(chan time.Time, 1)
		connection := b.send(http.MethodPost, "/anthropic/v1/messages", messageBody)
		defer func() { _ = connection.Close() }()
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		for range 3 {
			if _, err := io.CopyN(io.Discard, response.Body, 64<<10); err != nil {
				t.Fatal(err)
			}
			b.after(minute - 5*time.Second)
		}
		stops := time.Now().Add(5*time.Second - minute)
		if took := (<-ended).Sub(stops); took < minute || took > minute+time.Second {
			t.Errorf("the provider saw the end after %v", took)
		}
		b.until("the slot is free", time.Second, func() bool { return b.cluster.Available("anthropic/claude-opus-4/streams") == 1 })
		b.consumed("anthropic/claude-opus-4/input-tokens", 25)
		b.compare(map[string]float64{`quotad_gateway_disconnects_total{upstream="anthropic"}`: 1})
		if !strings.Contains(b.log.String(), "end=gone") {
			t.Errorf("the log says %s", b.log.String())
		}
	})
}

// TestHead_IsBounded: a header above 64 KiB gets 431, and one that does not arrive within 10 s ends its connection.
func TestHead_IsBounded(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/m/requests", 10, time.Minute)},
		answer: speak(200, `{}`),
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		b.serveOn(newPipes())
		for size, want := range map[int]int{60 << 10: 200, 72 << 10: 431} {
			connection, err := b.clients.dial(t.Context(), "tcp", "gateway")
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = fmt.Fprintf(connection, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: %s\r\n\r\n", strings.Repeat("x", size))
			}()
			response, err := http.ReadResponse(bufio.NewReader(connection), nil)
			if err != nil || response.StatusCode != want {
				t.Errorf("a header of %d bytes: %v, %v", size, response, err)
			}
			_ = connection.Close()
		}
		connection, err := b.clients.dial(t.Context(), "tcp", "gateway")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_ = connection.SetReadDeadline(began.Add(time.Minute))
		go func() { _, _ = io.WriteString(connection, "GET /livez HTTP/1.1\r\nHost: ") }()
		_, _ = io.Copy(io.Discard, connection)
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("the connection ended after %v", took)
		}
	})
}
