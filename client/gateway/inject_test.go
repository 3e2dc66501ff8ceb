package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/identity"
)

// secret writes a key to a file that only its owner may read.
func secret(t *testing.T, name, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// someTokens are tokens by their secrets. By default they have the verbs of a new token.
type someTokens map[string]identity.Right

func (s someTokens) Find(secret string) (identity.Right, bool) {
	right, ok := s[secret]
	if right.Verbs == nil {
		right.Verbs = []identity.Verb{identity.Use, identity.Report, identity.Read}
	}
	return right, ok
}

func TestInject_SetsExactlyOneCredential(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, `{}`))
	upstreams := map[string]config.Upstream{}
	for name, form := range forms {
		u := upstreamOf(p, name)
		u.Auth, u.Keys = "inject", []config.Key{{Name: "main", From: config.Source{File: secret(t, name, "made-up-"+name)}}}
		upstreams[name] = u
		c.apply(rate(form.quota, 100))
	}
	conf := configOf(c, upstreams)
	conf.Tokens = "tokens.yaml"
	tokens := someTokens{"qtd_red_x": {ID: "red", Pattern: "red-*", MaxClass: config.Standard}}
	f := startGateway(t, c, p, conf, gateway.Options{Tokens: tokens})
	for name, form := range forms {
		method := http.MethodPost
		if form.body == "" {
			method = http.MethodGet
		}
		got := f.do(method, form.path+"?key=caller&access_token=caller", form.body, "X-Quotad-Token", "qtd_red_x", "Authorization",
			"Bearer caller", "X-Api-Key", "caller", "Api-Key", "caller", "X-Goog-Api-Key", "caller", "Cookie", "caller", "X-Quotad-Holder",
			"red-7")
		if got.status != 200 {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
		sent := p.seen()[len(p.seen())-1]
		all := sent.uri + fmt.Sprint(sent.header)
		if strings.Contains(all, "caller") || strings.Contains(all, "qtd_") || strings.Count(all, "made-up-"+name) != 1 {
			t.Errorf("%s: the provider saw %s", name, all)
		}
	}
	if got := f.do(http.MethodGet, "/github/user", ""); got.status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", got.status)
	}
	got := f.do(http.MethodGet, "/github/user", "", "X-Quotad-Token", "qtd_red_x", "X-Quotad-Holder", "blue-1")
	if got.status != http.StatusForbidden || !strings.Contains(got.body, "red-*") {
		t.Errorf("a foreign name: %d %s", got.status, got.body)
	}
	got = f.do(http.MethodGet, "/github/user", "", "Authorization", "Bearer qtd_red_x")
	if got.status != 200 {
		t.Errorf("a token as the key: %d %s", got.status, got.body)
	}
	f.logs(t, "holder=red-red", 1)
}

