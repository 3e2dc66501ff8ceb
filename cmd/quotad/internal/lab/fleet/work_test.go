package fleet

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// works has tasks with retry budgets, and agents that continue each other's work.
const works = `
quotas:
  - name: requests
    rate: {limit: 20, per: 1m}
  - name: tokens
    rate: {limit: 30000, per: 1m}
workflows:
  - name: chain
    steps: [{holder: triage}, {holder: review, after: [triage]}]
provider:
  outages:
    - {quota: tokens, at: 5m, for: 20s, means: plan_exhausted, says: "You've hit your usage limit. Try again in {left}."}
alone: {again: 80s-100s}
agents:
  - name: triage
    every: 1m
    tasks: 7
    use: {requests: 1}
  - name: review
    follows: [triage]
    use: {requests: 1}
  - name: publish
    follows: [triage, review]
    use: {requests: 1}
    retry:
      max_failures: 4
      quotas: [tokens]
      load: {tokens: {estimate: 15000, actual: 14000-15000}}
      ttl: 2m
      ends:
        - {task: 2, times: 1, says: "error: no", exit: 3, means: failed}
        - {says: "You've hit your session limit", finished: true}
expect:
  binding: tokens
  tasks:
    delays: [5m, 15m]
    shelved: {publish: 2}
    unfinished: 0
    outcomes: {lost: 1}
    attempts: 9
    alone_attempts: 30
    burnt: {tokens: 100}
    alone_burnt: {tokens: 1000}
  chain: {complete: true, sequential: 1, kept_back: 2, alone_wave: 21}
`

func TestParse_Work(t *testing.T) {
	f, err := Parse("fleet.yaml", []byte(works))
	if err != nil {
		t.Fatal(err)
	}
	outage, publish, tasks := f.Provider.Outages[0], f.Agents[2], f.Expect.Tasks
	retry := publish.Retry
	switch {
	case outage.Means != PlanExhausted || !strings.Contains(outage.Says, "{left}"):
		t.Errorf("outage %+v", outage)
	case f.Alone.Again != Span{Least: 80 * time.Second, Most: 100 * time.Second}:
		t.Errorf("alone %+v", f.Alone)
	case len(f.Workflows) != 1 || f.Workflows[0].Steps[1].After[0] != "triage":
		t.Errorf("workflows %+v", f.Workflows)
	case !slices.Equal(publish.Follows, []string{"triage", "review"}) || publish.Tasks != 7 || f.Agents[1].Tasks != 7:
		t.Errorf("publish %+v", publish)
	case retry.MaxFailures != 4 || retry.TTL != 2*time.Minute || retry.Quotas[0] != "tokens":
		t.Errorf("retry %+v", retry)
	case retry.Load[0] != Use{Quota: "tokens", Estimate: 15000, Actual: Range{Least: 14000, Most: 15000}}:
		t.Errorf("load %+v", retry.Load)
	case tasks.Delays[1] != 15*time.Minute || tasks.Shelved["publish"] != 2 || tasks.Unfinished != 0 || tasks.Outcomes[Lost] != 1:
		t.Errorf("expect %+v", tasks)
	case tasks.Attempts != 9 || tasks.AloneAttempts != 30 || tasks.Burnt["tokens"] != 100 || tasks.AloneBurnt["tokens"] != 1000:
		t.Errorf("expect %+v", tasks)
	case *f.Expect.Chain != ExpectChain{Complete: true, Sequential: 1, KeptBack: 2, AloneWave: 21}:
		t.Errorf("expect %+v", f.Expect.Chain)
	}
	for _, c := range []struct {
		task, attempt, exit int
		finished            bool
	}{{2, 1, 3, false}, {2, 2, 1, true}, {1, 1, 1, true}} {
		if end := retry.Of(c.task, c.attempt); end.Exit != c.exit || end.Finished != c.finished {
			t.Errorf("attempt %d of task %d ends with %+v", c.attempt, c.task, end)
		}
	}
}

func TestMistakes_InWork(t *testing.T) {
	for _, c := range []struct{ replace, by, want string }{
		{"follows: [triage]", "follows: [triag]", `"triag", which the agent "review" follows, is no agent, or several`},
		{"follows: [triage]", "follows: [review]", "the agents follow each other in a cycle"},
		{"follows: [triage]", "follows: [publish]", "the agents follow each other in a cycle"},
		{"follows: [triage]", "follows: []", "names nobody, or one twice"},
		{"follows: [triage]", "follows: [triage, triage]", "names nobody, or one twice"},
		{"follows: [triage]", "follows: [triage]\n    cron: \"0 * * * *\"", "both follows and cron"},
		{"every: 1m", "every: 1m\n    count: 2", "is no agent, or several"},
		{"{holder: review, after", "{holder: reviewer, after", `step "reviewer" of the workflow "chain" is no agent`},
		{"after: [triage]}", "after: [review]}", "the steps form a cycle"},
		{"    retry:", "    batch: true\n    retry:", "both retry and batch or hold"},
		{"quotas: [tokens]", "quotas: [tokens, tokens]", "quotas names one twice"},
		{"max_failures: 4", "max_failures: 101", "max_failures"},
		{"load: {tokens: {estimate: 15000, actual", "load: {tokens: {estimates: 15000, actual", "unknown key"},
		{`says: "error: no", `, "", "an end says nothing"},
		{"means: failed", "means: lost", "means must be one of"},
		{`, says: "You've hit your usage limit. Try again in {left}."`, "", "means needs says"},
		{"again: 80s-100s", "again: 0-100s", "again must be longer than 0"},
		{"shelved: {publish: 2}", "shelved: {publisher: 2}", `unknown key "publisher"`},
		{"outcomes: {lost: 1}", "outcomes: {gone: 1}", `unknown key "gone"`},
		{"delays: [5m, 15m]", "delays: [5m, soon]", "a delay"},
	} {
		text := strings.Replace(works, c.replace, c.by, 1)
		_, err := Parse("fleet.yaml", []byte(text))
		if text == works || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.by, err, c.want)
		}
	}
}
