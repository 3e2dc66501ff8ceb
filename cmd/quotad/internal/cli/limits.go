package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) limitsCommand() *cobra.Command {
	var sessions, bytes, waiters, tasks int64
	var idle, life, taskLife string
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "Show or change the bounds of sessions, idempotency keys and the queue",
		Long: `Shows the bounds that are a part of the replicated state, or changes those that are given. A lower bound ends nothing
that is there: it refuses what is new. A shorter life counts from the last use.`,
		Example: `  quotad limits
  quotad limits --session-idle 10m --max-waiters 50000`,
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
			} { // the order does not matter
				if cmd.Flags().Changed(name) {
					*to.field, changed = to.value, true
				}
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
	cmd.Flags().Int64Var(&sessions, "max-sessions", 0, "most sessions")
	cmd.Flags().Int64Var(&bytes, "max-result-bytes", 0, "most bytes of results that are kept for repeated requests")
	cmd.Flags().Int64Var(&waiters, "max-waiters", 0, "most waiting Reserves")
	cmd.Flags().Int64Var(&tasks, "max-tasks", 0, "most tasks")
	cmd.Flags().StringVar(&taskLife, "task-life", "", "how long a task that is done is remembered, 1s to 30d")
	cmd.Flags().StringVar(&idle, "session-idle", "", "how long a session that is not used lives, 1s to 30d")
	cmd.Flags().StringVar(&life, "key-life", "", "how long an idempotency key is remembered, 1s to 30d")
	return a.clientFlags(cmd)
}

func (a *App) limits(cmd *cobra.Command, to *quotav1.Limits, change bool) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	var now *quotav1.Limits
	if change {
		request := &quotav1.SetLimitsRequest{RequestId: onceKey(), Limits: to}
		answer, err := call(cmd.Context(), c, withID, 0, func(ctx context.Context, n node) (*quotav1.SetLimitsResponse, error) {
			return n.admin.SetLimits(ctx, request)
		})
		if err != nil {
			return err
		}
		now = answer.Limits
	} else {
		status, err := getStatus(cmd.Context(), c)
		if err != nil {
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
	return table.Write(a.Out)
}
