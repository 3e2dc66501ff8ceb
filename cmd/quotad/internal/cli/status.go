package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) statusCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show members, leader, index and health as a node sees them",
		Long: `Shows what the first node that answers knows: its own role and checks, the leader, the members. It needs no leader.

With --check it prints one line and ends with 0 if the node is healthy and knows a leader, and with 1 otherwise, also
where no node answers: what a container's HEALTHCHECK wants.`,
		Example: `  quotad status
  quotad status --server 10.0.0.2:7450 --check
  quotad status -o json | jq -r .leader`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			status, err := getStatus(cmd.Context(), c)
			switch {
			case err != nil && check:
				return fail(ExitFailure, "", "not healthy: %w", err)
			case err != nil:
				return err
			case check:
				return a.checkStatus(status)
			case a.format == formatJSON:
				return output.JSON(a.Out, status)
			}
			return a.printStatus(status)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "print one line and end with 0 (healthy) or 1")
	return a.clientFlags(cmd)
}

func getStatus(ctx context.Context, c *cluster) (*quotav1.GetStatusResponse, error) {
	return call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.GetStatusResponse, error) {
		return n.admin.GetStatus(ctx, &quotav1.GetStatusRequest{})
	})
}

// checkStatus judges a node for a health check.
func (a *App) checkStatus(status *quotav1.GetStatusResponse) error {
	var wrong []string
	for _, check := range status.Checks {
		if !check.Ok {
			wrong = append(wrong, check.Name+": "+check.Message)
		}
	}
	if status.Leader == "" {
		wrong = append(wrong, "no leader is known")
	}
	if len(wrong) > 0 {
		return fail(ExitFailure, "", "%s is not healthy: %s", status.Node, strings.Join(wrong, "; "))
	}
	_, err := fmt.Fprintf(a.Out, "%s is healthy: %s, leader %s\n", output.Visible(status.Node), status.Role, output.Visible(status.Leader))
	return err
}

func (a *App) printStatus(status *quotav1.GetStatusResponse) error {
	table := output.Table{}
	table.Add("cluster", output.Or(status.ClusterId))
	table.Add("node", status.Node+" ("+status.Role+")")
	switch {
	case status.Role == "leader":
	case status.LeaderAddress != "":
		table.Add("view", fmt.Sprintf("as %s sees it; the leader %s sees more: --server %s", status.Node, status.Leader, status.LeaderAddress))
	default:
		table.Add("view", fmt.Sprintf("as %s sees it", status.Node))
	}
	table.Add("leader", output.Or(strings.TrimSpace(status.Leader+" "+status.LeaderAddress)))
	table.Add("term", output.Int(status.Meta.GetTerm()))
	table.Add("index", fmt.Sprintf("%d applied, %d committed, %d last, %d in snapshot",
		status.AppliedIndex, status.CommitIndex, status.LastIndex, status.SnapshotIndex))
	if status.Leader == "" && status.LastIndex > status.AppliedIndex {
		table.Add("", fmt.Sprintf("%d entries wait for a leader: what it holds is older", status.LastIndex-status.AppliedIndex))
	}
	table.Add("holds", fmt.Sprintf("%d quotas, %d leases, %d waiting, %d sessions",
		status.Quotas, status.Leases, status.Waiting, status.Sessions))
	table.Add("version", status.Version+", up "+output.Duration(status.Uptime))
	if status.Testing {
		table.Add("testing", "yes: this node opens what only a fault suite needs")
	}
	if err := table.Write(a.Out); err != nil {
		return err
	}
	if err := a.printMembers(status); err != nil {
		return err
	}
	checks := output.Table{Header: []string{"CHECK", "STATE", "MESSAGE"}}
	for _, check := range status.Checks {
		state := "ok"
		if !check.Ok {
			state = "FAILED"
		}
		checks.Add(check.Name, state, check.Message)
	}
	_, _ = fmt.Fprintln(a.Out)
	return checks.Write(a.Out)
}

func (a *App) printMembers(status *quotav1.GetStatusResponse) error {
	table := output.Table{Header: []string{"MEMBER", "ROLE", "RAFT", "API", "LAST CONTACT", "INDEX"}}
	for _, member := range status.Members {
		role := "learner"
		switch {
		case member.Leader:
			role = "leader"
		case member.Voter:
			role = "voter"
		}
		index := output.Dash
		if member.MatchIndex > 0 {
			index = output.Int(member.MatchIndex)
		}
		contact := output.Duration(member.LastContact)
		if member.LastContact == nil && status.Role == "leader" {
			contact = "no answer" // a leader asks all; others do not know
		}
		table.Add(member.Id, role, member.RaftAddress, output.Or(member.ApiAddress), contact, index)
	}
	_, _ = fmt.Fprintln(a.Out)
	return table.Write(a.Out)
}
