package view

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
)

// maxShown is the number of waiting Reserves in the picture.
const maxShown = 8

// Top returns a picture of any cluster, line by line: its members, waiting Reserves, recent events, and quotas. A nil queue
// is omitted.
func Top(v Cluster, queue *Queue, now time.Time) []string {
	var out strings.Builder
	out.WriteString(v.summary() + "\n\n")
	out.WriteString(v.memberTable() + "\n")
	if queue != nil {
		out.WriteString(waiters(v, queue, now))
		for _, line := range queue.Latest() {
			out.WriteString(output.Visible(line) + "\n")
		}
		if len(queue.Latest()) > 0 {
			out.WriteString("\n")
		}
	}
	switch {
	case len(v.Quotas) > 0:
		out.WriteString(v.QuotaTable())
	case v.Status.GetLeader() == "":
		out.WriteString("no leader: nothing is granted; what is consumed may be spent until its spend-by\n")
	default:
		out.WriteString("no quotas\n")
	}
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
}

func (v Cluster) summary() string {
	if v.Status == nil {
		return "no node answers: " + output.Visible(strings.Join(v.IDs, ", "))
	}
	leader := "no leader"
	if v.Status.GetLeader() != "" {
		leader = fmt.Sprintf("leader %s (term %d)", output.Visible(v.Status.GetLeader()), v.Status.GetMeta().GetTerm())
	}
	return fmt.Sprintf("cluster %s   %s   leases %d   waiting %d   sessions %d",
		output.Or(output.Visible(v.Status.GetClusterId())), leader, v.Leases, v.Waiting, v.Status.GetSessions())
}

// memberTable lists the members as the leader knows them, or else the node that answered.
func (v Cluster) memberTable() string {
	var out strings.Builder
	rows := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "member\trole\tapi\tlast contact\tindex\tversion")
	for _, m := range v.Status.GetMembers() {
		role := "learner"
		switch {
		case m.GetLeader():
			role = "LEADER"
		case m.GetVoter():
			role = "voter"
		}
		contact, index := output.Duration(m.GetLastContact()), output.Dash
		switch {
		case m.GetLeader() && m.GetLastContact() == nil:
			contact = output.Dash
		case m.GetLastContact() == nil && v.Leader >= 0:
			contact = "no answer" // a leader contacts all members; other nodes have no such data
		}
		if m.GetMatchIndex() > 0 {
			index = output.Int(m.GetMatchIndex())
		}
		fmt.Fprintf(rows, "%s\t%s\t%s\t%s\t%s\t%s\n", output.Visible(m.GetId()), role, output.Or(output.Visible(m.GetApiAddress())), contact,
			index,
			output.Or(output.Visible(m.GetVersion())))
	}
	_ = rows.Flush() // into memory
	return out.String()
}

// waiters lists the known waiting Reserves, and counts the others.
func waiters(v Cluster, queue *Queue, now time.Time) string {
	known := queue.Waiting()
	if len(known) == 0 && v.Waiting == 0 {
		return ""
	}
	var out strings.Builder
	rows := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "waiting\tfor\tsince")
	for _, w := range known[:min(len(known), maxShown)] {
		fmt.Fprintf(rows, "%s\t%s\t%.0f s\n", output.Visible(w.Holder), output.Visible(w.Quota), max(now.Sub(w.Since), 0).Seconds())
	}
	_ = rows.Flush() // into memory
	if more := v.Waiting - int64(min(len(known), maxShown)); more > 0 {
		fmt.Fprintf(&out, "and %d more\n", more)
	}
	return out.String() + "\n"
}
