package gateway_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/rpc/quotav1"
)

// poolOf returns a pool of a quota of several keys: openai/gpt-5/requests of openai-a/gpt-5/requests and so on.
func poolOf(name string, keys ...string) *quotav1.Quota {
	pool := &quotav1.Pool{}
	upstream, rest, _ := strings.Cut(name, "/")
	for _, key := range keys {
		pool.Members = append(pool.Members, &quotav1.PoolMember{Name: key, Quota: upstream + "-" + key + "/" + rest})
	}
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Pool{Pool: pool}}
}

// account is a provider that has the keys a and b, and records the calls of each.
type account struct {
	mu sync.Mutex
	// limited are keys that it refuses for an hour, asked the bodies by key, answered the number of answers with 200.
	limited  map[string]bool
	asked    map[string][]string
	answered map[string]int
	// hold is received from before a key's call is answered; nil: it is answered at once.
	hold map[string]chan struct{}
}

func newAccount() *account {
	return &account{limited: map[string]bool{}, asked: map[string][]string{}, answered: map[string]int{}, hold: map[string]chan struct{}{}}
}

func (a *account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Input string `json:"input"`
		Prior string `json:"previous_response_id"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	credentials := append(r.Header.Values("Authorization"), r.Header.Values("X-Api-Key")...)
	key := strings.TrimPrefix(strings.Join(credentials, "+"), "Bearer ")
	a.mu.Lock()
	a.asked[key] = append(a.asked[key], body.Input)
	limited, hold := a.limited[key], a.hold[key]
	id := fmt.Sprintf("resp_%s_%d", key, len(a.asked[key]))
	if !limited {
		a.answered[key]++
	}
	a.mu.Unlock()
	switch {
	case limited:
		w.Header().Set("Retry-After", "3600")
		speak(429, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`)(w, r)
		return
	case body.Prior != "" && !strings.HasPrefix(body.Prior, "resp_"+key):
		speak(404, `{"error":{"message":"Previous response not found"}}`)(w, r)
		return
	case hold != nil:
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}
	speak(200, fmt.Sprintf(`{"object":"response","id":%q,"status":"completed","usage":{"input_tokens":9,"output_tokens":2}}`, id))(w, r)
}

// limit makes the provider refuse a key from now on.
func (a *account) limit(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limited[key] = true
}

// calls returns the number of calls of each key, in the given order.
func (a *account) calls(keys ...string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, key := range keys {
		out = append(out, fmt.Sprintf("%s %d", key, len(a.asked[key])))
	}
	return strings.Join(out, ", ")
}

// pooled starts a gateway with the keys a and b of one upstream, and a cluster with quotas.
func pooled(t *testing.T, change func(*config.Config), quotas ...*quotav1.Quota) (*fixture, *account) {
	t.Helper()
	c := startCluster(t, quotas...)
	keys := newAccount()
	p := startProvider(t, keys.ServeHTTP)
	u := upstreamOf(p, "openai")
	u.Auth, u.Pool = "inject", []string{"a", "b"}
	for _, name := range u.Pool {
		u.Keys = append(u.Keys, config.Key{Name: name, From: config.Source{File: secret(t, name, name)}})
	}
	conf := configOf(c, map[string]config.Upstream{"openai": u})
	conf.Trust = true
	if change != nil {
		change(&conf)
	}
	return startGateway(t, c, p, conf, gateway.Options{}), keys
}

// ask makes a call that does not wait, with its own credentials, which must not be forwarded.
func (f *fixture) ask(body string, headers ...string) answer {
	f.tb.Helper()
	usual := []string{"X-Quotad-Holder", "picard", "X-Quotad-Wait", "0", "Authorization", "Bearer mine", "X-Api-Key", "mine"}
	return f.do(http.MethodPost, "/openai/v1/responses", body, append(usual, headers...)...)
}

const plainCall = `{"model":"gpt-5","input":"x"}`

