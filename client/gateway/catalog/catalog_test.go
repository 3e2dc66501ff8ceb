package catalog

import (
	"runtime"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/rpc/quotav1"
)

func status(name, parent string, limit int64) *quotav1.QuotaStatus {
	return &quotav1.QuotaStatus{Usable: limit, AvailableWithParents: limit, Definition: &quotav1.Quota{
		Name: name, Parent: parent, Rule: &quotav1.Quota_Window{Window: &quotav1.Window{Limit: limit, Every: "day"}},
	}}
}

func TestCanonical_KeepsModelOnly(t *testing.T) {
	for model, want := range map[string]string{
		"gpt-5-2025-08-07": "gpt-5", "gpt-5-latest": "gpt-5", "claude-opus-4-20250929": "claude-opus-4",
		"claude-opus-4-5[1m]":                          "claude-opus-4-5",
		"us.anthropic.claude-sonnet-4-5-20250929-v1:0": "claude-sonnet-4-5", "meta.llama3-70b-instruct-v1:0": "llama3-70b-instruct",
		"claude-sonnet-4@20250514": "claude-sonnet-4", "gpt-4.1": "gpt-4.1", "o3": "o3", "": "", "-latest": "-latest",
		"arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0": "claude-sonnet-4-5",
	} {
		if got := Canonical(model); got != want {
			t.Errorf("%s gives %s, want %s", model, got, want)
		}
	}
}

func TestName_HasTheCharactersOfQuotas(t *testing.T) {
	for model, want := range map[string]string{
		"gpt-5.1_x": "gpt-5.1_x", "org/model:free@1": "org/model:free@1", "claude opus": "claude-opus", "a*b?c#d%e\"f": "a-b-c-d-e-f",
		"modèle": "mod-le", "claude-opus-4-5[1m]": "claude-opus-4-5-1m-", "/models/x/": "models/x", "a\tb\nc": "a-b-c", "": "",
	} {
		if got := Name(model); got != want {
			t.Errorf("%q gives %q, want %q", model, got, want)
		}
	}
}

func TestFind_TakesTheFirstThatExists(t *testing.T) {
	var c Catalog
	c.Set([]*quotav1.QuotaStatus{
		status("openai/gpt-5/requests", "", 10), status("openai/gpt-5-2025-08-07/requests", "", 10), status("openai/@any/requests", "", 10),
		status("openai/mini/tokens", "", 10), status("bedrock/m/tokens", "bedrock/m/requests-per-day", 10),
		status("bedrock/m/requests-per-day", "", 5),
	})
	rules := []config.Model{{Upstream: "openai", Match: "gpt-5-mini*", As: "mini"}, {Match: "nothing*", As: "none"}}
	for model, want := range map[string]string{
		"gpt-5-mini-2025": "mini", "gpt-5-2025-08-07": "gpt-5-2025-08-07", "gpt-5-2025-09-09": "gpt-5", "gpt-6": AnyModel, "": AnyModel,
		"nothing": AnyModel,
	} {
		if got := c.Find(rules, "openai", "openai", model); got.Model != want || !got.Has() {
			t.Errorf("%s gives %+v, want %s", model, got, want)
		}
	}
	if got := c.Find(nil, "azure", "azure", "gpt-5"); got.Has() {
		t.Errorf("an upstream without quotas gives %+v", got)
	}
	// A charge to a child also charges its parent: naming both would charge the parent twice.
	if got := c.Find(nil, "bedrock", "bedrock", "m"); len(got.Parts) != 1 || got.Parts["tokens"].Name == "" {
		t.Errorf("got %+v", got)
	}
	if most := c.Most("bedrock/m/tokens", config.Standard); most != 5 {
		t.Errorf("at most %d, want the parent's 5", most)
	}
	if q, _ := c.Get("openai/gpt-5/requests"); !q.Daily {
		t.Error("a window of a day is not daily")
	}
}

// TestMost_IsWhatClusterGrants: estimates are cut to the most that the cluster can grant, by burst, clamp, the cap of critical calls,
// ancestors and members.
func TestMost_IsWhatClusterGrants(t *testing.T) {
	rate := func(name string, limit, burst int64, change func(*quotav1.Quota)) *quotav1.QuotaStatus {
		of := &quotav1.Rate{Limit: limit, Per: durationpb.New(time.Minute), Burst: burst}
		q := &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Rate{Rate: of}}
		if change != nil {
			change(q)
		}
		return &quotav1.QuotaStatus{Usable: limit, Definition: q}
	}
	shares := func(part float64) func(*quotav1.Quota) {
		return func(q *quotav1.Quota) { q.Policy = &quotav1.Policy{Shares: &quotav1.Shares{Critical: 0.5, Cap: part}} }
	}
	var c Catalog
	c.Set([]*quotav1.QuotaStatus{
		rate("plain", 100, 0, nil), rate("burst", 100, 10, nil), rate("small", 60_000, 1000, nil),
		rate("spent soon", 60_000, 1000, func(q *quotav1.Quota) { q.SpendBy = durationpb.New(100 * time.Millisecond) }),
		rate("wide", 1<<53-1, 1<<53-1, nil), rate("held", 100, 0, func(q *quotav1.Quota) { q.MaxHold = proto.Int64(7) }),
		rate("shares", 100, 0, shares(0)), rate("capped", 100, 0, shares(0.25)),
		rate("child", 100, 0, func(q *quotav1.Quota) { q.Parent = "burst" }),
		{Usable: 300, Definition: &quotav1.Quota{Name: "pool", Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{Members: []*quotav1.PoolMember{
			{Name: "a", Quota: "burst"}, {Name: "b", Quota: "capped"}, {Name: "c", Quota: "gone"},
		}}}}},
	})
	for name, want := range map[string][3]int64{ // without a class, critical, standard
		"plain": {100, 100, 100}, "burst": {6, 6, 6}, "small": {500, 500, 500}, "spent soon": {900, 900, 900},
		"wide": {8706959279582957, 8706959279582957, 8706959279582957}, "held": {7, 7, 7}, "shares": {90, 90, 100}, "capped": {25, 25, 100},
		"child": {6, 6, 6}, "pool": {25, 25, 100}, "gone": {0, 0, 0},
	} {
		for i, class := range []config.Class{config.ClassNone, config.Critical, config.Standard} {
			if got := c.Most(name, class); got != want[i] {
				t.Errorf("%s, class %q: at most %d, want %d", name, class, got, want[i])
			}
		}
	}
}

