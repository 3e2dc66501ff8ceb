package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
)

func TestStatus_ShowsUpstreamsQueueSessionsModelsAndRefusals(t *testing.T) {
	f := messages(t, events(nil, messageEvents...), nil)
	f.do(http.MethodPost, "/anthropic/v1/messages", messageBody, "User-Agent", "claude-cli/2.1.0 (external, cli)",
		"X-Claude-Code-Session-Id", "session-a")
	f.logs(t, "holder=claude-1@node-7", 1)
	f.do(http.MethodPost, "/anthropic/v1/messages", `{"model":"<b>none</b>","messages":[]}`)
	// No slot is free, so that this call waits while the page is read.
	held := f.open(t.Context(), "/slots?quota=anthropic/claude-opus-4/streams&amount=20", "")
	waits := make(chan answer, 1)
	go func() {
		waits <- f.do(http.MethodPost, "/anthropic/v1/messages", messageBody, "X-Quotad-Holder", "data", "X-Quotad-Class", "background")
	}()
	var status gateway.Status
	eventually(t, "the call waits", func() bool {
		status = gateway.Status{}
		err := json.Unmarshal([]byte(f.do(http.MethodGet, "/status?format=json", "").body), &status)
		return err == nil && len(status.Queue) == 1
	})
	page := f.do(http.MethodGet, "/status", "")
	_ = held.Body.Close()
	if got := <-waits; got.status != http.StatusOK {
		t.Errorf("the call that waited got %d %s", got.status, got.body)
	}
	if w := status.Queue[0]; w.Holder != "data@node-7" || w.Class != "background" || w.Left <= 0 || status.Classes[2].Waiting != 1 {
		t.Errorf("the queue is %+v, %+v", w, status.Classes)
	}
	u := status.Upstreams[0]
	if len(u.Models) != 1 || len(u.Models[0].Parts) != 4 || u.Passing || len(u.Closed) != 0 {
		t.Fatalf("the upstream is %+v", u)
	}
	if l := u.Models[0].Learnt; l == nil || l.Calls != 1 || l.Output != 150 || l.Input != 25 {
		t.Errorf("learnt is %+v", l)
	}
	if len(status.Seats) != 1 || len(status.Refusals) != 1 {
		t.Errorf("seats %+v, refusals %+v", status.Seats, status.Refusals)
	}
	for _, text := range []string{
		"anthropic/claude-opus-4", "output-tokens", "100\u00a0000", "data@node-7", "background 1", "session-a",
		"&lt;b&gt;none&lt;/b&gt;", "ready",
		`content="width=device-width`, "prefers-color-scheme: dark",
	} {
		if !strings.Contains(page.body, text) {
			t.Errorf("the page has no %q", text)
		}
	}
	if strings.Contains(page.body, "<script") || strings.Contains(page.body, "<b>none") ||
		!strings.Contains(page.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the page could load or run something: %v", page.header)
	}
}
