package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/providertest"
)

// report is the result of a run. It is written as JSON to the demo's folder.
type report struct {
	Seed     uint64        `json:"seed"`
	Scale    int           `json:"scale"`
	Began    time.Time     `json:"began"`
	Duration time.Duration `json:"duration"`
	// Killed is the id of the killed leader.
	Killed string `json:"killed,omitempty"`
	// Revived counts restarts of nodes that had ended unexpectedly. Restarted says that the killed leader was started again.
	// Failover is the time without a leader.
	Revived   int           `json:"revived,omitempty"`
	Restarted bool          `json:"restarted,omitempty"`
	Failover  time.Duration `json:"failover,omitempty"`
	Fleets    []fleetReport `json:"fleets"`
	// OK and Reasons are the verdict on the fleet through quotad.
	OK      bool     `json:"ok"`
	Reasons []string `json:"reasons,omitempty"`
}

// fleetReport is the result of one fleet. Requests and Completions are the provider's counts, not the agents' reports.
type fleetReport struct {
	Mode        mode      `json:"mode"`
	Requests    apiReport `json:"requests"`
	Completions apiReport `json:"completions"`
	// PeakTokens is the highest number of tokens in any hour of the provider, refused calls included.
	PeakTokens int64 `json:"peakTokens"`
	// Retries is the fraction of the provider's requests that repeat an earlier one.
	Retries float64 `json:"retries"`
	// Waves is the number of sequences of refusals that are at least 2 s apart.
	Waves int `json:"waves"`
	// LongestChain is the highest number of consecutive refusals of one call.
	LongestChain int           `json:"longestChain"`
	Tasks        int           `json:"tasks"`
	Missed       int           `json:"missed"`
	GaveUp       int           `json:"gaveUp"`
	Failed       int           `json:"failed"`
	CutOff       int           `json:"cutOff"`
	Fairness     float64       `json:"fairness"`
	Classes      []classReport `json:"classes"`

	Agents map[string]agentTally `json:"agents"`
}

// apiReport is the provider's counts of one fleet's calls to one API.
type apiReport struct {
	// Arrived is the number of attempts, Admitted the number of served ones.
	Arrived  int64 `json:"arrived"`
	Admitted int64 `json:"admitted"`
	// Limited403 and Limited429 are the numbers of attempts that a limit refused, by status.
	Limited403 int64 `json:"limited403"`
	Limited429 int64 `json:"limited429"`
	// Peak is the highest number of attempts in one window: GitHub's own windows, any period for OpenAI. Limit is its
	// limit.
	Peak  int64 `json:"peak"`
	Limit int64 `json:"limit"`
	// Utilisation is the served calls as a fraction of the limit. For GitHub it covers the first window and those of which
	// the run saw at least half; for OpenAI, the hours since the first call, selected in the same way.
	Utilisation float64 `json:"utilisation"`
}

func (r apiReport) limited() int64 { return r.Limited403 + r.Limited429 }

// classReport is the result of the agents of one class.
type classReport struct {
	Class       string     `json:"class"`
	Calls       int        `json:"calls"`
	Requests    waitReport `json:"requests"`
	Completions waitReport `json:"completions"`
}

// waitReport is the time that calls waited, from the wish to the sending of the last attempt. Calls that the end of the
// demo cut off count with their wait until then.
type waitReport struct {
	Calls int           `json:"calls"`
	P50   time.Duration `json:"p50"`
	P99   time.Duration `json:"p99"`
}

// newFleetReport computes a fleet's report from the provider's records and its agents' tallies.
func newFleetReport(m mode, ran time.Duration, records []providertest.Record, agents map[string]agentTally) fleetReport {
	f := fleetReport{Mode: m, Agents: agents}
	byAPI := make(map[api][]providertest.Record)
	var all []providertest.Record
	repeats := 0
	for _, r := range records {
		if r.Key != m.key() {
			continue
		}
		all = append(all, r)
		byAPI[api(r.API)] = append(byAPI[api(r.API)], r)
		if r.Repeat {
			repeats++
		}
	}
	f.Requests = newAPIReport(byAPI[github], requestLimit)
	f.Requests.Utilisation = windowsUsed(byAPI[github], requestLimit)
	f.Requests.Peak = providertest.PeakWindow(byAPI[github], "core", providertest.Each)
	f.Completions = newAPIReport(byAPI[openai], completionLimit)
	f.Completions.Utilisation = hoursUsed(byAPI[openai], completionLimit, ran)
	f.Completions.Peak = providertest.Peak(byAPI[openai], hour, providertest.Each).Sum
	f.PeakTokens = providertest.Peak(byAPI[openai], hour, providertest.Weights).Sum
	if len(all) > 0 {
		f.Retries = float64(repeats) / float64(len(all))
	}
	f.Waves = waves(all)
	f.addAgents(agents)
	return f
}

func newAPIReport(records []providertest.Record, limit int64) apiReport {
	r := apiReport{Limit: limit}
	for _, record := range records {
		r.Arrived++
		switch {
		case record.Verdict == providertest.Admitted:
			r.Admitted++
		case record.Verdict.Limited() && record.Status == http.StatusForbidden:
			r.Limited403++
		case record.Verdict.Limited():
			r.Limited429++
		}
	}
	return r
}

