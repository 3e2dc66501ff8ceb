package gateway_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// batchLife is longer than any batch here lasts, and shorter than the period of the quotas.
const batchLife = 12 * time.Second

// batched sets batch: true on all upstreams.
func batched(conf *config.Config) {
	for name, u := range conf.Upstreams {
		u.Batch = true
		conf.Upstreams[name] = u
	}
}

// inBatches tests a gateway for GitHub with batch: true and a generous quota.
func inBatches(t *testing.T, answer http.HandlerFunc, test func(*testing.T, *bubble)) {
	t.Helper()
	inBubble(t, setting{
		dialects: []string{"github"}, quotas: []*quotav1.Quota{quotatest.Rate("github/core", 6_000, 10*time.Minute)}, answer: answer,
		change: batched,
	}, test)
}

// calls makes n calls, one each 20 ms, and expects the status of each answer.
func (b *bubble) calls(n, status int, headers ...string) {
	b.t.Helper()
	for i := range n {
		if got := b.do(http.MethodGet, "/github/user", "", headers...); got.status != status {
			b.t.Fatalf("call %d of %d: %d %s, want %d", i, n, got.status, got.body, status)
		}
		b.after(20 * time.Millisecond)
	}
}

// batches returns an upstream's batches in the status, by class, and the status.
func (b *bubble) batches(upstream string) (map[string]gateway.BatchStatus, gateway.Status) {
	b.t.Helper()
	var said gateway.Status
	if err := json.Unmarshal([]byte(b.do(http.MethodGet, "/status?format=json", "").body), &said); err != nil {
		b.t.Fatal(err)
	}
	out := map[string]gateway.BatchStatus{}
	for _, u := range said.Upstreams {
		for _, batch := range u.Batches {
			if u.Name == upstream {
				out[batch.Class] = batch
			}
		}
	}
	return out, said
}

// metric returns the value of a line of the metrics; 0 if it is missing.
func (b *bubble) metric(line string) (value int) {
	b.t.Helper()
	for said := range strings.Lines(b.do(http.MethodGet, "/metrics", "").body) {
		if rest, ok := strings.CutPrefix(said, line+" "); ok {
			_, _ = fmt.Sscan(rest, &value)
		}
	}
	return value
}

// TestBatch_ServesManyCalls: most calls ask nobody, each class has its own batch, and unspent units are returned.
func TestBatch_ServesManyCalls(t *testing.T) {
	inBatches(t, speak(200, `{}`), func(t *testing.T, b *bubble) {
		const each = 60
		for _, class := range []string{"critical", "standard", "background"} {
			b.calls(each, 200, "X-Quotad-Class", class, "X-Quotad-Holder", "worf")
		}
		batches, status := b.batches("github")
		for _, class := range []string{"critical", "standard", "background"} {
			if s := batches[class]; s.Spent != each || s.Batches == 0 || s.Quota != "github/core" {
				t.Errorf("%s: %+v", class, s)
			}
		}
		if !status.Upstreams[0].Batch {
			t.Error("the status does not say that calls come out of batches")
		}
		if page := b.do(http.MethodGet, "/status", "").body; !strings.Contains(page, "Batches") || !strings.Contains(page, "background") {
			t.Error("the page shows no batches")
		}
		if n := b.metric(`quotad_gateway_batched_total{upstream="github"}`); n < 3*each/2 || n > 3*each {
			t.Errorf("%d of %d calls came out of batches", n, 3*each)
		}
		ahead := b.cluster.Quota("github/core")
		if n := len(b.provider.seen()); n != 3*each || ahead.Consumed <= 3*each {
			t.Errorf("%d calls were sent, %d are consumed: nothing was consumed ahead", n, ahead.Consumed)
		}
		got := b.do(http.MethodGet, "/github/user", "", "X-Quotad-Explain", "1", "X-Quotad-Holder", "worf")
		if said := got.header.Get("X-Quotad"); !strings.Contains(said, "holder=worf%40node-7;") ||
			!strings.HasSuffix(said, ";batch=standard%40node-7") {
			t.Errorf("X-Quotad is %q", said)
		}
		b.until("the call is logged", time.Second, func() bool { return strings.Contains(b.log.String(), "batch=standard@node-7") })
		b.after(batchLife)
		b.consumed("github/core", 3*each+1)
	})
}