// TestFor_CallWithoutAClassIsStandard: keys and fallbacks for standard calls serve callers without a class.
func TestFor_CallWithoutAClassIsStandard(t *testing.T) {
	c := startCluster(t, rate("standard/gpt-5/requests", 100), rate("background/gpt-5/requests", 100), ratePer("standard/gone/requests", 1,
		time.Hour))
	p := startProvider(t, speak(200, chatAnswer))
	u := upstreamOf(p, "openai")
	u.Auth = "inject"
	for _, class := range []config.Class{config.Background, config.Standard} {
		u.Keys = append(u.Keys, config.Key{
			Name: class.String(), Quotas: class.String(), From: config.Source{File: secret(t, class.String(), class.String())},
			For: config.Selector{Class: class},
		})
	}
	conf := configOf(c, map[string]config.Upstream{"openai": u})
	conf.Trust = true
	conf.Models = []config.Model{{Match: "gone", Fallback: []string{"gpt-5"}, For: config.Selector{Class: config.Standard}}}
	f := startGateway(t, c, p, conf, gateway.Options{})
	for i, want := range []struct{ class, model, key, instead string }{
		{"", "gpt-5", "standard", ""},
		{"standard", "gpt-5", "standard", ""},
		{"background", "gpt-5", "background", ""},
		{"", "gone", "standard", ""},
		{"", "gone", "standard", "gone"},
		{"standard", "gone", "standard", "gone"},
	} {
		got := f.do(http.MethodPost, forms["openai"].path, `{"model":"`+want.model+`","input":"x"}`, "X-Quotad-Class", want.class)
		if got.status != http.StatusOK || got.header.Get("X-Quotad-Instead-Of") != want.instead {
			t.Fatalf("call %d: %d %s, instead of %q", i, got.status, got.body, got.header.Get("X-Quotad-Instead-Of"))
		}
		if sent := p.seen()[i].header.Get("Authorization"); sent != "Bearer "+want.key {
			t.Errorf("call %d had the key %q, want %s", i, sent, want.key)
		}
	}
	got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`, "X-Quotad-Class", "critical")
	if got.status != http.StatusForbidden {
		t.Errorf("a class without a key: %d %s", got.status, got.body)
	}
}

// TestA27_KeyFileIsSwappedUnderLoad: the gateway notices it while the provider still accepts both keys, so that no answer makes it
// reread the file. An empty file is no key.
func TestA27_KeyFileIsSwappedUnderLoad(t *testing.T) {
	t.Parallel() // mostly waiting
	var oldIsRevoked atomic.Bool
	path := secret(t, "key", "old")
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Authorization"); key != "Bearer new" && (key != "Bearer old" || oldIsRevoked.Load()) {
			speak(401, `{"error":{"message":"Incorrect API key"}}`)(w, r)
			return
		}
		speak(200, chatAnswer)(w, r)
	}, func(conf *config.Config) {
		u := conf.Upstreams["openai"]
		u.Auth, u.Keys = "inject", []config.Key{{Name: "prod", From: config.Source{File: path}}}
		conf.Upstreams["openai"], conf.Trust = u, true
	})
	f.cluster.apply(rate("openai/gpt-5/requests", 1_000_000), tokens("openai/gpt-5/tokens", 1_000_000_000))
	load, stop := context.WithCancel(t.Context())
	var calls atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for load.Err() == nil {
				if got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`); got.status != http.StatusOK {
					t.Errorf("got %d %s", got.status, got.body)
				}
				calls.Add(1)
			}
		})
	}
	defer clients.Wait()
	defer stop()
	used := func(key string) (n int) {
		for _, sent := range f.provider.seen() {
			if sent.header.Get("Authorization") == "Bearer "+key {
				n++
			}
		}
		return n
	}
	// more waits for the end of calls that begin after now.
	more := func() {
		least := calls.Load() + 20
		eventually(t, "further calls end", func() bool { return calls.Load() >= least })
	}
	more()
	if used("old") == 0 || used("new") != 0 {
		t.Fatalf("%d calls had the old key, %d the new one", used("old"), used("new"))
	}
	// A new file replaces the old one, as when Kubernetes swaps a link.
	if err := os.Rename(secret(t, "key", "new"), path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new key is used", func() bool { return used("new") > 0 })
	more() // no call that chose the old key is in flight any more
	oldIsRevoked.Store(true)
	more()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.logs(t, "keeps its old value", 1)
	more()
}

func TestA28_UnsafeConfigurationsDoNotStart(t *testing.T) {
	inject := config.Upstream{Auth: "inject", Keys: []config.Key{{Name: "a", From: config.Source{File: secret(t, "a", "x")}}}}
	readable := secret(t, "b", "x")
	if err := os.Chmod(readable, 0o604); err != nil {
		t.Fatal(err)
	}
	open := config.Upstream{Auth: "inject", Keys: []config.Key{{Name: "a", From: config.Source{File: readable}}}}
	for want, conf := range map[string]config.Config{
		"every process that reaches the port could use the keys": {Upstreams: map[string]config.Upstream{"openai": inject}},
		"0.0.0.0:7452 is not a loopback address: set listen.tls": {
			Upstreams: map[string]config.Upstream{"openai": {}}, Listen: config.Listen{TCP: []string{"0.0.0.0:7452"}},
		},
		"callers need tokens": {
			Upstreams: map[string]config.Upstream{"openai": {}}, Listen: config.Listen{TCP: []string{"0.0.0.0:7452"}, Insecure: true},
		},
		"other users can access": {Upstreams: map[string]config.Upstream{"openai": open}, Trust: true},
	} {
		conf.Cluster.Nodes, conf.Machine = []string{"127.0.0.1:1"}, "m"
		if g, err := gateway.New(conf, gateway.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
			if g != nil {
				_ = g.Close()
			}
		}
	}
}

