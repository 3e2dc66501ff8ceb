package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// table formats the report for people: the fleets side by side.
func (r *report) table() string {
	var out strings.Builder
	rows := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	row := func(name string, cell func(f fleetReport) string) {
		fmt.Fprintf(rows, "%s", name)
		for _, f := range r.Fleets {
			fmt.Fprintf(rows, "\t%s", cell(f))
		}
		fmt.Fprintln(rows)
	}
	row("", func(f fleetReport) string { return strings.ToUpper(f.Mode.title()) })
	row("calls answered", func(f fleetReport) string { return fmt.Sprint(f.Requests.Admitted + f.Completions.Admitted) })
	row("refused by a limit", func(f fleetReport) string {
		return fmt.Sprintf("%d (403: %d, 429: %d)", f.Requests.limited()+f.Completions.limited(),
			f.Requests.Limited403+f.Completions.Limited403, f.Requests.Limited429+f.Completions.Limited429)
	})
	row("waves of refusals", func(f fleetReport) string { return fmt.Sprint(f.Waves) })
	row("most refusals of one call", func(f fleetReport) string { return fmt.Sprint(f.LongestChain) })
	row("retries, of all attempts", func(f fleetReport) string { return percent(f.Retries) })
	row("most requests sent in a window", func(f fleetReport) string { return ofLimit(f.Requests.Peak, f.Requests.Limit) })
	row("most completions asked in an hour", func(f fleetReport) string { return ofLimit(f.Completions.Peak, f.Completions.Limit) })
	row("most tokens asked in an hour", func(f fleetReport) string { return ofLimit(f.PeakTokens, tokenLimit) })
	row("request limit used", func(f fleetReport) string { return percent(f.Requests.Utilisation) })
	row("completion limit used", func(f fleetReport) string { return percent(f.Completions.Utilisation) })
	row("tasks finished", func(f fleetReport) string { return fmt.Sprint(f.Tasks) })
	row("calls given up / failed / cut off", func(f fleetReport) string { return fmt.Sprintf("%d / %d / %d", f.GaveUp, f.Failed, f.CutOff) })
	row("fairness within class 1", func(f fleetReport) string { return fmt.Sprintf("%.2f", f.Fairness) })
	for i, c := range classes {
		row("class "+c.name+": calls", func(f fleetReport) string { return fmt.Sprint(f.Classes[i].Calls) })
		row("  wait for a request, p50 / p99", func(f fleetReport) string { return f.Classes[i].Requests.String() })
		row("  wait for a completion, p50 / p99", func(f fleetReport) string { return f.Classes[i].Completions.String() })
	}
	_ = rows.Flush() // into memory
	return out.String()
}

// verdict describes the result in a sentence or more.
func (r *report) verdict() string {
	switch {
	case !r.includes(governed):
		return "No fleet went through quotad, so there is nothing to judge.\n"
	case r.OK:
		return "Through quotad no call was refused" + r.although() + ".\n"
	}
	return "Not as promised:\n  - " + strings.Join(r.Reasons, "\n  - ") + "\n"
}

// although describes what the cluster survived meanwhile.
func (r *report) although() string {
	var blows []string
	if r.Killed != "" {
		led := "no node led any more"
		if r.Failover > 0 {
			led = "no node led for " + short(r.Failover)
		}
		blows = append(blows, fmt.Sprintf("the leader (%s) was killed midway and %s", r.Killed, led))
	}
	if r.Revived > 0 {
		blows = append(blows, fmt.Sprintf("nodes ended by themselves and were started again (%d times: the logs say why)", r.Revived))
	}
	if len(blows) == 0 {
		return ""
	}
	return ", although " + strings.Join(blows, ", and ")
}

func (r *report) includes(m mode) bool {
	for _, f := range r.Fleets {
		if f.Mode == m {
			return true
		}
	}
	return false
}

// String formats p50 and p99.
func (w waitReport) String() string {
	if w.Calls == 0 {
		return "-"
	}
	return short(w.P50) + " / " + short(w.P99)
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", share*100) }

func ofLimit(n, limit int64) string { return fmt.Sprintf("%d of %d", n, limit) }

// short formats a duration with about three digits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