// TestBatch_OneRefusalClosesAllClasses: each class returns its units at once, and sends none before the cooldown is over.
func TestBatch_OneRefusalClosesAllClasses(t *testing.T) {
	limited := false
	answers := func(w http.ResponseWriter, r *http.Request) {
		if limited {
			w.Header().Set("Retry-After", "6")
			speak(429, `{"message":"You have exceeded a secondary rate limit."}`)(w, r)
			return
		}
		speak(200, `{}`)(w, r)
	}
	inBatches(t, answers, func(t *testing.T, b *bubble) {
		for range 40 {
			b.calls(1, 200, "X-Quotad-Class", "critical")
			b.calls(1, 200, "X-Quotad-Class", "background")
		}
		sent := len(b.provider.seen())
		if batches, _ := b.batches("github"); batches["critical"].Left == 0 || batches["background"].Left == 0 {
			t.Fatalf("a class has nothing at hand: %+v", batches)
		}
		limited = true
		got := b.do(http.MethodGet, "/github/user", "", "X-Quotad-Class", "background", "X-Quotad-Wait", "1s")
		if got.status != 429 || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "secondary rate limit") {
			t.Errorf("the refused call: %d %s, %v", got.status, got.body, got.header)
		}
		// Long before the batches would end.
		b.until("what was at hand has gone back", 50*time.Millisecond, func() bool {
			q := b.cluster.Quota("github/core")
			return q.CooldownLeft > 5*time.Second && q.Consumed == int64(sent+1)
		})
		limited = false
		for _, class := range []string{"critical", "background"} {
			for wait, reason := range map[string]string{"0": "COOLDOWN", "1s": "CANNOT_SERVE_IN_TIME"} {
				got := b.do(http.MethodGet, "/github/user", "", "X-Quotad-Class", class, "X-Quotad-Wait", wait)
				if got.status != 429 || !strings.HasPrefix(got.header.Get("X-Quotad-Refusal"), reason+";") {
					t.Errorf("%s in the cooldown: %d %s, %v", class, got.status, got.body, got.header)
				}
			}
		}
		if n := len(b.provider.seen()); n != sent+1 {
			t.Errorf("%d calls were sent in the cooldown", n-sent-1)
		}
		// A call that may wait is sent after the cooldown.
		began := time.Now()
		b.calls(1, 200, "X-Quotad-Class", "critical", "X-Quotad-Wait", "2m")
		if took := time.Since(began); took < 5*time.Second || took > 20*time.Second {
			t.Errorf("a call that may wait was answered after %v", took)
		}
		b.after(batchLife)
		b.consumed("github/core", int64(sent+2))
	})
}

// TestBatch_ASlowAnswerStillReports: its batch has ended long before.
func TestBatch_ASlowAnswerStillReports(t *testing.T) {
	var slow chan struct{} // created in the bubble
	answers := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Slow") != "" {
			<-slow
			w.Header().Set("Retry-After", "9")
			speak(403, `{"message":"You have exceeded a secondary rate limit."}`)(w, r)
			return
		}
		speak(200, `{}`)(w, r)
	}
	for name, before := range map[string]int{"alone": 0, "from a batch": 60} {
		t.Run(name, func(t *testing.T) {
			inBatches(t, answers, func(t *testing.T, b *bubble) {
				slow = make(chan struct{})
				b.calls(before, 200)
				answered := make(chan answer, 1)
				go func() { answered <- b.do(http.MethodGet, "/github/user", "", "X-Slow", "1", "X-Quotad-Wait", "5s") }()
				b.after(25 * time.Second)
				close(slow)
				if got := <-answered; got.status != 403 {
					t.Errorf("got %d %s", got.status, got.body)
				}
				b.until("the quota is closed", time.Second, func() bool { return b.cluster.Quota("github/core").CooldownLeft > 7*time.Second })
			})
		})
	}
}