func TestPool_TakesTheKeyWithRoomAndStaysWithIt(t *testing.T) {
	c := startCluster(t, rate("openai-a/gpt-5/requests", 100), rate("openai-b/gpt-5/requests", 100))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer a" {
			w.Header().Set("Retry-After", "3600")
			speak(429, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`)(w, r)
			return
		}
		speak(200, chatAnswer)(w, r)
	})
	conf := withTwoKeys(t, c, p)
	f := startGateway(t, c, p, conf, gateway.Options{})
	ask := func(holder string) int {
		return f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`, "X-Quotad-Holder", holder, "X-Quotad-Wait",
			"0").status
	}
	// The first key's limit closes only its own quotas: from the next listing on, calls use the other key.
	if status := ask("one"); status != 429 {
		t.Fatalf("the first key: %d", status)
	}
	eventually(t, "calls take the key with room", func() bool { return ask("two") == 200 })
	for range 3 {
		if status := ask("two"); status != 200 {
			t.Errorf("the holder did not stay with its key: %d", status)
		}
	}
}

func TestA14_FailOpenIsBounded(t *testing.T) {
	t.Parallel() // mostly waiting
	f := openAI(t, speak(200, chatAnswer), func(conf *config.Config) {
		u := conf.Upstreams["openai"]
		u.FailOpen = &config.FailOpen{Count: 2, Per: 3600e9, For: 3600e9}
		conf.Upstreams["openai"] = u
	})
	f.cluster.stop()
	statuses := make(chan answer, 6)
	for range 6 {
		go func() {
			statuses <- f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`, "X-Quotad-Explain", "1")
		}()
	}
	passed := 0
	for range 6 {
		switch got := <-statuses; got.status {
		case 200:
			passed++
			if said := got.header.Values("X-Quotad"); len(said) != 2 || said[0] != "open" || !strings.HasPrefix(said[1], "holder=") {
				t.Errorf("a call that passed, and asked who it is taken for, says %q", said)
			}
		case 503:
		default:
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	if passed != 2 || len(f.provider.seen()) != 2 {
		t.Fatalf("%d calls passed, the provider saw %d; want 2", passed, len(f.provider.seen()))
	}
	// A call is counted when it ends, after its caller has the whole answer.
	eventually(t, "the metric counts both", func() bool {
		return strings.Contains(f.do(http.MethodGet, "/metrics", "").body,
			`quotad_gateway_ungoverned_total{upstream="openai",why="fail_open"} 2`)
	})
	f.cluster.start()
	f.governedAgain(t)
	eventually(t, "what passed is charged", func() bool { return f.cluster.quota("openai/gpt-5/requests").Consumed >= 3 })
	f.logs(t, "calls need quotas again", 1)
}

// withTwoKeys returns a configuration with a pool of two keys, each with its own quotas.
func withTwoKeys(t *testing.T, c *cluster, p *provider) config.Config {
	t.Helper()
	u := upstreamOf(p, "openai")
	u.Auth, u.Pool = "inject", []string{"a", "b"}
	u.Keys = []config.Key{
		{Name: "a", From: config.Source{File: secret(t, "a", "a")}, Quotas: "openai-a"},
		{Name: "b", From: config.Source{File: secret(t, "b", "b")}, Quotas: "openai-b"},
	}
	conf := configOf(c, map[string]config.Upstream{"openai": u})
	conf.Trust = true
	return conf
}
