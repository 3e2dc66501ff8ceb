package gateway_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// TestA30_WhereKeysAreInjectedNothingSecretIsShown: the log, the metrics, the status and the gateway's own answers contain neither keys
// and tokens of the gateway nor content of callers, however a call ends.
func TestA30_WhereKeysAreInjectedNothingSecretIsShown(t *testing.T) {
	t.Parallel() // mostly waiting
	secrets := []string{"sk-injected", "sk-changed", "qtd_red_right", "qtd_red_wrong", "qtd_gw_cluster", "sk-caller", "words of the prompt"}
	c := startCluster(t, rate("openai/gpt-5/requests", 100), ratePer("openai/spent/requests", 1, time.Hour))
	var status atomic.Int64
	status.Store(200)
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) { speak(int(status.Load()), chatAnswer)(w, r) })
	path := secret(t, "key", "sk-injected")
	u := upstreamOf(p, "openai")
	u.Auth, u.Keys = "inject", []config.Key{{Name: "main", From: config.Source{File: path}}}
	conf := configOf(c, map[string]config.Upstream{"openai": u})
	conf.Tokens, conf.Cluster.Token = "tokens.yaml", &config.Source{File: secret(t, "token", "qtd_gw_cluster")}
	tokens := someTokens{"qtd_red_right": {ID: "red", Pattern: "red*", MaxClass: config.Critical}}
	f := startGateway(t, c, p, conf, gateway.Options{Tokens: tokens})
	var shown strings.Builder
	ask := func(want int, token, model string, headers ...string) {
		t.Helper()
		got := f.do(http.MethodPost, forms["openai"].path+"?key=sk-caller&access_token=sk-caller",
			`{"model":"`+model+`","input":"words of the prompt"}`, append([]string{
				"X-Quotad-Token", token, "Authorization", "Bearer sk-caller", "X-Quotad-Wait", "0", "X-Quotad-Explain", "1",
			}, headers...)...)
		if got.status != want {
			t.Errorf("%s of %s: %d %s, want %d", model, token, got.status, got.body, want)
		}
		fmt.Fprintln(&shown, got.header, got.body)
	}
	ask(200, "qtd_red_right", "gpt-5")
	ask(401, "qtd_red_wrong", "gpt-5")
	ask(403, "qtd_red_right", "unknown")
	ask(403, "qtd_red_right", "gpt-5", "X-Quotad-Holder", "blue")
	ask(415, "qtd_red_right", "gpt-5", "Content-Encoding", "zstd")
	ask(200, "qtd_red_right", "spent")
	ask(429, "qtd_red_right", "spent")
	status.Store(401) // the gateway rereads the key
	if err := os.WriteFile(path, []byte("sk-changed\nsecond line"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask(401, "qtd_red_right", "gpt-5")
	f.logs(t, "keeps its old value", 1)
	status.Store(500)
	ask(500, "qtd_red_right", "gpt-5")
	p.Close()
	ask(502, "qtd_red_right", "gpt-5")
	c.consumed("openai/gpt-5/requests", 3) // and nothing is left to settle
	c.stop()
	ask(503, "qtd_red_right", "gpt-5")
	f.logs(t, "msg=call", 11)
	for _, path := range []string{"/metrics", "/status", "/status?format=json", "/nowhere"} {
		got := f.do(http.MethodGet, path, "", "X-Quotad-Token", "qtd_red_right")
		fmt.Fprintln(&shown, got.header, got.body)
	}
	all := shown.String() + f.log.String()
	for _, secret := range secrets {
		if at := strings.Index(all, secret); at >= 0 {
			t.Errorf("%s is shown: ...%s...", secret, all[max(0, at-100):min(len(all), at+100)])
		}
	}
	for _, sent := range p.seen() {
		if got := sent.header.Get("Authorization"); got != "Bearer sk-injected" || strings.Contains(sent.uri, "sk-caller") {
			t.Errorf("the provider saw %q at %s", got, sent.uri)
		}
	}
	c.start() // on close, a gateway returns unspent amounts
}