// TestBatch_ReturnsUnsent: amounts of calls that may have been sent do not.
func TestBatch_ReturnsUnsent(t *testing.T) {
	breaks := false
	answers := func(w http.ResponseWriter, r *http.Request) {
		if breaks {
			panic(http.ErrAbortHandler)
		}
		speak(200, `{}`)(w, r)
	}
	for name, before := range map[string]int{"alone": 1, "from a batch": 60} {
		t.Run(name, func(t *testing.T) {
			breaks = false
			inBatches(t, answers, func(t *testing.T, b *bubble) {
				b.calls(before, 200)
				b.reaches.cut(true)
				b.after(20 * time.Millisecond) // until the end of kept-alive connections is noticed
				for range 5 {
					got := b.do(http.MethodGet, "/github/user", "")
					if got.status != http.StatusBadGateway || !strings.Contains(got.body, "nothing was sent") {
						t.Fatalf("got %d %s", got.status, got.body)
					}
					b.after(20 * time.Millisecond)
				}
				b.reaches.cut(false)
				breaks = true
				got := b.do(http.MethodPost, "/github/user/repos", "{}")
				if got.status != http.StatusBadGateway || !strings.Contains(got.body, "did not answer") {
					t.Errorf("got %d %s", got.status, got.body)
				}
				b.after(batchLife)
				b.consumed("github/core", int64(before+1))
			})
		})
	}
}

// TestBatch_CountsRepeatedSends: net/http repeats a GET whose connection broke.
func TestBatch_CountsRepeatedSends(t *testing.T) {
	url, read := startDying(t)
	c := startCluster(t, rate("github/core", 100))
	github := config.Upstream{Dialect: "github", Base: url, Plain: true, Batch: true}
	f := startGateway(t, c, nil, configOf(c, map[string]config.Upstream{"github": github}), gateway.Options{})
	for range 2 {
		if got := f.do(http.MethodGet, "/github/user", ""); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	if n := len(read()); n != 3 {
		t.Fatalf("the provider read %d requests, want 3", n)
	}
	// Do not wait until no lease is left: leases of single takes outlive the takes.
	eventually(t, "three are consumed", func() bool { return c.quota("github/core").Consumed == 3 })
}

// TestBatch_IsSpentWhileTheClusterIsAway: and no call beyond it; calls that fail_open lets pass are charged later.
func TestBatch_IsSpentWhileTheClusterIsAway(t *testing.T) {
	for name, open := range map[string]*config.FailOpen{"closed": nil, "open": {Count: 3, Per: time.Minute, For: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			change := func(conf *config.Config) {
				batched(conf)
				u := conf.Upstreams["github"]
				u.FailOpen = open
				conf.Upstreams["github"] = u
			}
			quota := quotatest.Rate("github/core", 6_000, 10*time.Minute)
			quota.SpendBy = durationpb.New(time.Minute) // longer than it takes to notice that the cluster is away
			inBubble(t, setting{
				dialects: []string{"github"}, quotas: []*quotav1.Quota{quota}, answer: speak(200, `{}`), change: change,
			}, func(t *testing.T, b *bubble) {
				b.calls(60, 200)
				b.calls(60, 200, "X-Quotad-Class", "critical")
				batches, _ := b.batches("github")
				left := int(batches["standard"].Left)
				if left < 2 || batches["critical"].Left == 0 {
					t.Fatalf("nothing is at hand: %+v", batches)
				}
				b.nodes.cut(true)
				b.calls(left, 200)
				passed := 0
				for range 5 {
					switch got := b.do(http.MethodGet, "/github/user", "", "X-Quotad-Wait", "20s"); got.status {
					case 200:
						passed++
						if got.header.Get("X-Quotad") != "open" {
							t.Errorf("X-Quotad is %q", got.header.Get("X-Quotad"))
						}
					case 503:
					default:
						t.Errorf("got %d %s", got.status, got.body)
					}
				}
				want := 0
				if open != nil {
					want = open.Count
				}
				if _, status := b.batches("github"); passed != want || !status.Away {
					t.Errorf("%d calls passed, want %d; away: %v", passed, want, status.Away)
				}
				b.calls(1, 200, "X-Quotad-Class", "critical") // from units consumed before: it says nothing about the cluster
				if _, status := b.batches("github"); !status.Away || strings.Contains(b.log.String(), "the cluster is back") {
					t.Error("the cluster counts as back")
				}
				b.nodes.cut(false)
				b.until("calls pass again", 10*time.Second, func() bool { return b.do(http.MethodGet, "/github/user", "").status == 200 })
				_, status := b.batches("github")
				if status.Away {
					t.Error("the cluster is still away")
				}
				b.after(time.Minute + batchLife)
				b.consumed("github/core", int64(len(b.provider.seen())))
			})
		})
	}
}

