package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
)

// TestCheck_Nodes: an address that the cluster's client rejects is found before the start.
func TestCheck_Nodes(t *testing.T) {
	for node, wrong := range map[string]bool{
		"10.0.0.5:7450": false, "quotad-headless.quotad.svc:7450": false, "https://10.0.0.5:7450": false, "[::1]:7450": false,
		"10.0.0.5": true, "dns:///quotad.svc:7450": true, "https://": true, "": true,
	} {
		conf := config.Config{
			Cluster: config.Cluster{Nodes: []string{"10.0.0.4:7450", node}}, Upstreams: map[string]config.Upstream{"openai": {}},
		}.Complete()
		var found []string
		for _, problem := range conf.Check() {
			found = append(found, problem.Error())
		}
		if said := strings.Join(found, "\n"); strings.Contains(said, "cluster.nodes") != wrong || !wrong && said != "" {
			t.Errorf("%q: %s", node, said)
		}
	}
}

// problems returns the problems of a configuration that differs from a right one.
func problems(change func(*config.Config)) string {
	conf := config.Config{
		Cluster: config.Cluster{Nodes: []string{"10.0.0.4:7450"}}, Upstreams: map[string]config.Upstream{"openai": {}},
	}
	change(&conf)
	var found []string
	for _, problem := range conf.Complete().Check() {
		found = append(found, problem.Error())
	}
	return strings.Join(found, "\n")
}

// TestCheck_UpstreamsNames: a name is one segment of a path that the gateway does not use itself.
func TestCheck_UpstreamsNames(t *testing.T) {
	for name, wrong := range map[string]string{
		"billing-api": "", "a": "", "v1": "", "ghe_2": "", strings.Repeat("a", 64): "",
		"as": "has a path", "take": "has a path", "slots": "has a path", "report": "has a path", "livez": "has a path",
		"readyz": "has a path", "metrics": "has a path", "status": "has a path",
		"quota.v1.QuotaService": "a name must have", "quota.v1": "a name must have", "": "a name must have", "a/b": "a name must have",
		"A": "a name must have", "%61": "a name must have", strings.Repeat("a", 65): "a name must have",
	} {
		said := problems(func(c *config.Config) { c.Upstreams[name] = config.Upstream{Base: "https://x.example"} })
		if wrong == "" && said != "" || !strings.Contains(said, wrong) {
			t.Errorf("%q: %s", name, said)
		}
	}
}

// TestCheck_Bases: of an upstream with another name, or without a base of its own. http sends keys in clear text.
func TestCheck_Bases(t *testing.T) {
	for _, c := range []struct {
		name, base string
		plain      bool
		wrong      string
	}{
		{"x", "https://x.example", false, ""},
		{"x", "https://x.example/api/v3", false, ""},
		{"x", "http://x.example", false, "clear text"},
		{"x", "http://x.example", true, ""},
		{"x", "ftp://x.example", true, "is not http or https"},
		{"x", "x.example", false, "with a scheme and a host"},
		{"x", "https://key@x.example", false, "with a scheme and a host"},
		{"x", "https://x.example?key=a", false, "with a scheme and a host"},
		{"x", "", false, "set the URL"},
		{"azure", "", false, "https://NAME.openai.azure.com"},
		{"bedrock", "", false, "https://bedrock-runtime.REGION.amazonaws.com"},
	} {
		said := problems(func(conf *config.Config) { conf.Upstreams[c.name] = config.Upstream{Base: c.base, Plain: c.plain} })
		if c.wrong == "" && said != "" || !strings.Contains(said, c.wrong) {
			t.Errorf("%s at %q: %s", c.name, c.base, said)
		}
	}
}

// TestComplete_KnowsTheProviders: their bases, dialects and hosts, and the treatment of a client that leaves. An upstream with a base of
// its own has no hosts.
func TestComplete_KnowsTheProviders(t *testing.T) {
	conf := config.Config{Upstreams: map[string]config.Upstream{
		"openai": {}, "anthropic": {}, "github": {}, "gemini": {}, "chatgpt": {}, "azure": {Base: "https://x.example"},
		"bedrock": {Base: "https://x.example"}, "other": {Base: "https://x.example"}, "copy": {Base: "https://x.example", Dialect: "openai"},
	}}
	conf.Upstreams["ghe"] = config.Upstream{Base: "https://x.example", Dialect: "github", OnDisconnect: "drain"}
	conf = conf.Complete()
	for name, want := range map[string][4]string{
		"openai":    {"https://api.openai.com", "openai", "api.openai.com", "cancel"},
		"anthropic": {"https://api.anthropic.com", "anthropic", "api.anthropic.com", "cancel"},
		"github":    {"https://api.github.com", "github", "api.github.com uploads.github.com", "cancel"},
		"gemini":    {"https://generativelanguage.googleapis.com", "gemini", "", "cancel"},
		"chatgpt":   {"https://chatgpt.com/backend-api", "codex", "", "cancel"},
		"azure":     {"https://x.example", "azure", "", "cancel"},
		"bedrock":   {"https://x.example", "bedrock", "", "drain"},
		"other":     {"https://x.example", "generic", "", "cancel"},
		"copy":      {"https://x.example", "openai", "", "cancel"},
		"ghe":       {"https://x.example", "github", "", "drain"},
	} {
		u := conf.Upstreams[name]
		if got := [4]string{u.Base, u.Dialect, strings.Join(u.Hosts, " "), u.OnDisconnect}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		modes := [6]string{u.Quotas, u.Auth, u.Unknown, u.Unpriced, u.Paths, u.StreamUsage}
		if modes != [6]string{name, "pass", "refuse", "refuse", "pass", "auto"} {
			t.Errorf("%s: %q", name, modes)
		}
	}
	if got := strings.Join(conf.Listen.TCP, " "); got != "127.0.0.1:7452 [::1]:7452" {
		t.Errorf("listens at %s", got)
	}
	if l := conf.Limits; l.Body != 32<<20 || l.Memory != 256<<20 || l.Drain != time.Minute {
		t.Errorf("the limits are %+v", l)
	}
	wait := [4]time.Duration{config.Critical: 30 * time.Second, config.Standard: 2 * time.Minute, config.Background: 4 * time.Minute}
	for class, want := range wait {
		if got := conf.Wait[config.Class(class)]; got != want {
			t.Errorf("class %d waits for %v, want %v", class, got, want)
		}
	}
	if len(conf.Wait) != 3 {
		t.Errorf("the waits are %v", conf.Wait)
	}
	if seats := conf.Identity.Seats; seats.By != "session" || seats.Count != 64 {
		t.Errorf("seats are %+v", seats)
	}
}
