package cli

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
)

// TestGatewayStatus_PrintsWhatItsHelpPromises: it prints upstreams, queue, batches, seats, keys and last refusals.
func TestGatewayStatus_PrintsWhatItsHelpPromises(t *testing.T) {
	shown := gateway.Status{
		Machine: "node-7", Loaded: true, Away: true, InFlight: 3, Waiting: 1,
		Upstreams: []gateway.UpstreamStatus{
			{
				Name: "github", Quotas: []gateway.PartStatus{{Part: "core", Quota: "github/core", Usable: 5000, Available: 12}},
				Batch: true, Batches: []gateway.BatchStatus{
					{Class: "critical", Quota: "github/core", Left: 7, Batches: 2, Consumed: 31, Spent: 23, Returned: 1},
				},
			},
			{
				Name:   "openai",
				Keys:   []gateway.KeyStatus{{Name: "prod", Quotas: "openai-prod", Age: gateway.Length(90 * time.Second), Free: 42}},
				Models: []gateway.ModelStatus{{Name: "openai-prod/m", Parts: []gateway.PartStatus{{Quota: "openai-prod/m/requests", Open: true}}}},
			},
		},
		Queue: []gateway.Waiter{{
			Upstream: "openai", Model: "m", Holder: "picard@node-7", Class: "background", Waited: gateway.Length(2 * time.Second),
			Left: gateway.Length(time.Minute),
		}},
		Seats:    []gateway.SeatStatus{{Tool: "claude", Session: "session-a", Number: 2, Silent: gateway.Length(5 * time.Second)}},
		Refusals: []gateway.PastRefusal{{Holder: "data@node-7", Quota: "openai/m/tokens", Status: 429, Message: "is EXHAUSTED"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := output.Value(w, shown); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var out strings.Builder
	app := &App{Out: &out, Err: &out}
	if code := app.Run(t.Context(), []string{"gateway", "status", "--url", server.URL}); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, out.String())
	}
	for _, words := range [][]string{
		{"gateway on node-7", "no node of the cluster answered the last call", "3 calls in flight", "1 waiting"},
		{"github", "github/core", "12", "5000", "cooldown"},
		{"openai", "openai-prod/m/requests", "open"},
		{"github", "github/core", "critical", "7", "31", "23", "1"},
		{"openai", "prod", "openai-prod", "1m30s", "42 %"},
		{"background", "picard@node-7", "openai", "m", "2s", "1m0s"},
		{"claude-2", "session-a", "5s"},
		{"429", "data@node-7", "openai/m/tokens", "is EXHAUSTED"},
	} {
		found := false
		for line := range strings.Lines(out.String()) {
			all := true
			for _, word := range words {
				all = all && strings.Contains(line, word)
			}
			found = found || all
		}
		if !found {
			t.Errorf("no line has %q in\n%s", words, out.String())
		}
	}
}

// TestGatewayStatus_ReachesSocketsTokensAndOwnCAs: it reaches a gateway without a port, and one beyond loopback.
func TestGatewayStatus_ReachesSocketsTokensAndOwnCAs(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && r.Header.Get("X-Quotad-Token") != "qtd_made-up" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if err := output.Value(w, gateway.Status{Machine: "node-7", Loaded: true}); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	socket, token, ca := filepath.Join(dir, "gateway.sock"), filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	local := httptest.NewUnstartedServer(handler)
	_ = local.Listener.Close()
	local.Listener = listener
	local.Start()
	defer local.Close()
	secure := httptest.NewTLSServer(handler)
	defer secure.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	for path, text := range map[string]string{token: "qtd_made-up\n", ca: string(certificate)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		code ExitCode
		args []string
	}{
		{ExitOK, []string{"--socket", socket}},
		{ExitOK, []string{"--url", secure.URL, "--token-file", token, "--ca-file", ca}},
		{ExitUnavailable, []string{"--url", secure.URL, "--ca-file", ca}},
		{ExitUnavailable, []string{"--url", secure.URL, "--token-file", token}},
		{ExitUsage, []string{"--url", secure.URL, "--socket", socket}},
	} {
		var out strings.Builder
		app := &App{Out: &out, Err: &out}
		if code := app.Run(t.Context(), append([]string{"gateway", "status"}, tt.args...)); code != tt.code ||
			code == ExitOK && !strings.Contains(out.String(), "gateway on node-7") {
			t.Errorf("%q: %d, want %d: %s", tt.args, code, tt.code, out.String())
		}
	}
}
