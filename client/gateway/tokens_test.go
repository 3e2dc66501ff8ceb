package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/identity"
	"github.com/quotad/quotad/rpc"
)

func TestTokens_WrongOnesAreThrottledAndKeepNoRightOneOut(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Tokens = "tokens.yaml"
	tokens := someTokens{"qtd_red_x": {ID: "red", Pattern: "red*", MaxClass: config.Standard}}
	f := startGateway(t, c, p, conf, gateway.Options{Tokens: tokens})
	for _, path := range []string{forms["openai"].path, "/status"} {
		ask := func(token string) int {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"model":"gpt-5","input":"x"}`))
			request.Host, request.RemoteAddr = "localhost", "192.0.2.1:1" // not loopback, where the status needs no token
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("X-Quotad-Token", token)
			answer := httptest.NewRecorder()
			f.gateway.Handler().ServeHTTP(answer, request)
			return answer.Code
		}
		eventually(t, "wrong tokens are throttled at "+path, func() bool {
			throttled := false
			for range 20 {
				throttled = ask("qtd_red_wrong") == http.StatusTooManyRequests || throttled
			}
			return throttled
		})
		if status := ask("qtd_red_x"); status != http.StatusOK {
			t.Errorf("%s: a right token got %d", path, status)
		}
	}
}

// TestTokens_AllowTheirVerbsAlone: a token for reading only makes no call, and one for calls only sees no status.
func TestTokens_AllowTheirVerbsAlone(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), slots("t/slots", 10))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": injecting(t, p)})
	conf.Tokens = "tokens.yaml"
	tokens := someTokens{}
	for _, verb := range []identity.Verb{identity.Use, identity.Report, identity.Read, "admin-quota"} {
		right := identity.Right{ID: string(verb), Pattern: "*", MaxClass: config.Standard, Verbs: []identity.Verb{verb}}
		tokens["qtd_"+string(verb)+"_x"] = right
	}
	f := startGateway(t, c, p, conf, gateway.Options{Tokens: tokens})
	calls := 0
	for _, ask := range []struct {
		method, path, body string
		need               identity.Verb
		allowed            int
	}{
		{http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, identity.Use, 200},
		{http.MethodGet, "/openai/v1/models", "", identity.Use, 200},
		{http.MethodPost, "/take?quota=openai/gpt-5/requests", "", identity.Use, 200},
		{http.MethodPost, "/take/settle", `{"id":"none"}`, identity.Use, 404},
		{http.MethodPost, "/slots?quota=t/none&wait=0", "", identity.Use, 404},
		{http.MethodPost, "/report?quota=openai/gpt-5/requests", `{"status":200}`, identity.Report, 200},
		{http.MethodGet, "/status", "", identity.Read, 200},
	} {
		for secret, right := range tokens {
			request := httptest.NewRequestWithContext(t.Context(), ask.method, ask.path, strings.NewReader(ask.body))
			request.Host, request.RemoteAddr = "localhost", "192.0.2.1:1"
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Authorization", "Bearer "+secret)
			answer := httptest.NewRecorder()
			f.gateway.Handler().ServeHTTP(answer, request)
			want := http.StatusForbidden
			if right.May(ask.need) {
				want = ask.allowed
				if strings.HasPrefix(ask.path, "/openai/") {
					calls++
				}
			}
			if answer.Code != want || want == http.StatusForbidden && !strings.Contains(answer.Body.String(), "verb") {
				t.Errorf("%s with a token for %s: %d %s", ask.path, right.ID, answer.Code, answer.Body)
			}
		}
	}
	if n := len(p.seen()); n != calls {
		t.Errorf("the provider saw %d calls, want %d", n, calls)
	}
}

// TestCluster_TokenOfTheMachineIsEnough: a cluster token for the holders of this machine serves every caller, also one without a name,
// and takes.
func TestCluster_TokenOfTheMachineIsEnough(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100), slots("t/slots", 2))
	c.stop()
	secretText, entry, err := rpc.NewToken("gw-node7", "*@node-7", "critical", []rpc.Verb{rpc.VerbUse, rpc.VerbReport, rpc.VerbRead})
	if err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("tokens:\n- {id: gw-node7, sha256: %s, holder: %q, max_class: critical, verbs: [use, report, read]}\n",
		entry.SHA256, entry.Holder)
	if c.tokens, err = rpc.LoadTokens(secret(t, "tokens.yaml", file)); err != nil {
		t.Fatal(err)
	}
	c.start()
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Cluster.Token = &config.Source{File: secret(t, "token", secretText)}
	f := startGateway(t, c, p, conf, gateway.Options{})
	for what, headers := range map[string][]string{
		"nothing": nil, "a key": {"Authorization", "Bearer sk-made-up"}, "a name": {"X-Quotad-Holder", "picard"},
	} {
		if got := f.do(http.MethodPost, "/openai/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, headers...); got.status != 200 {
			t.Errorf("a caller that shows %s: %d %s", what, got.status, got.body)
		}
	}
	for _, more := range []string{"", "&holder=picard", "&settle=1"} {
		if got := f.do(http.MethodPost, "/take?quota=openai/gpt-5/requests"+more, ""); got.status != 200 {
			t.Errorf("a take%s: %d %s", more, got.status, got.body)
		}
	}
	if got := f.do(http.MethodPost, "/report?quota=openai/gpt-5/requests", `{"status":200}`); got.status != 200 {
		t.Errorf("a report: %d %s", got.status, got.body)
	}
	got := f.do(http.MethodPost, "/quota.v1.QuotaService/Reserve", `{"holder":"x@node-7","items":[{"quota":"t/slots"}]}`)
	if got.status != 200 || !strings.Contains(got.body, `"lease"`) {
		t.Errorf("the API: %d %s", got.status, got.body)
	}
}
