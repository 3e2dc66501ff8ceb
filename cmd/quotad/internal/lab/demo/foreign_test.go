package demo

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/providertest"
)

func TestReadHead_SkipsInterimAnswers(t *testing.T) {
	const head = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 429 Too Many Requests\r\nretry-after-ms: 40\r\n\r\n"
	got, err := readHead("7", strings.NewReader(head))
	if err != nil || got.ID != "7" || got.Status != 429 || got.Header.Get("Retry-After-Ms") != "40" {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, wrong := range []string{"", "HTTP/1.1\r\n\r\n", "HTTP/1.1 ok\r\n\r\n"} {
		if got, err := readHead("7", strings.NewReader(wrong)); err == nil {
			t.Errorf("%q gives %+v", wrong, got)
		}
	}
}

// TestForeignCaller_ComesBackAfterARefusal: a call in another language reaches the gateway unchanged. It is repeated after
// a refusal, and reports when it was sent.
func TestForeignCaller_ComesBackAfterARefusal(t *testing.T) {
	for _, by := range []language{python, curl, node} {
		t.Run(string(by), func(t *testing.T) {
			packages := os.Getenv("QUOTAD_AGENTS")
			if !by.found(packages) {
				t.Skip("this machine has no " + string(by) + ", or not its packages (QUOTAD_AGENTS)")
			}
			if by == node {
				if err := writeNodeAgent(packages); err != nil {
					t.Fatal(err)
				}
			}
			var calls atomic.Int64
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/openai/v1/chat/completions" || r.Header.Get("X-Quotad-Holder") != "digest" ||
					r.Header.Get("Authorization") != "Bearer k" || r.Header.Get(providertest.CallHeader) != "digest-1" ||
					r.ContentLength != int64(len(`{"x":"ä"}`)) {
					t.Errorf("got %s %v, %d bytes", r.URL, r.Header, r.ContentLength)
				}
				switch calls.Add(1) {
				case 1:
					w.Header().Set("X-Quotad-Refusal", `CLUSTER_AWAY; quota=""`)
					w.WriteHeader(http.StatusServiceUnavailable)
				case 2:
					w.Header().Set("X-Quotad-Refusal", `EXHAUSTED; quota="q"`)
					w.Header().Set("Retry-After-Ms", "5")
					w.WriteHeader(http.StatusTooManyRequests)
				default:
					w.Header().Set("X-Quotad", "holder=digest;wait=1234ms;retries=0")
				}
			}))
			defer gateway.Close()
			caller, err := newForeignCaller(newProvider("http://unused", "k", "digest"), by, gateway.URL, packages)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			ctx, sent := withSending(context.Background())
			status, err := caller.do(ctx, wish{api: openai, method: "POST", path: "/v1/chat/completions", body: `{"x":"ä"}`, id: "digest-1"})
			if err != nil || status != 200 || calls.Load() != 3 {
				t.Errorf("got %d, %v after %d calls", status, err, calls.Load())
			}
			if at, times := sent.last(); times != 1 || at.Before(began.Add(1234*time.Millisecond)) {
				t.Errorf("sent %d times, %v after the wish", times, at.Sub(began))
			}
			if err := caller.close(); err != nil {
				t.Error(err)
			}
		})
	}
}
