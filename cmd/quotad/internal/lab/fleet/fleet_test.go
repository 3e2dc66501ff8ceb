package fleet

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/rpc/quotav1"
)

const whole = `
title: a fleet
begins: 2026-03-01T12:00:00Z
for: 2h
network: 5ms-30ms
cluster: {commit: 3ms, kill: [10m, 5m]}
quotas:
  - name: requests
    rate: {limit: 20, per: 1m}
  - name: tokens
    rate: {limit: 30000, per: 1m}
provider:
  limits:
    requests: {limit: 18}
  outages:
    - {quota: tokens, at: 5m, for: 20s}
alone: {retries: 2, obeys: false}
agents:
  - name: feed
    count: 2
    class: background
    weight: 3
    every: 4s
    use: {requests: 1, tokens: {estimate: 500, actual: 200-480}}
    latency: 1s-3s
    patience: forever
  - name: report
    cron: "0 9 * * 1-5"
    use: {requests: 1}
    crashes: [{at: 2m}]
expect:
  classes: strict
  binding: requests
  utilisation: 0.95
  longest_wait: {background: 15m}
`

func TestParse(t *testing.T) {
	f, err := Parse("fleet.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	feed, report := f.Agents[0], f.Agents[1]
	switch {
	case f.Title != "a fleet" || f.For != 2*time.Hour || f.Begins.Hour() != 12:
		t.Errorf("the run: %+v", f)
	case f.Network != Span{Least: 5 * time.Millisecond, Most: 30 * time.Millisecond}:
		t.Errorf("network %+v", f.Network)
	case f.Cluster.Commit.Most != 3*time.Millisecond || f.Cluster.Kills[0] != 5*time.Minute || f.Cluster.Failover.Most == 0:
		t.Errorf("cluster %+v", f.Cluster)
	case f.Provider.Limits["requests"].Limit != 18 || f.Provider.Outages[0].For != 20*time.Second:
		t.Errorf("provider %+v", f.Provider)
	case f.Alone.Retries != 2 || f.Alone.Obeys || f.Alone.First != 500*time.Millisecond:
		t.Errorf("alone %+v", f.Alone)
	case feed.Class != quotav1.Class_CLASS_BACKGROUND || feed.Weight != 3 || feed.Patience != Forever || len(feed.Holders()) != 2:
		t.Errorf("feed %+v", feed)
	case feed.Uses[1] != Use{Quota: "tokens", Estimate: 500, Actual: Range{Least: 200, Most: 480}}:
		t.Errorf("feed uses %+v", feed.Uses)
	case report.Holders()[0] != "report" || !report.Scheduled() || report.Crashes[0].At != 2*time.Minute:
		t.Errorf("report %+v", report)
	case f.Expect.Classes != Strict || f.Expect.Utilisation != 0.95 || f.Expect.Binding != "requests" || f.Expect.Retries != -1:
		t.Errorf("expect %+v", f.Expect)
	}
	next, ok := report.Cron.Next(time.Date(2026, 3, 6, 10, 0, 0, 0, time.UTC)) // a Friday, after nine
	if want := time.Date(2026, 3, 9, 9, 0, 0, 0, time.UTC); !ok || !next.Equal(want) {
		t.Errorf("the report begins at %v, want %v", next, want)
	}
}

// TestMistakes: the parser names each mistake with its line and a way out.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ replace, by, want string }{
		{"for: 2h", "fore: 2h", `fleet.yaml:4: unknown key "fore"`},
		{"requests: 1, tokens", "request: 1, tokens", `unknown key "request" in use; did you mean "requests"?`},
		{"latency: 1s-3s", "latency: 3s-1s", "latency must be a length of time or a range of them"},
		{"cron: \"0 9 * * 1-5\"", "cron: \"0 9 * *\"", "invalid cron"},
		{"cron: \"0 9 * * 1-5\"", "cron: \"TZ=\"", "invalid cron"},
		{"cron: \"0 9 * * 1-5\"", "cron: \"0 9 * * 1-5\"\n    every: 1m", "both every and cron"},
		{"actual: 200-480", "actual: 480-200", "actual must be a whole number or a range of them"},
		{"name: report", "name: feed-1", `two agents are called "feed-1"`},
		{"quota: tokens, at", "quota: token, at", "quota must be one of requests, tokens"},
		{"begins: 2026-03-01T12:00:00Z", "begins: soon", "begins must be a moment"},
		{"every: 4s", "latency: 0", `duplicate key`},
		{"    use: {requests: 1}\n", "", `the agent "report" uses nothing`},
		{"{limit: 20, per: 1m}", "{limit: 20}", "rate has no per"},
		{"  binding: requests\n", "", "utilisation needs binding"},
		{"crashes: [{at: 2m}]", "cuts: [{at: 2m}]", "a cut has no for"},
		{"name: report", "name: feed-1", "fleet.yaml:27: two agents are called"},
		{"estimate: 500, actual: 200-480", "estimate: 500, input: 200-480", "both an estimate and tokens"},
		{"estimate: 500, actual: 200-480", "actual: 500, output: 200-480", "both an estimate and tokens"},
		{"estimate: 500, actual: 200-480", "input: 0", "input must be from 1 to 1073741824 tokens"},
		{"estimate: 500, actual: 200-480", "output: 100-2000, max_output: 1000", "output must be at most max_output"},
		{"estimate: 500, actual: 200-480", "input: 100, max_output: 1000", "max_output needs output"},
		{"estimate: 500, actual: 200-480", "actual: 200-480", "the use of tokens has no estimate"},
		{"{requests: 1, tokens: {estimate: 500, actual: 200-480}}", "{tokens: {input: 100}}\n    batch: true", "which reserve equal amounts"},
		// A call occupies its slots as long as it lasts.
		{"rate: {limit: 30000, per: 1m}", "slots: {limit: 30000}", "actual of tokens: slots are not settled"},
		// Others are simulated only for rates.
		{"requests: {limit: 18}", "requests: {others: 0.95}", "others is 0.95; it must be 0.01 to 0.9"},
		{
			"rate: {limit: 20, per: 1m}\n  - name: tokens\n    rate: {limit: 30000, per: 1m}\nprovider:\n  limits:\n    requests: {limit: 18}",
			"window: {limit: 20, every: hour}\n  - name: tokens\n    rate: {limit: 30000, per: 1m}\nprovider:\n  limits:\n    requests: " +
				"{others: 0.3}",
			"others are simulated on rates only, and requests is none",
		},
		{"utilisation: 0.95", "refused: 2", "refused is 2; it must be 0 to 1"},
		// Text that is drawn and printed.
		{"title: a fleet", `title: "a\u0001fleet"`, "title has control characters"},
		// A name becomes a holder rule, where * matches anything. A call without items does not exist.
		{"name: report", `name: "re*"`, `the name "re*" has blanks, control characters or *`},
		{"name: report", `name: "re\nport"`, "has blanks, control characters or *"},
		{"    use: {requests: 1}\n", "    use: {}\n", `the use of the agent "report" names no quota`},
		// Expectations that match no agent or that cannot fail.
		{"utilisation: 0.95", "utilisation: -1", "utilisation is -1; it must be 0.01 to 2"},
		{"utilisation: 0.95", "finish: 0.5", "finish is 0.5; it must be 1 to 1000"},
		{"class: background", "class: standard", "only one class draws on the binding quota"},
		{"utilisation: 0.95", "longest_wait: {critical: 1m}", "longest_wait is for critical, and no such agent"},
		{"utilisation: 0.95", "tasks: {attempts: 3}", "no agent has retry"},
		{"  binding: requests\n  utilisation: 0.95", "  chain: {alone_wave: 3}", "alone_wave needs binding"},
	} {
		_, err := Parse("fleet.yaml", []byte(strings.Replace(whole, c.replace, c.by, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.by, err, c.want)
		}
	}
	for _, ahead := range []string{"hold: 3", "batch: true"} {
		text := "quotas: [{name: s, slots: {limit: 3}}]\nagents: [{name: a, use: {s: 1}, " + ahead + "}]\n"
		if _, err := Parse("fleet.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "slots, which cannot be had ahead") {
			t.Errorf("%s: %v", ahead, err)
		}
	}
	if _, err := Parse("fleet.yaml", nil); err == nil {
		t.Error("an empty file was taken")
	}
}