func TestPool_AUsedUpKeyIsNotWaitedFor(t *testing.T) {
	f, keys := pooled(t, nil, ratePer("openai-a/gpt-5/requests", 1, time.Hour), ratePer("openai-b/gpt-5/requests", 3, time.Hour),
		poolOf("openai/gpt-5/requests", "a", "b"))
	for i := range 4 {
		if got := f.ask(plainCall); got.status != http.StatusOK {
			t.Fatalf("call %d: %d %s", i, got.status, got.body)
		}
	}
	if got := keys.calls("a", "b"); got != "a 1, b 3" {
		t.Errorf("calls of keys: %s", got)
	}
	// Both are used up: the refusal comes from the cluster, names one member's quota, and has a Retry-After.
	got := f.ask(plainCall)
	if got.status != http.StatusTooManyRequests || !strings.Contains(got.header.Get("X-Quotad-Refusal"), "/gpt-5/requests") ||
		got.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, %v", got.status, got.body, got.header)
	}
}

// TestPool_ALimitedKeyIsClosedAlone: a call that reached the limit is retried at once with the other key, and the report names the
// member.
func TestPool_ALimitedKeyIsClosedAlone(t *testing.T) {
	f, keys := pooled(t, nil, rate("openai-a/gpt-5/requests", 100), rate("openai-b/gpt-5/requests", 100),
		tokens("openai-a/gpt-5/tokens", 100_000), tokens("openai-b/gpt-5/tokens", 100_000),
		poolOf("openai/gpt-5/requests", "a", "b"), poolOf("openai/gpt-5/tokens", "a", "b"))
	keys.limit("a")
	for i := range 3 {
		if got := f.ask(plainCall); got.status != http.StatusOK {
			t.Fatalf("call %d: %d %s", i, got.status, got.body)
		}
	}
	if got := keys.calls("a", "b"); got != "a 1, b 3" {
		t.Errorf("calls of keys: %s", got)
	}
	a, b := f.cluster.quota("openai-a/gpt-5/requests"), f.cluster.quota("openai-b/gpt-5/requests")
	if a.CooldownLeft == 0 || b.CooldownLeft != 0 {
		t.Errorf("cooldowns of %v and %v", a.CooldownLeft, b.CooldownLeft)
	}
	// A refused call used its request, but no tokens.
	f.cluster.consumed("openai-a/gpt-5/requests", 1)
	f.cluster.consumed("openai-a/gpt-5/tokens", 0)
	f.cluster.consumed("openai-b/gpt-5/requests", 3)
	f.cluster.consumed("openai-b/gpt-5/tokens", 33)
	f.logs(t, "key=b", 3)
	// With both closed the provider receives no more calls.
	keys.limit("b")
	if got := f.ask(plainCall); got.status != http.StatusTooManyRequests {
		t.Errorf("with both limited: %d %s", got.status, got.body)
	}
	if got := f.ask(plainCall); got.status != http.StatusTooManyRequests || !strings.Contains(got.header.Get("X-Quotad-Refusal"), "COOLDOWN") {
		t.Errorf("with both closed: %d %s", got.status, got.body)
	}
	if got := keys.calls("a", "b"); got != "a 1, b 4" {
		t.Errorf("calls of keys: %s", got)
	}
}

// TestPool_WaitsForWhicheverKeyOpensFirst: while both keys are taken one Reserve waits, and the call is sent with the first free key.
func TestPool_WaitsForWhicheverKeyOpensFirst(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		t.Run(first, func(t *testing.T) {
			f, keys := pooled(t, nil, slots("openai-a/gpt-5/streams", 1), slots("openai-b/gpt-5/streams", 1),
				poolOf("openai/gpt-5/streams", "a", "b"))
			keys.hold["a"], keys.hold["b"] = make(chan struct{}, 2), make(chan struct{}, 2)
			answers := make(chan answer, 3)
			for i := range 3 {
				go func() {
					answers <- f.do(http.MethodPost, "/openai/v1/responses", plainCall, "X-Quotad-Holder", fmt.Sprint("h", i))
				}()
			}
			eventually(t, "two calls are in flight, and one waits", func() bool {
				return keys.calls("a", "b") == "a 1, b 1" && f.gateway.Status().Waiting == 1
			})
			keys.hold[first] <- struct{}{}
			want := map[string]string{"a": "a 2, b 1", "b": "a 1, b 2"}[first]
			eventually(t, "the third call has the key "+first, func() bool { return keys.calls("a", "b") == want })
			close(keys.hold["a"])
			close(keys.hold["b"])
			for range 3 {
				if got := <-answers; got.status != http.StatusOK {
					t.Errorf("got %d %s", got.status, got.body)
				}
			}
		})
	}
}

