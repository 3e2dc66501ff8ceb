package gatewayfile

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
)

const whole = `
listen: {tcp: ["127.0.0.1:7452"]}
cluster: {nodes: ["10.0.0.5:7450", "10.0.0.6:7450"], token: {file: /etc/gw.token}}
machine: node-7
identity:
  names: [picard]
  tools: {claude: {class: standard}, gh: {class: critical}}
  seats: {by: session, count: 32}
upstreams:
  anthropic: {}
  openai: {unknown: observe, fail_open: {rate: 2/s, for: 10m}}
  github: {secondary: true}
  ghe: {dialect: github, base: "https://ghe.corp.example/api/v3", batch: true}
  billing-api: {base: "https://billing.corp.example", dialect: generic, rules: [{path: "/v2/*", use: {billing/requests: 1}}]}
models:
- {upstream: anthropic, match: "claude-opus-4*", as: opus-4}
wait: {background: 3m}
lease: 45s
limits: {body: 16MiB, drain: 30s}
`

func TestParse_AddsDefaults(t *testing.T) {
	c, err := Parse("gateway.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	open := c.Upstreams["openai"].FailOpen
	switch {
	case c.Upstreams["anthropic"].Base != "https://api.anthropic.com", c.Upstreams["github"].Dialect != "github":
		t.Error("the known upstreams have no defaults")
	case !c.Upstreams["ghe"].Batch || c.Upstreams["github"].Batch:
		t.Error("batch is not read")
	case open.Count != 2 || open.Per != time.Second || open.For != 10*time.Minute:
		t.Errorf("fail_open is %+v", open)
	case c.Wait[config.Background] != 3*time.Minute || c.Wait[config.Critical] != 30*time.Second:
		t.Errorf("wait is %v", c.Wait)
	case c.Lease != 45*time.Second:
		t.Errorf("lease is %v", c.Lease)
	case c.Limits.Body != 16<<20 || c.Limits.Memory != config.DefaultMemory:
		t.Errorf("limits are %+v", c.Limits)
	case c.Identity.Tools["gh"].Class != config.Critical:
		t.Errorf("identity is %+v", c.Identity)
	}
}

// every has every key of a configuration, with a value that is not the default.
const every = `
listen: {tcp: ["0.0.0.0:7452"], unix: /run/gw.sock, tls: {cert: /tls/crt, key: /tls/key}, insecure: true}
hosts: [gateway.corp]
origins: ["https://tools.example"]
tokens: /etc/tokens.yaml
trust: everyone-on-this-machine
cluster: {nodes: ["a:1"], token: {credential: gw}, ca: /tls/ca}
machine: {env: QUOTAD_TEST_MACHINE}
identity: {names: [picard], tools: {gh: {class: critical}}, seats: {by: agent, count: 32}}
root: openai
models: [{upstream: openai, match: "gpt-5*", as: gpt-5, fallback: [mini], for: {class: background, holder: "x-*"}}]
state: /var/learnt.json
wait: {critical: 1s, standard: 2s, background: 3s}
lease: 45s
limits: {body: 1MiB, memory: 2MiB, drain: 30s, calls: 7}
upstreams:
  openai:
    dialect: openai
    base: http://provider.example/
    plain: true
    quotas: o
    auth: inject
    keys:
    - {name: a, from: {env: A}, for: {class: critical, holder: "a-*"}, quotas: o-a}
    - {name: b, from: {file: /keys/b}}
    pool: [a, b]
    parts: [requests, tokens]
    also: [{holder: "red-*", use: {team/red/cost: cost}}]
    unknown: observe
    unpriced: free
    paths: refuse
    fail_open: {rate: 30/m, for: 10m}
    on_disconnect: drain
    stream_usage: "on"
    overloaded: {retries: 2}
    hosts: [api.provider.example]
    first_byte: 5m
  github: {secondary: true}
  jira: {base: "https://jira.example", batch: true, rules: [{method: POST, path: /rest/*, use: {jira/requests: 2}}]}
`

// TestParse_LosesNoKey: each value arrives where the gateway reads it.
func TestParse_LosesNoKey(t *testing.T) {
	t.Setenv("QUOTAD_TEST_MACHINE", "node-9")
	got, err := Parse("/etc/gateway.yaml", []byte(every))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Config{
		Listen: config.Listen{TCP: []string{"0.0.0.0:7452"}, Unix: "/run/gw.sock", Cert: "/tls/crt", Key: "/tls/key", Insecure: true},
		Hosts:  []string{"gateway.corp"}, Origins: []string{"https://tools.example"}, Tokens: "/etc/tokens.yaml", Trust: true,
		Cluster: config.Cluster{Nodes: []string{"a:1"}, Token: &config.Source{Credential: "gw"}, CA: "/tls/ca"}, Machine: "node-9",
		Identity: config.Identity{
			Names: []string{"picard"}, Tools: map[string]config.Tool{"gh": {Class: config.Critical}},
			Seats: config.Seats{By: "agent", Count: 32},
		},
		Root: "openai", State: "/var/learnt.json", Lease: 45 * time.Second,
		Models: []config.Model{{
			Upstream: "openai", Match: "gpt-5*", As: "gpt-5", Fallback: []string{"mini"},
			For: config.Selector{Class: config.Background, Holder: "x-*"},
		}},
		Limits: config.Limits{Body: 1 << 20, Memory: 2 << 20, Drain: 30 * time.Second, Calls: 7},
		Upstreams: map[string]config.Upstream{
			"openai": {
				Dialect: "openai", Base: "http://provider.example", Plain: true, Quotas: "o", Auth: "inject",
				Keys: []config.Key{
					{
						Name: "a", From: config.Source{Env: "A"}, For: config.Selector{Class: config.Critical, Holder: "a-*"},
						Quotas: "o-a",
					},
					{Name: "b", From: config.Source{File: "/keys/b"}},
				},
				Pool: []string{"a", "b"}, Parts: []string{"requests", "tokens"},
				Also:    []config.Also{{Holder: "red-*", Use: map[string]string{"team/red/cost": "cost"}}},
				Unknown: "observe", Unpriced: "free", Paths: "refuse",
				FailOpen:     &config.FailOpen{Count: 30, Per: time.Minute, For: 10 * time.Minute},
				OnDisconnect: "drain", StreamUsage: "on", Overloaded: 2, Hosts: []string{"api.provider.example"}, FirstByte: 5 * time.Minute,
			},
			"github": {Secondary: true},
			"jira": {
				Base: "https://jira.example", Batch: true,
				Rules: []config.Rule{{Method: "POST", Path: "/rest/*", Use: map[string]int64{"jira/requests": 2}}},
			},
		},
	}
	want.Wait = make(map[config.Class]time.Duration)
	for class := config.Critical; class <= config.Background; class++ {
		want.Wait[class] = time.Duration(class) * time.Second
	}
	if want = want.Complete(); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	for _, name := range upstreamKeys {
		if !strings.Contains(every, name+":") {
			t.Errorf("the key %s of upstreams is missing in this test", name)
		}
	}
}

// TestParse_FilesAreRelativeToItsFolder: a service has another working directory than a shell.
func TestParse_FilesAreRelativeToItsFolder(t *testing.T) {
	t.Setenv("QUOTAD_TEST_SECRETS", "/run/secrets")
	t.Setenv("HOME", "/home/picard")
	const text = `
listen: {tcp: ["127.0.0.1:7452"], tls: {cert: gw.pem, key: "$QUOTAD_TEST_SECRETS/gw-key.pem"}}
cluster: {nodes: [a:1], token: {file: token}, ca: ../ca.pem}
tokens: tokens.yaml
state: ~/learnt.json
upstreams: {openai: {}}
`
	c, err := Parse("/etc/quotad/gateway.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		c.Listen.Cert: "/etc/quotad/gw.pem", c.Listen.Key: "/run/secrets/gw-key.pem", c.Cluster.Token.File: "/etc/quotad/token",
		c.Cluster.CA: "/etc/ca.pem", c.Tokens: "/etc/quotad/tokens.yaml", c.State: "/home/picard/learnt.json",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestParse_ListensOnASocketOfTheSystemAsWell: without listen, the gateway also uses a socket in the system's folder for
// sockets, if there is one.
func TestParse_ListensOnASocketOfTheSystemAsWell(t *testing.T) {
	const silent, said = "cluster: {nodes: [a:1]}\nupstreams: {openai: {}}\n", "listen: {tcp: [\"127.0.0.1:1\"]}\n"
	own := t.TempDir()
	for name, of := range map[string]struct{ text, service, user, want string }{
		"nothing":         {silent, "", "", ""},
		"a user":          {silent, "", own, own + "/quotad/gateway.sock"},
		"a service":       {silent, "/run/quotad", own, "/run/quotad/gateway.sock"},
		"several folders": {silent, "/run/quotad:/run/b", "", "/run/quotad/gateway.sock"},
		"no such folder":  {silent, "", own + "/none", ""},
		"relative":        {silent, "run", "", ""},
		"too long":        {silent, "/run/" + strings.Repeat("x", 100), "", ""},
		"a port named":    {silent + said, "/run/quotad", own, ""},
	} {
		t.Setenv("RUNTIME_DIRECTORY", of.service)
		t.Setenv("XDG_RUNTIME_DIR", of.user)
		c, err := Parse("gateway.yaml", []byte(of.text))
		ports := len(c.Listen.TCP)
		if err != nil || c.Listen.Unix != of.want || (of.text == silent) != (ports == 2) {
			t.Errorf("%s: listens at %+v, %v; want the socket %q", name, c.Listen, err, of.want)
		}
	}
}

func TestParse_RefusesByLine(t *testing.T) {
	for want, text := range map[string]string{
		`g:2: unknown key "upstrems" in the file; did you mean "upstreams"?`: "cluster: {nodes: [a:1]}\nupstrems: {}",
		`g:3: unknown key "unknwn" in upstreams.openai`:                      "cluster: {nodes: [a:1]}\nupstreams:\n  openai: {unknwn: refuse}",
		`g:2: this file must not have secrets in it`: "cluster: {nodes: [a:1]}\ntokens: sk-abc\nupstreams: {openai: " +
			"{}}",
		`g:3: upstreams.azure.base: set the URL, such as https://NAME`: "cluster: {nodes: [a:1]}\nupstreams:\n  azure: {}",
		`g:4: upstreams.openai.auth: every process that reaches the port`: "cluster: {nodes: [a:1]}\nupstreams:\n  openai:\n    auth: inject\n" +
			"    keys: [{name: a, from: {env: K}}]",
		`upstreams.openai.pool: duplicate "a"`: "cluster: {nodes: [a:1]}\ntrust: everyone-on-this-machine\nupstreams:\n  openai:\n" +
			"    auth: inject\n    keys: [{name: a, from: {env: K}}]\n    pool: [a, a]",
		`g:1: listen.tcp: 0.0.0.0:1 is not a loopback address: set listen.tls`: "listen: {tcp: [\"0.0.0.0:1\"]}\n" +
			"cluster: {nodes: [a:1]}\nupstreams: {openai: {}}",
		`g:3: upstreams.take: the gateway itself has a path`: "cluster: {nodes: [a:1]}\nupstreams:\n  take: {base: \"https://x.example\"}",
		`g:2: upstreams.openai.fail_open: set both`:          "cluster: {nodes: [a:1]}\nupstreams: {openai: {fail_open: {rate: 2/s}}}",
		`g:2: upstreams.github.batch: with secondary: true each call holds a slot of github/concurrent`: "cluster: {nodes: [a:1]}\n" +
			"upstreams: {github: {secondary: true, batch: true}}",
		`g:2: upstreams.openai.batch: calls of the dialect openai are settled by the usage`: "cluster: {nodes: [a:1]}\n" +
			"upstreams: {openai: {batch: true}}",
		`g:2: upstreams.x.batch: calls draw on nothing`: "cluster: {nodes: [a:1]}\nupstreams: {x: {base: \"https://x\", batch: true}}",
		`g:6: upstreams.x.rules[1].use: calls draw on 2 quotas at once`: "cluster: {nodes: [a:1]}\nupstreams:\n  x:\n" +
			"    base: https://x\n    batch: true\n    rules: [{path: /a, use: {x/a: 1}}, {path: /b, use: {x/a: 1, x/b: 2}}]",
		`g:6: upstreams.x.rules[0].use: x/tokens is settled by the usage of answers`: "cluster: {nodes: [a:1]}\nupstreams:\n  x:\n" +
			"    base: https://x\n    batch: true\n    rules: [{path: /a, use: {x/tokens: 1}}]",
		`g:6: upstreams.x.rules[0].use: 2147483649 of x/a must be at most 2147483648`: "cluster: {nodes: [a:1]}\nupstreams:\n  x:\n" +
			"    base: https://x\n    batch: true\n    rules: [{path: /a, use: {x/a: 2147483649}}]",
		`g:2: upstreams.github.also: only calls of models draw on it; those of the dialect github draw on GitHub's limits`: "cluster: " +
			"{nodes: [a:1]}\nupstreams: {github: {also: [{use: {team/requests: requests}}]}}",
		`g:5: upstreams.x.also: only calls of models draw on it; those of the dialect generic draw on what rules say`: "cluster: " +
			"{nodes: [a:1]}\nupstreams:\n  x:\n    base: https://x\n    also: [{holder: \"red-*\", use: {team/requests: requests}}]\n" +
			"    rules: [{path: /a, use: {x/a: 1}}]",
		`g:2: upstreams.github.batch must be true or false`: "cluster: {nodes: [a:1]}\nupstreams: {github: {batch: 100}}",
		`g:1: cluster.nodes: name at least one node`:        "upstreams: {openai: {}}",
		`g: the file is empty`:                              "",
		`limits.body must be a size, not "32 megs"`:         "limits: {body: 32 megs}\ncluster: {nodes: [a:1]}\nupstreams: {openai: {}}",
		`"http://x" sends keys in clear text: use https`:    "cluster: {nodes: [a:1]}\nupstreams: {x: {base: \"http://x\"}}",
	} {
		if _, err := Parse("g", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v\nwant  %s", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("limits: {body: 1KiB}"))
	f.Add([]byte("machine: {env: }\nmodels: [{}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := Parse("fuzz", data); err == nil && len(c.Check()) > 0 {
			t.Errorf("%q is taken, although %v", data, c.Check())
		}
	})
}
