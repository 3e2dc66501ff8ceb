// Package report presents the result of a run: verdicts on the terminal, one page with a picture, one line in a summary.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/check"
)

// Print prints the verdicts of a run and its figures.
func Print(w io.Writer, result *check.Result) {
	var b strings.Builder
	for _, v := range result.Verdicts {
		fmt.Fprintf(&b, "%-15s %-13s %9d looked at", v.Checker, v.Outcome, v.Checked)
		if v.Count > 0 {
			fmt.Fprintf(&b, ", %d violations", v.Count)
		}
		b.WriteByte('\n')
		for _, example := range v.Examples {
			fmt.Fprintf(&b, "    %s\n", example)
		}
	}
	s := &result.Stats
	fmt.Fprintf(&b,
		"%d calls, %d answered, %d unknown; %d entries, %d terms, %d snapshots installed, %d leases expired, %d dead fences; provider's peak "+
			"%d\n",
		s.Calls, s.Answered, s.Unknown, s.Entries, s.Terms, s.Installed, s.Expired, s.Stale, s.ProviderPeak)
	for _, kind := range slices.Sorted(maps.Keys(s.Drawn)) {
		fmt.Fprintf(&b, "%-36s drawn %3d times, injected %3d, while calls were in flight %3d\n",
			kind, s.Drawn[kind], s.Injected[kind], s.Faults[kind])
	}
	fmt.Fprintf(&b, "%d callers went away before the answer to a request without an id\n", s.Gone)
	for _, row := range Outages(s.Outages) {
		fmt.Fprintf(&b, "%-22s %3d times  without service: median %6.2f s  p99 %6.2f s  longest %6.2f s\n", row.Kind, row.Times, row.Median,
			row.P99, row.Longest)
	}
	fmt.Fprintf(&b, "recovery after the last fault: %.2f s\n%s\n", s.Recovery, strings.ToUpper(string(result.Outcome())))
	_, _ = io.WriteString(w, b.String())
}

// Outage is the distribution of times without service of one kind of fault, in seconds.
type Outage struct {
	Kind                 string
	Times                int
	Median, P99, Longest float64
}

// Outages summarises times without service by kind, sorted by kind.
func Outages(all map[string][]float64) []Outage {
	var rows []Outage
	for kind, times := range all {
		slices.Sort(times)
		rows = append(rows, Outage{kind, len(times), quantile(times, 0.5), quantile(times, 0.99), times[len(times)-1]})
	}
	slices.SortFunc(rows, func(a, b Outage) int { return strings.Compare(a.Kind, b.Kind) })
	return rows
}

// quantile is the smallest value that at least a share q of the sorted values does not exceed.
func quantile(sorted []float64, q float64) float64 {
	at := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}

// Line is a run in the summary.
type Line struct {
	Start time.Time `json:"start"`
	Seed  uint64    `json:"seed"`
	Mix   string    `json:"mix"`
	Nodes int       `json:"nodes"`
	// Hosts is the number of concurrent nodes: the successor of a replaced node runs on its host.
	Hosts   int                      `json:"hosts"`
	Network string                   `json:"network"`
	Disk    string                   `json:"disk"`
	Defect  string                   `json:"defect,omitempty"`
	Seconds float64                  `json:"seconds"`
	Outcome check.Outcome            `json:"outcome"`
	Checks  map[string]check.Outcome `json:"checks"`
	Stats   check.Stats              `json:"stats"`
}

// hosts counts the hosts of nodes.
func hosts(nodes []string) int {
	at := map[string]bool{}
	for _, node := range nodes {
		host, _, _ := strings.Cut(node, ".")
		at[host] = true
	}
	return len(at)
}

// Summarize adds a line about a run to a file.
func Summarize(path string, result *check.Result) error {
	line := Line{
		Start: result.Facts.Start, Seed: result.Facts.Seed, Mix: result.Facts.Mix, Nodes: len(result.Facts.Nodes),
		Hosts: hosts(result.Facts.Nodes), Network: result.Facts.Network,
		Disk: result.Facts.Disk, Defect: result.Facts.Defect, Seconds: float64(result.Facts.Ended-result.Facts.Began) / 1e9,
		Outcome: result.Outcome(), Checks: map[string]check.Outcome{}, Stats: result.Stats,
	}
	for _, v := range result.Verdicts {
		line.Checks[v.Checker] = v.Outcome
	}
	data, err := json.Marshal(&line)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if _, err := file.Write(append(data, '\n')); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}