// TestPool_EverythingOfACallIsOfOneKey: for each key, the cluster's counts match the provider's, for requests and tokens.
func TestPool_EverythingOfACallIsOfOneKey(t *testing.T) {
	f, keys := pooled(t, nil, rate("openai-a/gpt-5/requests", 90), rate("openai-b/gpt-5/requests", 100),
		tokens("openai-a/gpt-5/tokens", 2_000_000), tokens("openai-b/gpt-5/tokens", 900_000), rate("team/requests", 1000),
		poolOf("openai/gpt-5/requests", "a", "b"), poolOf("openai/gpt-5/tokens", "b", "a"))
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			got := f.do(http.MethodPost, "/openai/v1/responses", plainCall, "X-Quotad-Holder", fmt.Sprint("h", i), "Authorization", "Bearer mine",
				"Cookie", "mine")
			if got.status != http.StatusOK {
				t.Errorf("got %d %s", got.status, got.body)
			}
		})
	}
	all.Wait()
	sum := 0
	for _, key := range []string{"a", "b"} {
		keys.mu.Lock()
		n := len(keys.asked[key])
		keys.mu.Unlock()
		if n == 0 {
			t.Errorf("the key %s has served nothing", key)
		}
		f.cluster.consumed("openai-"+key+"/gpt-5/requests", int64(n))
		f.cluster.consumed("openai-"+key+"/gpt-5/tokens", int64(11*n))
		sum += n
	}
	if sum != 40 {
		t.Errorf("%d calls of the keys a and b, want 40: %s", sum, keys.calls("a", "b"))
	}
	for _, r := range f.provider.seen() {
		if strings.Contains(fmt.Sprint(r.header), "mine") {
			t.Errorf("the provider saw the caller's credential: %v", r.header)
		}
	}
}

// TestPool_ACallThatContinuesAnAnswerStaysWithItsKey: even if the other key has room and its own has none.
func TestPool_ACallThatContinuesAnAnswerStaysWithItsKey(t *testing.T) {
	f, keys := pooled(t, nil, rate("openai-a/gpt-5/requests", 100), rate("openai-b/gpt-5/requests", 100),
		poolOf("openai/gpt-5/requests", "a", "b"))
	ids := map[string]string{}
	for range 2 {
		var said struct{ ID string }
		if err := json.Unmarshal([]byte(f.ask(plainCall).body), &said); err != nil {
			t.Fatal(err)
		}
		ids[strings.Split(said.ID, "_")[1]] = said.ID
	}
	if len(ids) != 2 {
		t.Fatalf("answers came from one key only: %v", ids)
	}
	f.logs(t, "msg=call", 2)
	next := func(key string) answer {
		return f.ask(`{"model":"gpt-5","input":"next of ` + key + `","previous_response_id":"` + ids[key] + `"}`)
	}
	for range 3 {
		for _, key := range []string{"a", "b"} {
			if got := next(key); got.status != http.StatusOK {
				t.Fatalf("of %s: %d %s", key, got.status, got.body)
			}
		}
		// A key's reasoning is encrypted for its organisation: the holder stays with its last key, which is b.
		thoughts := `{"model":"gpt-5","input":"next of b","include":["x"],"encrypted_content":"gAAA"}`
		if got := f.ask(thoughts); got.status != http.StatusOK {
			t.Fatalf("with thoughts: %d %s", got.status, got.body)
		}
	}
	keys.limit("a")
	for _, refusal := range []string{"", "COOLDOWN"} { // the provider's refusal, then the cluster's
		if got := next("a"); got.status != http.StatusTooManyRequests || !strings.Contains(got.header.Get("X-Quotad-Refusal"), refusal) {
			t.Errorf("the key of the answer is limited: %d %s", got.status, got.body)
		}
	}
	if got := next("b"); got.status != http.StatusOK {
		t.Errorf("the other key: %d %s", got.status, got.body)
	}
	keys.mu.Lock()
	defer keys.mu.Unlock()
	for key, other := range map[string]string{"a": "b", "b": "a"} {
		if strings.Contains(fmt.Sprint(keys.asked[key]), "next of "+other) {
			t.Errorf("calls moved: the key %s was asked %v", key, keys.asked[key])
		}
	}
}

