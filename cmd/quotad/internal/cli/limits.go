package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) limitsCommand() *cobra.Command {
	var operators, least float64
	var idle, life, taskLife string
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "Show or change the budgets that callers share: sessions, leases, the queue and more",
		Long: `Show the budgets that callers share and the largest users of each, or change the given bounds. The first table is about
the replicated state; the second is about calls and streams at the node that answers. --max-calls, --max-streams and
--max-connections are limits of each node, which nodes apply within 2 s; a node with little memory lowers their defaults
(quotad config check). A lower bound ends nothing that exists: it refuses new entries; idle connections end for new
ones. A shorter life of sessions counts from their last use; a shorter life of idempotency keys also applies to existing
keys.

A caller is a token, or an address without tokens. It can take more of a budget while it has less than half of what other
callers and the operators' part leave, so every new caller finds room. --caller-min is a part that each caller can always
have while there is room.`,
		Example: `  quotad limits
  quotad limits --session-idle 10m --max-waiters 50000
  quotad limits --max-leases 1000000 --operators-part 0.1
  quotad limits --max-calls 50000 --max-connections 20000`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			limits := &quotav1.Limits{}
			changed := false
			for _, c := range countsOf(limits) {
				if cmd.Flags().Changed(c.flag) {
					count, err := cmd.Flags().GetInt64(c.flag)
					if err != nil {
						return err
					}
					*c.field, changed = &count, true
				}
			}
			if cmd.Flags().Changed("operators-part") {
				limits.OperatorsPart, changed = &operators, true
			}
			if cmd.Flags().Changed("caller-min") {
				limits.CallerMin, changed = &least, true
			}
			var err error
			if limits.SessionIdle, err = durationFlag(cmd, "session-idle", idle); err != nil {
				return err
			}
			if limits.KeyLife, err = durationFlag(cmd, "key-life", life); err != nil {
				return err
			}
			if limits.TaskLife, err = durationFlag(cmd, "task-life", taskLife); err != nil {
				return err
			}
			return a.limits(cmd, limits, changed || limits.SessionIdle != nil || limits.KeyLife != nil || limits.TaskLife != nil)
		},
	}
	for _, c := range countsOf(&quotav1.Limits{}) {
		cmd.Flags().Int64(c.flag, 0, c.help)
	}
	cmd.Flags().Float64Var(&operators, "operators-part", 0, "part of each that is kept for operators, 0 to 0.5")
	cmd.Flags().Float64Var(&least, "caller-min", 0, "part of each that a caller can always have while there is room, 0 to 0.1")
	cmd.Flags().StringVar(&taskLife, "task-life", "", "how long to remember a finished task, 1s to 30d")
	cmd.Flags().StringVar(&idle, "session-idle", "", "how long to keep an unused session, 1s to 30d")
	cmd.Flags().StringVar(&life, "key-life", "", "how long to remember an idempotency key, 1s to 30d")
	return a.clientFlags(cmd)
}

// countFlag is the flag of a numeric limit.
type countFlag struct {
	flag  string
	field **int64
	help  string
}

// countsOf returns the numeric limits.
func countsOf(l *quotav1.Limits) []countFlag {
	return []countFlag{
		{"max-sessions", &l.MaxSessions, "maximum of sessions"},
		{"max-result-bytes", &l.MaxResultBytes, "maximum bytes of results kept for repeated requests"},
		{"max-waiters", &l.MaxWaiters, "maximum of waiting Reserves"},
		{"max-tasks", &l.MaxTasks, "maximum of tasks"},
		{"max-keys", &l.MaxKeys, "maximum of idempotency keys"},
		{"max-leases", &l.MaxLeases, "maximum of live leases, including waiting Reserves"},
		{"max-reports", &l.MaxReports, "maximum of reports per minute"},
		{
			"max-holder-bytes", &l.MaxHolderBytes,
			"maximum bytes of holder records (virtual time, statistics, meters), which last until an hour after the last use",
		},
		{
			"max-operation-bytes", &l.MaxOperationBytes,
			"maximum bytes of operation records: one per Consume until it is settled and acknowledged, or stops counting",
		},
		{"max-calls", &l.MaxCalls, "maximum of calls in flight at each node, 64 to 1000000"},
		{"max-streams", &l.MaxStreams, "maximum of open streams at each node, 16 to 1000000"},
		{"max-connections", &l.MaxConnections, "maximum of connections to each node, 64 to 1000000"},
	}
}

