package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// TestTransport_ErrorsAreNoLimits: an error that names no limit closes no quota, whatever its status, and also within a stream. A refused
// call used no tokens.
func TestTransport_ErrorsAreNoLimits(t *testing.T) {
	const invalid = `{"error":{"type":"invalid_request_error","code":null,"message":"no"}}`
	stream := func(event string) func(*http.Request) *http.Response {
		return func(*http.Request) *http.Response {
			return respond(200, http.Header{"Content-Type": {"text/event-stream"}}, event)
		}
	}
	status := func(code int, body string) func(*http.Request) *http.Response {
		return func(*http.Request) *http.Response {
			return respond(code, http.Header{"Content-Type": {"application/json"}}, body)
		}
	}
	for name, c := range map[string]struct {
		answer func(*http.Request) *http.Response
		unused bool
	}{
		"of the provider, late": {stream("data: {\"type\":\"response.failed\",\"response\":{\"error\":" +
			"{\"code\":\"server_error\",\"message\":\"no\"}}}\n\n"), false},
		"bad request":              {status(400, invalid), true},
		"wrong key":                {status(401, `{"error":{"type":"authentication_error","message":"no"}}`), true},
		"unknown model":            {status(404, invalid), true},
		"without a body":           {status(403, ""), true},
		"of the provider":          {status(500, `{"error":{"type":"server_error","message":"no"}}`), false},
		"of the call, in a stream": {stream("data: {\"type\":\"error\",\"code\":\"invalid_prompt\",\"message\":\"no\"}\n\n"), false},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, client *Client) {
				plenty(cluster, 100_000, "openai/m/requests", "openai/m/tokens")
				base, _ := answers(c.answer)
				post(t, NewTransport(client, base, OpenAI()), responses, `{"model":"m","input":"x","max_output_tokens":500}`)
				if reports := cluster.Reports(); len(reports) > 0 {
					t.Errorf("reported %v", reports)
				}
				if left := cluster.Available("openai/m/tokens"); (left == 100_000) != c.unused || cluster.Available("openai/m/requests") != 99_999 {
					t.Errorf("%d tokens and %d requests are left", left, cluster.Available("openai/m/requests"))
				}
			})
		})
	}
}

// TestTransport_SettlesStreamsClosedAtTheirEnd: a client may close a stream once it announced its end, without reading on.
func TestTransport_SettlesStreamsClosedAtTheirEnd(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		plenty(cluster, 100_000, "openai/m/requests", "openai/m/tokens")
		const events = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}}\n\ndata: [DONE]\n\n"
		more, end := io.Pipe()
		defer func() { _ = end.Close() }()
		base, _ := answers(func(*http.Request) *http.Response {
			response := respond(200, http.Header{"Content-Type": {"text/event-stream"}}, "")
			response.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(strings.NewReader(events), more), more}
			return response
		})
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.openai.com/v1/chat/completions",
			strings.NewReader(`{"model":"m","stream":true,"max_tokens":500,"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		response, err := NewTransport(c, base, OpenAI()).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(response.Body, make([]byte, len(events))); err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		synctest.Wait()
		if left := cluster.Available("openai/m/tokens"); left != 100_000-11 {
			t.Errorf("%d tokens are left, want what the stream stated taken", left)
		}
	})
}

// TestTransport_WaitsBrieflyForAnErrorsBody: a provider may hold the body of an error open. The caller gets all of it, when it comes.
func TestTransport_WaitsBrieflyForAnErrorsBody(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		slow, write := io.Pipe()
		base, _ := answers(func(*http.Request) *http.Response {
			response := respond(429, http.Header{"Content-Type": {"application/json"}, "Retry-After": {"30"}}, "")
			response.Body = slow
			return response
		})
		go func() {
			_, _ = fmt.Fprint(write, `{"error":`)
			<-time.After(time.Minute)
			_, _ = fmt.Fprint(write, `{}}`)
			_ = write.Close()
		}()
		began := time.Now()
		response, err := NewTransport(c, base, Match(core), Retries(0)).RoundTrip(get(t))
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("the answer came after %v", waited)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || string(body) != `{"error":{}}` {
			t.Errorf("read %q, %v", body, err)
		}
		_ = response.Body.Close()
	})
}

// get returns a request to the provider.
func get(t *testing.T) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://provider.example/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// TestTransport_ReadsNoStreamOfOthers: the body of a request that draws on no quota may be a stream whose writer waits for the answer.
func TestTransport_ReadsNoStreamOfOthers(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		body, writer := io.Pipe()
		answered := make(chan struct{})
		go func() {
			<-answered
			_, _ = fmt.Fprint(writer, "after the answer")
			_ = writer.Close()
		}()
		base := roundTrip(func(r *http.Request) (*http.Response, error) {
			close(answered)
			sent, _ := io.ReadAll(r.Body)
			return respond(200, nil, string(sent)), nil
		})
		none := func(*http.Request) Call { return Call{} }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://other.example/", body)
		if err != nil {
			t.Fatal(err)
		}
		response, err := NewTransport(c, base, GitHub(), Match(none)).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(response.Body); string(got) != "after the answer" {
			t.Errorf("sent %q", got)
		}
		_ = response.Body.Close()
	})
}