// TestPool_MustFitTheKeys: a member without a key is never granted, and every error says why.
func TestPool_MustFitTheKeys(t *testing.T) {
	crossed := poolOf("openai/gpt-6/requests", "a", "b")
	members := crossed.GetPool().Members
	members[0].Quota, members[1].Quota = members[1].Quota, members[0].Quota
	f, keys := pooled(t, func(conf *config.Config) {
		for i := range conf.Upstreams["openai"].Keys {
			k := &conf.Upstreams["openai"].Keys[i]
			k.Quotas = "openai-" + k.Name
		}
	}, rate("openai-a/gpt-5/requests", 100), rate("openai-b/gpt-5/requests", 100), rate("openai-c/gpt-5/requests", 1000),
		rate("openai-a/gpt-6/requests", 100), rate("openai-b/gpt-6/requests", 100), rate("openai-a/gpt-7/requests", 100),
		rate("openai-a/gpt-8/requests", 100), rate("openai-b/gpt-8/requests", 100),
		poolOf("openai/gpt-5/requests", "a", "b", "c"), crossed, poolOf("openai/gpt-7/requests", "a"))
	for model, says := range map[string]string{
		"gpt-5": "the member c of the pool openai/gpt-5/requests has no key",
		"gpt-6": "the member a of the pool openai/gpt-6/requests is the quota openai-b/gpt-6/requests, but the key a has the quotas openai-a/...",
	} {
		got := f.ask(`{"model":"` + model + `","input":"x"}`)
		if got.status != http.StatusForbidden || !strings.Contains(got.body, says) {
			t.Errorf("%s: %d %s", model, got.status, got.body)
		}
	}
	if got := keys.calls("a", "b"); got != "a 0, b 0" {
		t.Errorf("calls of keys: %s", got)
	}
	// A key that has no member yet is not used for the pool. A model without a pool uses the key that the gateway chooses.
	for _, model := range []string{"gpt-7", "gpt-8"} {
		if got := f.ask(`{"model":"` + model + `","input":"x"}`); got.status != http.StatusOK {
			t.Errorf("%s: %d %s", model, got.status, got.body)
		}
	}
	f.cluster.consumed("openai-a/gpt-7/requests", 1)
	f.cluster.consumed("openai-a/gpt-8/requests", 1)
	err := f.gateway.CheckPools(t.Context())
	var typed *gateway.PoolError
	if !errors.As(err, &typed) || typed.Upstream != "openai" || typed.Hint == "" {
		t.Fatalf("got %v", err)
	}
	for _, says := range []string{
		"upstreams.openai: the member c of the pool openai/gpt-5/requests has no key", "the member a of the pool openai/gpt-6/requests is",
		"the pool openai/gpt-7/requests has no member for the key b: its members are a",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %s", err, says)
		}
	}
}