// FuzzParse: any bytes are parsed or refused, without a panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(works))
	f.Add([]byte(modelled))
	f.Add([]byte("agents: [{name: a, use: {q: 1}, cron: '@every 1ns'}]\nquotas: [{name: q, slots: {limit: 1}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if fleet, err := Parse("fleet.yaml", data); err == nil && (len(fleet.Agents) == 0 || len(fleet.Quotas) == 0) {
			t.Error("a fleet without agents or quotas was taken")
		}
	})
}

// TestSchema_AgreesWithParser: the schema, which editors use, and the parser accept the same forms.
func TestSchema_AgreesWithParser(t *testing.T) {
	data, err := os.ReadFile("../../../../../docs/fleet.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"the whole": whole, "the works": works, "tokens": modelled}
	files, err := filepath.Glob("../../../../../docs/scenarios/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = string(text)
	}
	accepts := func(text string) error {
		var value any
		if err := yaml.Load([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		plain, err := json.Marshal(value) // a time becomes text again
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(plain, &value); err != nil {
			t.Fatal(err)
		}
		return resolved.Validate(value)
	}
	for name, text := range texts {
		if err := accepts(text); err != nil {
			t.Errorf("the schema refuses %s: %v", name, err)
		}
	}
	for _, mistake := range []struct{ replace, by string }{
		{"for: 2h", "fore: 2h"},
		{"class: background", "class: low"},
		{"every: 4s", "cron: '* * * * *'\n    every: 4s"},
		{"{at: 2m}", "{after: 2m}"},
		{"  binding: requests\n", ""},
		{"    use: {requests: 1}\n", ""},
		{"    use: {requests: 1}\n", "    use: {}\n"},
		{"name: report", `name: "re*"`},
		{"utilisation: 0.95", "utilisation: -1"},
		{"estimate: 500, actual: 200-480", "estimate: 500, input: 200-480"},
		{"estimate: 500, actual: 200-480", "input: 100, max_output: 1000"},
		{"estimate: 500, actual: 200-480", "max_output: 1000"},
	} {
		text := strings.Replace(whole, mistake.replace, mistake.by, 1)
		if text != whole && accepts(text) == nil {
			t.Errorf("the schema accepts %q", mistake.by)
		}
	}
	for _, mistake := range []struct{ replace, by string }{
		{"times: 1", "time: 1"},
		{`says: "error: no", `, ""},
		{"means: failed", "means: lost"},
		{"means: plan_exhausted, says", "means: plan_exhausted, said"},
		{"follows: [triage]", "follows: [triage]\n    every: 1m"},
		{"follows: [triage]", "follows: []"},
		{"    retry:", "    hold: 3\n    retry:"},
		{"max_failures: 4", "max_failures: 0"},
		{"sequential: 1", "sequentially: 1"},
		{"outcomes: {lost: 1}", "outcomes: {gone: 1}"},
	} {
		if text := strings.Replace(works, mistake.replace, mistake.by, 1); text == works || accepts(text) == nil {
			t.Errorf("the schema accepts %q", mistake.by)
		}
	}
}
