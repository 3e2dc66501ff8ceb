package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) limitsCommand() *cobra.Command {
	var sessions, bytes, waiters, tasks, keys, leases, reports, holders, operations int64
	var operators, least float64
	var idle, life, taskLife string
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "Show or change the budgets that callers share: sessions, leases, the queue and more",
		Long: `Show the budgets that callers share and the largest users of each, or change the given bounds. The first table is about
the replicated state, and you can change it; the second is about calls and streams at the node that answers. A lower bound
ends nothing that exists: it refuses new entries. A shorter life of sessions counts from their last use; a shorter life of
idempotency keys also applies to existing keys.

A caller is a token, or an address without tokens. It can take more of a budget while it has less than half of what other
callers and the operators' part leave, so every new caller finds room. --caller-min is a part that each caller can always
have while there is room.`,
		Example: `  quotad limits
  quotad limits --session-idle 10m --max-waiters 50000
  quotad limits --max-leases 1000000 --operators-part 0.1`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			limits := &quotav1.Limits{}
			changed := false
			for name, to := range map[string]struct {
				value *int64
				field **int64
			}{
				"max-sessions": {&sessions, &limits.MaxSessions}, "max-result-bytes": {&bytes, &limits.MaxResultBytes},
				"max-waiters": {&waiters, &limits.MaxWaiters}, "max-tasks": {&tasks, &limits.MaxTasks},
				"max-keys": {&keys, &limits.MaxKeys}, "max-leases": {&leases, &limits.MaxLeases}, "max-reports": {&reports, &limits.MaxReports},
				"max-holder-bytes": {&holders, &limits.MaxHolderBytes}, "max-operation-bytes": {&operations, &limits.MaxOperationBytes},
			} { // the order does not matter
				if cmd.Flags().Changed(name) {
					*to.field, changed = to.value, true
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
	cmd.Flags().Int64Var(&sessions, "max-sessions", 0, "maximum of sessions")
	cmd.Flags().Int64Var(&bytes, "max-result-bytes", 0, "maximum bytes of results kept for repeated requests")
	cmd.Flags().Int64Var(&waiters, "max-waiters", 0, "maximum of waiting Reserves")
	cmd.Flags().Int64Var(&tasks, "max-tasks", 0, "maximum of tasks")
	cmd.Flags().Int64Var(&keys, "max-keys", 0, "maximum of idempotency keys")
	cmd.Flags().Int64Var(&leases, "max-leases", 0, "maximum of live leases, including waiting Reserves")
	cmd.Flags().Int64Var(&reports, "max-reports", 0, "maximum of reports per minute")
	cmd.Flags().Int64Var(&holders, "max-holder-bytes", 0,
		"maximum bytes of holder records (virtual time, statistics, meters), which last until an hour after the last use")
	cmd.Flags().Int64Var(&operations, "max-operation-bytes", 0,
		"maximum bytes of operation records: one per Consume until it is settled and acknowledged, or stops counting")
	cmd.Flags().Float64Var(&operators, "operators-part", 0, "part of each that is kept for operators, 0 to 0.5")
	cmd.Flags().Float64Var(&least, "caller-min", 0, "part of each that a caller can always have while there is room, 0 to 0.1")
	cmd.Flags().StringVar(&taskLife, "task-life", "", "how long to remember a finished task, 1s to 30d")
	cmd.Flags().StringVar(&idle, "session-idle", "", "how long to keep an unused session, 1s to 30d")
	cmd.Flags().StringVar(&life, "key-life", "", "how long to remember an idempotency key, 1s to 30d")
	return a.clientFlags(cmd)
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
	if err := table.Write(a.Out); err != nil || change {
		return err
	}
	return errors.Join(a.printBudgets("BUDGET", status.Budgets), a.printBudgets("AT "+output.Visible(status.Node), status.NodeBudgets))
}

// printBudgets shows what callers share, and of each who has most.
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

// budgetsText says which budgets are full, and at which ones callers are; empty: none.
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