func (a *App) limits(cmd *cobra.Command, to *quotav1.Limits, change bool) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	var now *quotav1.Limits
	status := &quotav1.GetStatusResponse{}
	if change {
		request := &quotav1.SetLimitsRequest{Limits: to}
		answer, err := call(cmd.Context(), c, byNature, 0, func(ctx context.Context, n node) (*quotav1.SetLimitsResponse, error) {
			return n.admin.SetLimits(ctx, request)
		})
		if err != nil {
			return err
		}
		now = answer.Limits
	} else {
		if status, err = getStatus(cmd.Context(), c); err != nil {
			return err
		}
		now = status.Limits
	}
	if a.format == formatJSON {
		return output.JSON(a.Out, now)
	}
	table := output.Table{}
	table.Add("max sessions", output.Int(now.GetMaxSessions()))
	table.Add("max result bytes", output.Int(now.GetMaxResultBytes()))
	table.Add("session idle", output.Duration(now.SessionIdle))
	table.Add("key life", output.Duration(now.KeyLife))
	table.Add("max waiters", output.Int(now.GetMaxWaiters()))
	table.Add("max tasks", output.Int(now.GetMaxTasks()))
	table.Add("task life", output.Duration(now.TaskLife))
	table.Add("max keys", output.Int(now.GetMaxKeys()))
	table.Add("max leases", output.Int(now.GetMaxLeases()))
	table.Add("max reports", output.Int(now.GetMaxReports())+" a minute")
	table.Add("max holder bytes", output.Int(now.GetMaxHolderBytes()))
	table.Add("max operation bytes", output.Int(now.GetMaxOperationBytes()))
	table.Add("operators part", fmt.Sprint(now.GetOperatorsPart()))
	table.Add("caller min", fmt.Sprint(now.GetCallerMin()))
	for _, of := range []struct {
		name           string
		now, byDefault int64
	}{
		{"max calls", now.GetMaxCalls(), accounts.DefaultMaxCalls},
		{"max streams", now.GetMaxStreams(), accounts.DefaultMaxStreams},
		{"max connections", now.GetMaxConnections(), accounts.DefaultMaxConnections},
	} {
		text := output.Int(of.now) + " at each node"
		if of.now == of.byDefault {
			text += ", fewer with little memory"
		}
		table.Add(of.name, text)
	}
	if err := table.Write(a.Out); err != nil || change {
		return err
	}
	return errors.Join(a.printBudgets("BUDGET", status.Budgets), a.printBudgets("AT "+output.Visible(status.Node), status.NodeBudgets))
}

// printBudgets shows the shared budgets and the largest user of each.
func (a *App) printBudgets(title string, budgets []*quotav1.Budget) error {
	if len(budgets) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(a.Out)
	table := output.Table{Header: []string{title, "USED", "OF", "FOR OPERATORS", "CALLERS", "AT BUDGET", "MOST"}}
	for _, b := range budgets {
		most := output.Dash
		if len(b.Top) > 0 {
			most = fmt.Sprintf("%s (%d of %d)", output.Visible(b.Top[0].Caller), b.Top[0].Used, b.Top[0].Most)
		}
		table.Add(strings.ReplaceAll(b.Name, "_", " "), output.Int(b.Used), output.Int(b.Capacity), output.Int(b.OperatorsPart),
			output.Int(b.Callers), output.Int(b.CallersAtBudget), most)
	}
	return table.Write(a.Out)
}

// budgetsText names the budgets that are full, and those with callers at their part; empty: none.
func budgetsText(budgets []*quotav1.Budget) string {
	var words []string
	for _, b := range budgets {
		switch {
		case b.Used >= b.Capacity-b.OperatorsPart:
			words = append(words, strings.ReplaceAll(b.Name, "_", " ")+" full")
		case b.CallersAtBudget > 0:
			words = append(words, fmt.Sprintf("%s: %d at budget", strings.ReplaceAll(b.Name, "_", " "), b.CallersAtBudget))
		}
	}
	return strings.Join(words, ", ")
}