// TestBatch_OfNothingLeftWaitsAndRefuses: in the provider's form; a client that leaves draws nothing.
func TestBatch_OfNothingLeftWaitsAndRefuses(t *testing.T) {
	inBatches(t, speak(200, `{}`), func(t *testing.T, b *bubble) {
		b.cluster.Exhaust("github/core")
		for wait, within := range map[string]time.Duration{"0": time.Second, "20ms": time.Second, "8s": 8 * time.Second} {
			began := time.Now()
			got := b.do(http.MethodGet, "/github/user", "", "X-Quotad-Wait", wait)
			if got.status != 429 || !strings.Contains(got.body, "API rate limit exceeded") || got.header.Get("Retry-After") == "" {
				t.Errorf("a wait of %s: %d %s, %v", wait, got.status, got.body, got.header)
			}
			if took := time.Since(began); took > within {
				t.Errorf("a wait of %s took %v", wait, took)
			}
		}
		connection := b.send(http.MethodGet, "/github/user", "", "X-Quotad-Wait", "10m")
		b.until("the call waits", time.Second, func() bool { return b.cluster.Quota("github/core").Waiting == 1 })
		_ = connection.Close()
		b.until("its place is free", time.Second, func() bool { return b.cluster.Quota("github/core").Waiting == 0 })
		if n := len(b.provider.seen()); n != 0 {
			t.Errorf("%d calls were sent", n)
		}
	})
}

// TestBatch_ALateAnswerEndsTheWait: the cluster is reachable, so the quota refuses, and no call passes for want of a cluster.
func TestBatch_ALateAnswerEndsTheWait(t *testing.T) {
	change := func(conf *config.Config) {
		batched(conf)
		u := conf.Upstreams["github"]
		u.FailOpen = &config.FailOpen{Count: 100, Per: time.Second, For: time.Hour}
		conf.Upstreams["github"] = u
	}
	inBubble(t, setting{
		dialects: []string{"github"}, quotas: []*quotav1.Quota{quotatest.Rate("github/core", 6_000, 10*time.Minute)},
		answer: speak(200, `{}`), change: change,
	}, func(t *testing.T, b *bubble) {
		b.calls(1, 200)
		b.nodes.delay(300 * time.Millisecond)
		got := b.do(http.MethodGet, "/github/user", "", "X-Quotad-Wait", "100ms")
		if got.status != 429 || !strings.HasPrefix(got.header.Get("X-Quotad-Refusal"), "WAIT_EXPIRED;") {
			t.Errorf("got %d %s, %v", got.status, got.body, got.header)
		}
		b.nodes.delay(0)
		b.after(batchLife)
		b.consumed("github/core", 1) // the late grant is returned
	})
}

