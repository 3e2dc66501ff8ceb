package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) statusCommand() *cobra.Command {
	var check, all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show members, leader, index and health as one node sees them",
		Long: `Show what the first node that answers knows: its own role and checks, the leader, the members. It needs no leader.

With --check it prints one line, and exits with 0 if the node is healthy and knows a leader, with 1 otherwise, also if no
node answers. Use it for a container's HEALTHCHECK.

With --check --cluster it asks every member, prints one line with its role for each, and exits with 0 if all of them are healthy and
follow the same leader, with 1 otherwise. Use it to probe the whole cluster.`,
		Example: `  quotad status
  quotad status --server 10.0.0.2:7450 --check
  quotad status --check --cluster
  quotad status -o json | jq -r .leader`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && !check {
				return usagef(cmd, "", "--cluster needs --check")
			}
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
			case check && all:
				return a.checkCluster(cmd, status)
			case check:
				return a.checkStatus(status)
			case a.format == formatJSON:
				return output.JSON(a.Out, status)
			}
			return a.printStatus(status)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "print one line and exit with 0 (healthy) or 1")
	cmd.Flags().BoolVar(&all, "cluster", false, "with --check: check every member, not one node")
	return a.clientFlags(cmd)
}

func getStatus(ctx context.Context, c *cluster) (*quotav1.GetStatusResponse, error) {
	return call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.GetStatusResponse, error) {
		return n.admin.GetStatus(ctx, &quotav1.GetStatusRequest{})
	})
}

// checkStatus checks one node's health.
func (a *App) checkStatus(status *quotav1.GetStatusResponse) error {
	if wrong := wrongIn(status); len(wrong) > 0 {
		return fail(ExitFailure, "", "%s is not healthy: %s", status.Node, strings.Join(wrong, "; "))
	}
	_, err := fmt.Fprintf(a.Out, "%s is healthy: %s, leader %s\n", output.Visible(status.Node), status.Role, output.Visible(status.Leader))
	return err
}

// checkCluster checks all members that a node knows, each by its own status.
func (a *App) checkCluster(cmd *cobra.Command, known *quotav1.GetStatusResponse) error {
	flags, timeout, err := a.readConnection(cmd)
	if err != nil {
		return err
	}
	wrong := make([][]string, len(known.Members))
	var asked sync.WaitGroup
	for i, member := range known.Members {
		asked.Go(func() {
			own := flags
			own.servers = []string{member.ApiAddress}
			wrong[i] = wrongMember(cmd, own, timeout, known, member)
		})
	}
	asked.Wait()
	failed := 0
	for i, member := range known.Members {
		verdict := "healthy: " + roleOf(member)
		if len(wrong[i]) > 0 {
			failed++
			verdict = "not healthy: " + strings.Join(append([]string{roleOf(member)}, wrong[i]...), "; ")
		}
		if _, err := fmt.Fprintf(a.Out, "%s is %s\n", output.Visible(member.Id), output.Visible(verdict)); err != nil {
			return err
		}
	}
	switch {
	case len(known.Members) == 0:
		return fail(ExitFailure, "", "%s knows no members", known.Node)
	case failed > 0:
		return fail(ExitFailure, "", "%d of %d members are not healthy", failed, len(known.Members))
	}
	return nil
}

// wrongMember returns a member's failed checks. A stale address may lead to another node or to none.
func wrongMember(
	cmd *cobra.Command, flags connectionFlags, timeout time.Duration, known *quotav1.GetStatusResponse, member *quotav1.Member,
) []string {
	if member.ApiAddress == "" {
		return []string{"API address unknown"}
	}
	c, err := newCluster(cmd, flags, timeout)
	if err != nil {
		return []string{err.Error()}
	}
	status, err := getStatus(cmd.Context(), c)
	switch {
	case err != nil:
		return []string{err.Error()}
	case status.Node != member.Id || status.ClusterId != known.ClusterId:
		return []string{fmt.Sprintf("at %s answers %s of cluster %s", member.ApiAddress, status.Node, status.ClusterId)}
	}
	wrong := wrongIn(status)
	if known.Leader != "" && status.Leader != "" && status.Leader != known.Leader {
		wrong = append(wrong, fmt.Sprintf("follows %s, but %s follows %s", status.Leader, known.Node, known.Leader))
	}
	return wrong
}

// wrongIn returns a node's failed checks.
func wrongIn(status *quotav1.GetStatusResponse) (wrong []string) {
	for _, check := range status.Checks {
		if !check.Ok {
			wrong = append(wrong, check.Name+": "+check.Message)
		}
	}
	if status.Leader == "" {
		wrong = append(wrong, "no leader is known")
	}
	return wrong
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
		table.Add("", fmt.Sprintf("%d entries wait for a leader: the state shown is older", status.LastIndex-status.AppliedIndex))
	}
	table.Add("holds", fmt.Sprintf("%d quotas, %d leases, %d waiting, %d sessions",
		status.Quotas, status.Leases, status.Waiting, status.Sessions))
	if callers := budgetsText(append(slices.Clone(status.Budgets), status.NodeBudgets...)); callers != "" {
		table.Add("callers", callers+"; quotad limits shows which")
	}
	table.Add("version", status.Version+", up "+output.Duration(status.Uptime))
	table.Add("feature level", fmt.Sprintf("%d; this node supports %s", status.Level, levels(status.OldestLevel, status.NewestLevel)))
	if status.Testing {
		table.Add("testing", "yes: test-only endpoints are enabled; never use this in production")
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

// levels formats the range of log entry versions that a build applies.
func levels(oldest, newest uint32) string {
	if newest == 0 {
		return output.Dash
	}
	return fmt.Sprintf("%d to %d", oldest, newest)
}

// roleOf returns a member's role.
func roleOf(member *quotav1.Member) string {
	switch {
	case member.Leader:
		return "leader"
	case member.Voter:
		return "voter"
	}
	return "learner"
}

func (a *App) printMembers(status *quotav1.GetStatusResponse) error {
	table := output.Table{Header: []string{"MEMBER", "ROLE", "RAFT", "API", "LAST CONTACT", "INDEX", "VERSION", "LEVELS"}}
	for _, member := range status.Members {
		index := output.Dash
		if member.MatchIndex > 0 {
			index = output.Int(member.MatchIndex)
		}
		contact := output.Duration(member.LastContact)
		if member.LastContact == nil && status.Role == "leader" {
			contact = "no answer" // a leader contacts all members; other nodes have no such data
		}
		table.Add(member.Id, roleOf(member), member.RaftAddress, output.Or(member.ApiAddress), contact, index, output.Or(member.Version),
			levels(member.OldestLevel, member.NewestLevel))
	}
	_, _ = fmt.Fprintln(a.Out)
	return table.Write(a.Out)
}