// TestFind_OfPools: a pool has the kind of its members, and is omitted if its members are ancestors of another pool's.
func TestFind_OfPools(t *testing.T) {
	pool := func(name string, of ...string) *quotav1.QuotaStatus {
		members := make([]*quotav1.PoolMember, len(of))
		for i, quota := range of {
			members[i] = &quotav1.PoolMember{Name: string(rune('a' + i)), Quota: quota}
		}
		return &quotav1.QuotaStatus{Definition: &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{Members: members}}}}
	}
	var c Catalog
	c.Set([]*quotav1.QuotaStatus{
		status("a/m/requests", "a/m/requests-per-day", 10), status("a/m/requests-per-day", "", 30), status("a/m/tokens", "", 50),
		status("b/m/requests", "b/m/requests-per-day", 20), status("b/m/requests-per-day", "", 30), status("b/m/tokens", "", 70),
		pool("p/m/requests", "a/m/requests", "b/m/requests"), pool("p/m/tokens", "a/m/tokens", "b/m/tokens"),
		pool("p/m/requests-per-day", "a/m/requests-per-day", "b/m/requests-per-day"), pool("pp/m/requests", "a/m/requests"),
		status("p/plain/requests", "", 5),
	})
	got := c.Find(nil, "p", "p", "m")
	if len(got.Parts) != 2 || !got.Pooled() || got.Parts["requests-per-day"].Name != "" {
		t.Errorf("got %+v", got)
	}
	if q := got.Parts["requests"]; q.Available != 30 || !q.Daily || !q.Has("b") || q.Has("c") {
		t.Errorf("the pool is %+v", q)
	}
	if c.Find(nil, "p", "p", "plain").Pooled() {
		t.Error("a plain quota counts as a pool")
	}
	if pools := c.Pools("p"); len(pools) != 3 || pools[0].Name != "p/m/requests" {
		t.Errorf("the pools below p are %+v", pools)
	}
}

// TestCatalog_AmountsReturnUnlessTheEstimateCounts: settle: max alone keeps them. Of a pool, they return if they do for a member.
func TestCatalog_AmountsReturnUnlessTheEstimateCounts(t *testing.T) {
	settled := func(name string, by quotav1.SettleMode) *quotav1.QuotaStatus {
		q := status(name, "", 10)
		q.Definition.Settle = by
		return q
	}
	pool := func(name string, members ...string) *quotav1.QuotaStatus {
		of := &quotav1.Pool{}
		for _, quota := range members {
			of.Members = append(of.Members, &quotav1.PoolMember{Name: quota, Quota: quota})
		}
		return &quotav1.QuotaStatus{Definition: &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Pool{Pool: of}}}
	}
	var c Catalog
	c.Set([]*quotav1.QuotaStatus{
		settled("default", quotav1.SettleMode_SETTLE_MODE_UNSPECIFIED), settled("actual", quotav1.SettleMode_SETTLE_MODE_ACTUAL),
		settled("max", quotav1.SettleMode_SETTLE_MODE_MAX), pool("mixed", "max", "default"), pool("kept", "max"),
	})
	for name, want := range map[string][2]bool{
		"default": {true, false}, "actual": {true, true}, "max": {false, false}, "mixed": {true, false}, "kept": {false, false},
	} {
		if q, ok := c.Get(name); !ok || [2]bool{q.Returns, q.Actual} != want {
			t.Errorf("%s: returns %v, actual %v; want %v", name, q.Returns, q.Actual, want)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	f.Add("us.anthropic.claude-sonnet-4-5-20250929-v1:0")
	f.Add("arn:///")
	f.Fuzz(func(t *testing.T, model string) {
		short := Canonical(model)
		if len(short) > len(model) || Canonical(short) != short && Plain(short) == short {
			t.Errorf("%q gives %q, and that gives %q", model, short, Canonical(short))
		}
		for _, r := range Name(model) {
			if r >= utf8.RuneSelf || r < ' ' {
				t.Errorf("%q gives the name %q", model, Name(model))
			}
		}
	})
}

// TestCatalog_IsLoadedAsAWhole: once the list counts as read, each model of it is found. A call that finds none is refused for good.
func TestCatalog_IsLoadedAsAWhole(t *testing.T) {
	list := []*quotav1.QuotaStatus{status("openai/gpt-5/requests", "", 10)}
	for range 5_000 {
		c := new(Catalog)
		var setting sync.WaitGroup
		setting.Go(func() { c.Set(list) })
		for !c.Loaded() {
			runtime.Gosched()
		}
		if !c.Find(nil, "openai", "openai", "gpt-5").Has() {
			t.Fatal("the list is read, and its model is unknown")
		}
		setting.Wait()
	}
}