// hoursUsed returns the used fraction of a sliding limit over the run's hours since the first call. The last hour counts if
// the run saw at least half of it, and the first one always.
func hoursUsed(records []providertest.Record, limit int64, ran time.Duration) float64 {
	if len(records) == 0 {
		return 0
	}
	hours := max(int64((ran+hour/2)/hour), 1)
	counted := time.Duration(hours) * hour
	var sum int64
	for _, r := range records {
		if r.Verdict == providertest.Admitted && r.At-records[0].At < counted {
			sum++
		}
	}
	return float64(sum) / float64(limit*hours)
}

// windowsUsed returns the used fraction of GitHub's windows: the first one, and those of which the run saw at least half. A
// window that has just begun proves nothing.
func windowsUsed(records []providertest.Record, limit int64) float64 {
	if len(records) == 0 {
		return 0
	}
	used := map[int64]int64{}
	var order []int64
	began := map[int64]time.Duration{}
	for _, r := range records {
		if r.Resource != "core" {
			continue
		}
		if _, known := began[r.Window]; !known {
			began[r.Window] = r.At
			order = append(order, r.Window)
		}
		if r.Verdict == providertest.Admitted {
			used[r.Window]++
		}
	}
	end, sum, windows := records[len(records)-1].At, int64(0), int64(0)
	for i, w := range order {
		if i == 0 || end-began[w] >= hour/2 {
			sum += used[w]
			windows++
		}
	}
	if windows == 0 {
		return 0
	}
	return float64(sum) / float64(limit*windows)
}

// waveGap is the shortest time without refusals between two waves: two minutes of the provider.
const waveGap = 2 * time.Minute / scale

func waves(records []providertest.Record) int {
	count, last := 0, time.Duration(0)
	for _, r := range records {
		if !r.Verdict.Limited() {
			continue
		}
		if count == 0 || r.At-last >= waveGap {
			count++
		}
		last = r.At
	}
	return count
}

// addAgents adds up the agents' reports.
func (f *fleetReport) addAgents(agents map[string]agentTally) {
	specialists := []int{}
	for _, c := range classes {
		waits := make(map[api][]time.Duration)
		report := classReport{Class: c.name}
		for _, r := range roles {
			a, known := agents[r.Name]
			if !known || r.Class != c.class {
				continue
			}
			f.Tasks += a.Tasks
			f.Missed += a.Missed
			f.GaveUp += a.count(gaveUp)
			f.Failed += a.count(failed) + a.count(refused)
			f.CutOff += a.count(cutOff)
			f.LongestChain = max(f.LongestChain, a.MostTries-1)
			report.Calls += a.count(done)
			for which, w := range a.Waits {
				waits[which] = append(waits[which], w...)
			}
			if r.Class == client.Standard {
				specialists = append(specialists, a.count(done))
			}
		}
		report.Requests, report.Completions = newWaitReport(waits[github]), newWaitReport(waits[openai])
		f.Classes = append(f.Classes, report)
	}
	f.Fairness = jain(specialists)
}

func newWaitReport(waits []time.Duration) waitReport {
	waits = slices.Clone(waits)
	return waitReport{Calls: len(waits), P50: quantile(waits, 0.5), P99: quantile(waits, 0.99)}
}

// judge fills in the verdict: whether the fleet through quotad stayed within every limit and did its work.
func (r *report) judge(kill bool) {
	object := func(format string, values ...any) { r.Reasons = append(r.Reasons, fmt.Sprintf(format, values...)) }
	for _, f := range r.Fleets {
		if f.Mode != governed {
			continue
		}
		if n := f.Requests.limited() + f.Completions.limited(); n > 0 {
			object("the provider refused %d calls of the fleet through quotad (403 %d, 429 %d)", n,
				f.Requests.Limited403+f.Completions.Limited403, f.Requests.Limited429+f.Completions.Limited429)
		}
		for what, peak := range map[string][2]int64{
			"requests": {f.Requests.Peak, requestLimit}, "completions": {f.Completions.Peak, completionLimit}, "tokens": {f.PeakTokens, tokenLimit},
		} {
			if peak[0] > peak[1] {
				object("a window saw %d %s, above the limit of %d", peak[0], what, peak[1])
			}
		}
		for _, role := range roles {
			a := f.Agents[role.Name]
			if a.Outcomes[github][done] == 0 || (role.ThinkEvery > 0 && a.Outcomes[openai][done] == 0) {
				object("%s got nothing done (%d requests, %d completions) %s", role.Name, a.Outcomes[github][done], a.Outcomes[openai][done], a.Failure)
			}
			if a.Garbled > 0 {
				object("%s wrote %d lines that cannot be read", role.Name, a.Garbled)
			}
		}
		if f.Failed > 0 {
			object("%d calls failed through quotad: %s", f.Failed, firstFailure(f.Agents))
		}
		if kill && (r.Killed == "" || !r.Restarted) {
			object("the leader was not killed and restarted")
		}
	}
	slices.Sort(r.Reasons)
	r.OK = len(r.Reasons) == 0
}

func firstFailure(agents map[string]agentTally) string {
	for _, r := range roles {
		if f := agents[r.Name].Failure; f != "" {
			return r.Name + ": " + f
		}
	}
	return "unknown"
}

// write writes the report as JSON.
func (r *report) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o600)
}