// TestBatch_NotForHeldOrCorrectedAmounts: such calls ask the cluster, and explain and the status say why.
func TestBatch_NotForHeldOrCorrectedAmounts(t *testing.T) {
	actual, later := quotatest.Rate("github/core", 100, 10*time.Minute), quotatest.Rate("github/core", 100, 10*time.Minute)
	actual.Settle, later.Charged = quotav1.SettleMode_SETTLE_MODE_ACTUAL, quotav1.Charged_CHARGED_END
	for why, quota := range map[string]*quotav1.Quota{
		"it has slots, and each call holds its own": quotatest.Slots("github/core", 2), "settle: actual": actual, "charged: end or during": later,
	} {
		t.Run(why, func(t *testing.T) {
			inBubble(t, setting{
				dialects: []string{"github"}, quotas: []*quotav1.Quota{quota}, answer: speak(200, `{}`), change: batched,
			}, func(t *testing.T, b *bubble) {
				b.calls(20, 200)
				b.until("all is settled", time.Second, func() bool { return b.cluster.Quota("github/core").Leases == 0 })
				batches, status := b.batches("github")
				if len(batches) != 0 || !strings.Contains(status.Upstreams[0].Quotas[0].Unbatched, why) {
					t.Errorf("the status has %+v", status.Upstreams[0])
				}
				if n := strings.Count(b.log.String(), "calls are not taken out of batches"); n != 1 {
					t.Errorf("said %d times", n)
				}
				explained, err := b.gateway.Explain(t.Context(), httptest.NewRequest(http.MethodGet, "http://localhost/github/user", nil))
				if err != nil || explained.Batch != "" || !strings.Contains(explained.Unbatched, why) {
					t.Errorf("explained %+v, %v", explained, err)
				}
				err = b.gateway.CheckBatches(t.Context())
				if wrong, ok := errors.AsType[*gateway.BatchError](err); !ok || wrong.Upstream != "github" || wrong.Quota != "github/core" ||
					!strings.Contains(wrong.Message, why) || wrong.Hint == "" {
					t.Errorf("the check says %v", err)
				}
			})
		})
	}
}

// TestBatch_IsExplained: with the class's holder, if nothing prevents a batch.
func TestBatch_IsExplained(t *testing.T) {
	inBatches(t, speak(200, `{}`), func(t *testing.T, b *bubble) {
		for class, want := range map[string]string{"": "standard@node-7", "background": "background@node-7"} {
			r := httptest.NewRequest(http.MethodGet, "http://localhost/github/user", nil)
			r.Header.Set("X-Quotad-Class", class)
			explained, err := b.gateway.Explain(t.Context(), r)
			if err != nil || explained.Batch != want || explained.Unbatched != "" {
				t.Errorf("explained %+v, %v", explained, err)
			}
		}
		if err := b.gateway.CheckBatches(t.Context()); err != nil {
			t.Error(err)
		}
		b.calls(1, 200)
		if got := b.do(http.MethodGet, "/github/rate_limit", ""); got.status != 200 { // it draws on nothing
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

// TestBatch_OfAPoolSendsTheMembersKey: and the next member's once that one is closed.
func TestBatch_OfAPoolSendsTheMembersKey(t *testing.T) {
	keys := newAccount()
	pool := &quotav1.Quota{Name: "github/core", Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{Members: []*quotav1.PoolMember{
		{Name: "a", Quota: "github-a/core"}, {Name: "b", Quota: "github-b/core"},
	}}}}
	change := func(conf *config.Config) {
		batched(conf)
		conf.Trust = true
		u := conf.Upstreams["github"]
		u.Auth, u.Pool = "inject", []string{"a", "b"}
		for _, name := range u.Pool {
			u.Keys = append(u.Keys, config.Key{Name: name, From: config.Source{File: secret(t, name, name)}})
		}
		conf.Upstreams["github"] = u
	}
	inBubble(t, setting{
		dialects: []string{"github"}, answer: keys.ServeHTTP, change: change, quotas: []*quotav1.Quota{
			quotatest.Rate("github-a/core", 6_000, 10*time.Minute), quotatest.Rate("github-b/core", 6_000, 10*time.Minute), pool,
		},
	}, func(t *testing.T, b *bubble) {
		b.calls(60, 200)
		if n := b.metric(`quotad_gateway_batched_total{upstream="github"}`); n < 30 {
			t.Errorf("%d of 60 calls came out of batches", n)
		}
		keys.limit("a")
		b.calls(60, 200)
		b.after(batchLife)
		for _, key := range []string{"a", "b"} {
			keys.mu.Lock()
			asked := len(keys.asked[key])
			keys.mu.Unlock()
			b.consumed("github-"+key+"/core", int64(asked))
			if key == "b" && asked < 60 {
				t.Errorf("%s was asked %d times", key, asked)
			}
		}
	})
}