func TestPool_NeedsInjectedKeys(t *testing.T) {
	c := startCluster(t, rate("openai-a/gpt-5/requests", 100), poolOf("openai/gpt-5/requests", "a"))
	p := startProvider(t, speak(200, chatAnswer))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	if got := f.ask(plainCall); got.status != http.StatusForbidden || !strings.Contains(got.body, "has no key") || len(p.seen()) != 0 {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestPool_IsExplainedAndShown(t *testing.T) {
	f, keys := pooled(t, nil, rate("openai-a/gpt-5/requests", 100), rate("openai-b/gpt-5/requests", 50),
		poolOf("openai/gpt-5/requests", "a", "b"))
	if err := f.gateway.CheckPools(t.Context()); err != nil {
		t.Error(err)
	}
	keys.limit("a")
	if got := f.ask(plainCall); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	request, err := http.NewRequest(http.MethodPost, "http://localhost/openai/v1/responses", strings.NewReader(plainCall))
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.gateway.Explain(t.Context(), request)
	if err != nil || e.Refusal != "" || e.Key != "" || len(e.Draws) != 1 || len(e.Draws[0].Members) != 2 {
		t.Fatalf("got %+v, %v", e, err)
	}
	if a, b := e.Draws[0].Members[0], e.Draws[0].Members[1]; a.Name != "a" || a.Open || b.Quota != "openai-b/gpt-5/requests" || !b.Open {
		t.Errorf("the members are %+v", e.Draws[0].Members)
	}
	u := f.gateway.Status().Upstreams[0]
	if len(u.Models) != 1 || len(u.Models[0].Parts[0].Members) != 2 || len(u.Closed) != 1 || u.Closed[0] != "openai-a/gpt-5/requests" {
		t.Errorf("the upstream is %+v", u)
	}
	if len(u.Keys) != 2 || u.Keys[0].Free != 0 || u.Keys[1].Free < 90 {
		t.Errorf("the keys are %+v", u.Keys)
	}
	page := f.do(http.MethodGet, "/status", "").body
	if !strings.Contains(page, "member b") || !strings.Contains(page, "openai-b/gpt-5/requests") {
		t.Errorf("the page shows no members: %s", page)
	}
}

// TestPool_WithoutTheClusterOneKeyPassesAndIsCharged: passed calls are charged to the member of the key that was used.
func TestPool_WithoutTheClusterOneKeyPassesAndIsCharged(t *testing.T) {
	t.Parallel() // mostly waiting
	f, keys := pooled(t, func(conf *config.Config) {
		u := conf.Upstreams["openai"]
		u.FailOpen = &config.FailOpen{Count: 2, Per: time.Hour, For: time.Hour}
		conf.Upstreams["openai"] = u
	}, rate("openai-a/gpt-5/requests", 100), rate("openai-b/gpt-5/requests", 100), poolOf("openai/gpt-5/requests", "a", "b"))
	f.cluster.stop()
	for range 2 {
		if got := f.do(http.MethodPost, "/openai/v1/responses", plainCall, "X-Quotad-Holder", "picard"); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	if got := keys.calls("a", "b"); got != "a 2, b 0" {
		t.Fatalf("calls of keys: %s", got)
	}
	f.cluster.start()
	f.governedAgain(t)
	for _, key := range []string{"a", "b"} {
		eventually(t, "what passed is charged to "+key, func() bool {
			return keys.calls(key) == fmt.Sprintf("%s %d", key, f.cluster.quota("openai-"+key+"/gpt-5/requests").Consumed)
		})
	}
}

// TestPool_AFallbackMayHaveNoPool: the gateway then chooses a key, draws on its quotas, and sends it.
func TestPool_AFallbackMayHaveNoPool(t *testing.T) {
	f, keys := pooled(t, func(conf *config.Config) {
		for i := range conf.Upstreams["openai"].Keys {
			k := &conf.Upstreams["openai"].Keys[i]
			k.Quotas = "openai-" + k.Name
		}
		conf.Models = []config.Model{{Upstream: "openai", Match: "gpt-5", As: "gpt-5", Fallback: []string{"mini"}}}
	}, ratePer("openai-a/gpt-5/requests", 1, time.Hour), poolOf("openai/gpt-5/requests", "a"), rate("openai-a/mini/requests", 100),
		rate("openai-b/mini/requests", 100))
	for range 2 {
		if got := f.ask(plainCall, "X-Quotad-Wait", "1m"); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	f.cluster.consumed("openai-a/gpt-5/requests", 1)
	f.cluster.consumed("openai-a/mini/requests", 1) // the holder stays with its last key
	if got := keys.calls("a", "b"); got != "a 2, b 0" {
		t.Errorf("calls of keys: %s", got)
	}
}

// TestPool_ATakeNamesTheMember: also from a batch; a report names the member's quota.
func TestPool_ATakeNamesTheMember(t *testing.T) {
	f, _ := pooled(t, nil, rate("openai-a/gpt-5/requests", 100), tokens("openai-a/gpt-5/tokens", 1000),
		poolOf("openai/gpt-5/requests", "a"), poolOf("openai/gpt-5/tokens", "a"))
	var said struct{ ID, Member string }
	for _, path := range []string{"/take?quota=openai/gpt-5/requests", "/take?quota=openai/gpt-5/tokens&amount=100&settle=1"} {
		got := f.do(http.MethodPost, path, "")
		if err := json.Unmarshal([]byte(got.body), &said); err != nil || said.Member != "a" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	f.do(http.MethodPost, "/take/settle", `{"id":"`+said.ID+`","actual":[{"quota":"openai/gpt-5/tokens","amount":7}]}`)
	f.cluster.consumed("openai-a/gpt-5/tokens", 7)
	got := f.do(http.MethodPost, "/report?quota=openai/gpt-5/requests", `{"status":429}`)
	if got.status != http.StatusBadRequest || !strings.Contains(got.body, "is a pool") {
		t.Errorf("a report on a pool: %d %s", got.status, got.body)
	}
}
