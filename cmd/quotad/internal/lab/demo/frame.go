package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/view"
)

// frame returns the live picture, line by line.
func (d *demo) frame(s scene, passed time.Duration, notes []string) []string {
	var out strings.Builder
	fmt.Fprintf(&out, "quotad demo   %s of %s   an hour of the provider lasts %s   seed %d\n\n", view.Clock(passed),
		view.Clock(d.options.Duration), hour, d.options.Seed)
	if s.cluster != nil {
		out.WriteString(s.cluster.Line() + "\n\n")
		out.WriteString(s.cluster.QuotaTable() + "\n")
	}
	out.WriteString(d.agentTable(s) + "\n")
	for _, m := range d.options.modes() {
		fmt.Fprintf(&out, "%-15s %s\n", m.title(), providerLine(s, m))
	}
	out.WriteString("\n")
	for _, note := range notes {
		out.WriteString(note + "\n")
	}
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
}

func (d *demo) agentTable(s scene) string {
	var out strings.Builder
	rows := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprint(rows, "agent\tclass")
	for _, m := range d.options.modes() {
		fmt.Fprintf(rows, "\t%s: calls\ttasks\twait p99", m.title())
	}
	fmt.Fprintln(rows)
	for _, r := range roles {
		fmt.Fprintf(rows, "%s\t%d", r.Name, int(r.Class)-1)
		for _, m := range d.options.modes() {
			a := s.agents[m].one(r.Name)
			fmt.Fprintf(rows, "\t%d\t%d\t%s", a.count(done), a.Tasks, short(quantile(append(a.Waits[github], a.Waits[openai]...), 0.99)))
		}
		fmt.Fprintln(rows)
	}
	_ = rows.Flush() // into memory
	return out.String()
}

// providerLine describes the provider's counts of a fleet.
func providerLine(s scene, m mode) string {
	requests, completions := s.totals[m][api("github")], s.totals[m][api("openai")]
	return fmt.Sprintf("answered %d, refused %d (403: %d, 429: %d); requests %d of %d, new hour in %.0f s; completions %d of %d, tokens "+
		"%d of %d",
		requests.Admitted+completions.Admitted, requests.Limited+completions.Limited, requests.Limited403+completions.Limited403,
		requests.Limited429+completions.Limited429, requests.Used, requestLimit, requests.ResetIn.Seconds(),
		min(completions.Used, completionLimit), completionLimit, completions.UsedTokens, tokenLimit)
}

// plain returns the picture as a few lines, for outputs that are not a terminal.
func (d *demo) plain(s scene, passed time.Duration) []string {
	var lines []string
	if s.cluster != nil {
		leader := "none"
		if s.cluster.Leader >= 0 {
			leader = s.cluster.IDs[s.cluster.Leader]
		}
		parts := []string{fmt.Sprintf("%s cluster: leader %s, leases %d, waiting %d", view.Clock(passed), leader, s.cluster.Leases,
			s.cluster.Waiting)}
		for _, q := range s.cluster.Quotas {
			parts = append(parts, fmt.Sprintf("%s %d of %d left", q.GetDefinition().GetName(), q.GetAvailable(), q.GetUsable()))
		}
		lines = append(lines, strings.Join(parts, ", "))
	}
	for _, m := range d.options.modes() {
		lines = append(lines, fmt.Sprintf("%s %s: %s", view.Clock(passed), m.title(), providerLine(s, m)))
	}
	return lines
}
