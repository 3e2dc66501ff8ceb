package gateway_test

import (
	"bufio"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestWait_SendsNothingBeforeTheAnswer: Node destroys a connection with an informational answer that it did not ask for, and Python's
// http.client takes one for the final answer.
func TestWait_SendsNothingBeforeTheAnswer(t *testing.T) {
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/m/requests", 1, time.Minute)},
		answer: speak(200, chatAnswer),
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		const path, body = "/openai/v1/responses", `{"model":"m","stream":true,"input":"x"}`
		if got := b.do(http.MethodPost, path, body); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		connection := b.send(http.MethodPost, path, body)
		defer func() { _ = connection.Close() }()
		_ = connection.SetReadDeadline(time.Now().Add(50 * time.Second))
		in := bufio.NewReader(connection)
		if _, err := in.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) || in.Buffered() != 0 {
			early, _ := in.Peek(in.Buffered())
			t.Fatalf("a waiting call got %q, %v", early, err)
		}
		_ = connection.SetReadDeadline(time.Time{})
		if response, err := http.ReadResponse(bufio.NewReader(connection), nil); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("got %v, %v", response, err)
		}
	})
}

// TestBody_AllTogetherAreBounded: a body beyond limits.memory is refused in the provider's form, until another call has ended.
func TestBody_AllTogetherAreBounded(t *testing.T) {
	const most = 64 << 10
	var release chan struct{} // created in the bubble
	with := setting{
		dialects: []string{"openai"}, quotas: []*quotav1.Quota{quotatest.Rate("openai/m/requests", 100, time.Minute)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			<-release
			speak(200, chatAnswer)(w, r)
		},
		change: func(conf *config.Config) { conf.Limits.Body, conf.Limits.Memory = most, most },
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		release = make(chan struct{})
		body := `{"model":"m","input":"` + strings.Repeat("x", most*2/3) + `"}`
		ask := func() answer {
			return b.do(http.MethodPost, "/openai/v1/responses", body, "Content-Type", "application/json")
		}
		first := make(chan answer, 1)
		go func() { first <- ask() }()
		b.until("a call is sent", time.Second, func() bool { return len(b.provider.seen()) == 1 })
		got := ask()
		if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "5" ||
			got.header.Get("X-Quotad-Refusal") != "BODIES_FULL" || !strings.Contains(got.body, `"type":"server_error"`) {
			t.Errorf("got %d %s, %v", got.status, got.body, got.header)
		}
		close(release)
		if got := <-first; got.status != http.StatusOK {
			t.Errorf("the first call: %d %s", got.status, got.body)
		}
		b.until("another call passes", time.Second, func() bool { return ask().status == http.StatusOK })
		b.consumed("openai/m/requests", int64(len(b.provider.seen())))
	})
}

// TestCatalog_IsReadSoonAfterAnUnknownQuota: it may just have been created or deleted.
func TestCatalog_IsReadSoonAfterAnUnknownQuota(t *testing.T) {
	with := setting{
		dialects: []string{"openai", "azure"}, answer: speak(200, chatAnswer),
		quotas: []*quotav1.Quota{quotatest.Rate("azure/m/requests", 10, time.Minute), quotatest.Rate("azure/@any/requests", 10, time.Minute)},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for upstream, change := range map[string]func(){
			"openai": func() {},
			"azure": func() {
				admin := quotav1connect.NewAdminServiceClient(b.cluster.HTTPClient(), "http://quotatest:7450")
				if _, err := admin.DeleteQuota(t.Context(), &quotav1.DeleteQuotaRequest{Name: "azure/m/requests"}); err != nil {
					t.Fatal(err)
				}
			},
		} {
			ask := func() answer { return b.do(http.MethodPost, "/"+upstream+"/v1/responses", `{"model":"m","input":"x"}`) }
			b.after(11 * time.Second) // the list has just been read
			change()
			if got := ask(); got.status != http.StatusForbidden || got.header.Get("X-Should-Retry") != "false" {
				t.Fatalf("%s: got %d %s, %v", upstream, got.status, got.body, got.header)
			}
			b.cluster.Apply(quotatest.Rate("openai/m/requests", 10, time.Minute))
			b.after(time.Second)
			if got := ask(); got.status != http.StatusOK {
				t.Errorf("%s, a second later: got %d %s", upstream, got.status, got.body)
			}
		}
		b.consumed("azure/@any/requests", 1)
	})
}
