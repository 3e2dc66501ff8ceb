package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/cmd/quotad/internal/cli"
)

// advisedCommand matches a command in the message of a refusal. unfilled matches a placeholder in it that the user has to
// fill in.
var (
	advisedCommand = regexp.MustCompile(`quotad quota apply [^;"\\]+`)
	unfilled       = regexp.MustCompile(`=[A-Z]+\b`)
)

// TestAdvice_CommandsOfTheGatewayWorkAsPrinted: the gateway refuses a call because of its quotas. The user runs the command
// that the refusal prints, with figures for the placeholders in capitals, and the same call passes.
func TestAdvice_CommandsOfTheGatewayWorkAsPrinted(t *testing.T) {
	cluster := quotatest.New(t)
	cluster.Clock().Run()
	server := strings.TrimPrefix(cluster.URL(), "http://")
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{}`)
	}))
	defer provider.Close()
	secret := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(secret, []byte("made-up"), 0o600); err != nil {
		t.Fatal(err)
	}
	upstreams := map[string]config.Upstream{}
	for name, dialect := range map[string]string{
		"openai": "openai", "chatgpt": "codex", "anthropic": "anthropic", "corp": "openai", "azure": "azure", "azure-eu": "azure",
		"bedrock": "bedrock", "gemini": "gemini", "github": "github", "ghe": "github", "pooled": "openai", "any": "openai",
	} {
		upstreams[name] = config.Upstream{Dialect: dialect, Base: provider.URL, Plain: true}
	}
	pooled := upstreams["pooled"]
	pooled.Auth, pooled.Keys = "inject", []config.Key{{Name: "a", From: config.Source{File: secret}, Quotas: "keys/a"}}
	upstreams["pooled"] = pooled
	conf := config.Config{
		Machine: "m", Cluster: config.Cluster{Nodes: []string{server}}, Upstreams: upstreams, Trust: true,
		Listen: config.Listen{TCP: []string{"127.0.0.1:0"}},
	}
	g, err := gateway.New(conf, gateway.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	ask := func(path, body string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
		r.Host, r.RemoteAddr = "localhost", "127.0.0.1:1"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		g.Handler().ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	waitUntil(t, "the quotas are known", func() bool {
		status, _ := ask("/openai/v1/responses", `{"model":"none"}`)
		return status == http.StatusForbidden
	})
	const chat = `{"model":"gpt-6-2027-01-01","messages":[]}`
	for path, body := range map[string]string{
		"/openai/v1/chat/completions": chat, "/chatgpt/codex/responses": `{"model":"gpt-6-codex","input":"x"}`,
		"/anthropic/v1/messages": `{"model":"claude-opus-9-20290101","messages":[]}`, "/corp/v1/chat/completions": chat,
		"/azure/openai/deployments/Prod-1/chat/completions": `{"messages":[]}`, "/azure-eu/openai/deployments/prod/responses": `{"input":"x"}`,
		"/bedrock/model/us.anthropic.claude-sonnet-9-20290101-v1:0/converse": `{"messages":[]}`,
		"/gemini/v1beta/models/gemini-9:generateContent":                     `{"contents":[]}`, "/gemini/v1beta/openai/chat/completions": chat,
		"/github/user": "{}", "/ghe/search/code": "{}", "/pooled/v1/responses": `{"model":"gpt-6","input":"x"}`,
		"/any/v1/responses": `{"input":"no model at all"}`, "/corp/v1/responses": `{"model":"x$(reboot); --force","input":"x"}`,
	} {
		t.Run(path, func(t *testing.T) {
			status, said := ask(path, body)
			advised := strings.TrimSpace(advisedCommand.FindString(said))
			if status != http.StatusForbidden || advised == "" || strings.ContainsAny(advised, "$();'*") {
				t.Fatalf("got %d %s", status, said)
			}
			if code, out := runAdvised(t, server, unfilled.ReplaceAllString(advised, "=600")); code != cli.ExitOK {
				t.Fatalf("%s: exit code %d: %s", advised, code, out)
			}
			waitUntil(t, "the call passes", func() bool { status, _ := ask(path, body); return status == http.StatusOK })
		})
	}
	// Commands without placeholders.
	for _, command := range []string{"quotad quota apply --help", "quotad preset show prices", "quotad token new --holder *@m"} {
		if code, out := runAdvised(t, server, command); code != cli.ExitOK {
			t.Errorf("%s: exit code %d: %s", command, code, out)
		}
	}
}

// runAdvised runs a command line whose words contain no spaces.
func runAdvised(t *testing.T, server, command string) (cli.ExitCode, string) {
	t.Helper()
	var out bytes.Buffer
	app := newApp(strings.NewReader(""), &out, &out)
	app.Environ = []string{"QUOTAD_SERVER=" + server} // and no settings of other tests
	return app.Run(t.Context(), strings.Fields(command)[1:]), out.String()
}

func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}
