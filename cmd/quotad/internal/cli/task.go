package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) taskCommand() *cobra.Command {
	return group("task", "Run work under a retry budget; list, retry and forget tasks",
		a.taskRun(), a.taskList(), a.taskRetry(), a.taskForget())
}

func (a *App) taskList() *cobra.Command {
	var phase string
	var stale bool
	request := &quotav1.ListTasksRequest{PageSize: pageSize}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tasks with their phase and the end of their last attempt",
		Example: `  quotad task list
  quotad task list --phase shelved
  quotad task list --phase shelved -o json | jq -r '.tasks[].task'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := readPhase(cmd, phase)
			if err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request.Phase, request.Read = wanted, readMode(stale)
			all, err := listTasks(cmd.Context(), c, request)
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, all)
			}
			table := output.Table{Header: []string{"TASK", "HOLDER", "PHASE", "FAILURES", "NEXT IN", "LAST", "AGO", "DETAIL"}}
			for _, t := range all.Tasks {
				table.Add(t.Task, t.Holder, phaseWord(t.Phase), fmt.Sprintf("%d of %d", t.Failures, t.MaxFailures), nextText(t),
					output.Or(outcomeWord(t.Outcome)), output.Duration(t.EndedAgo), output.Or(t.Detail))
			}
			return table.Write(a.Out)
		},
	}
	cmd.Flags().StringVar(&phase, "phase", "", "only tasks in this phase: "+strings.Join(phaseWords(), ", "))
	cmd.Flags().StringVar(&request.Holder, "holder", "", "only tasks of this holder")
	cmd.Flags().StringVar(&request.Prefix, "prefix", "", "only names with this prefix")
	staleFlag(cmd, &stale)
	_ = cmd.RegisterFlagCompletionFunc("phase", cobra.FixedCompletions(phaseWords(), cobra.ShellCompDirectiveNoFileComp))
	return a.clientFlags(cmd)
}

// nextText says when the next attempt may begin.
func nextText(t *quotav1.TaskStatus) string {
	if t.Phase == quotav1.TaskPhase_TASK_PHASE_READY {
		return "now"
	}
	return output.Duration(t.RetryAfter)
}

// phaseWord formats a phase as users type it: in-flight.
func phaseWord(phase quotav1.TaskPhase) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(phase.String(), "TASK_PHASE_")), "_", "-")
}

func phaseWords() []string {
	words := make([]string, 0, len(quotav1.TaskPhase_name))
	for number := int32(1); quotav1.TaskPhase_name[number] != ""; number++ {
		words = append(words, phaseWord(quotav1.TaskPhase(number)))
	}
	return words
}

func readPhase(cmd *cobra.Command, word string) (quotav1.TaskPhase, error) {
	if word == "" {
		return quotav1.TaskPhase_TASK_PHASE_UNSPECIFIED, nil
	}
	for i, known := range phaseWords() {
		if known == word {
			return quotav1.TaskPhase(i + 1), nil
		}
	}
	return 0, usagef(cmd, strings.Join(phaseWords(), ", "), "unknown --phase %q", word)
}

func outcomeWord(outcome quotav1.TaskOutcome) string {
	if outcome == quotav1.TaskOutcome_TASK_OUTCOME_UNSPECIFIED {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(outcome.String(), "TASK_OUTCOME_")), "_", "-")
}

func listTasks(ctx context.Context, c *cluster, request *quotav1.ListTasksRequest) (*quotav1.ListTasksResponse, error) {
	all := &quotav1.ListTasksResponse{}
	for {
		page, err := call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.ListTasksResponse, error) {
			return n.task.ListTasks(ctx, request)
		})
		if err != nil {
			return nil, err
		}
		all.Meta, all.Tasks = page.Meta, append(all.Tasks, page.Tasks...)
		if page.NextPageToken == "" {
			return all, nil
		}
		request.PageToken = page.NextPageToken
	}
}

func (a *App) taskRetry() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry TASK",
		Short: "Reset a task's retry budget; its next attempt may begin at once",
		Long: `Reset a task's retry budget and let its next attempt begin at once: after you fixed the cause of its failures, or to run a
finished task again. A running attempt continues under the new budget.`,
		Example: `  quotad task retry issue-117`,
		Args:    arguments("TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &quotav1.RetryTaskRequest{Task: args[0]}
			return taskWord(a, cmd, byNature, "reset the budget of", args[0], func(ctx context.Context, n node) (*quotav1.RetryTaskResponse, error) {
				return n.task.RetryTask(ctx, request)
			})
		},
	}
	return a.clientFlags(cmd)
}

func (a *App) taskForget() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget TASK",
		Short: "Remove a task and stop its running attempt",
		Example: `  quotad task forget issue-117
  quotad task list --phase shelved -o json | jq -r '.tasks[].task' | xargs -n 1 quotad task forget`,
		Args: arguments("TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &quotav1.ForgetTaskRequest{Task: args[0]}
			return taskWord(a, cmd, removes, "forgot", args[0], func(ctx context.Context, n node) (*quotav1.ForgetTaskResponse, error) {
				return n.task.ForgetTask(ctx, request)
			})
		},
	}
	return a.clientFlags(cmd)
}

// taskWord sends an operator's command about a task and prints its success.
func taskWord[Answer any, A protoAnswer[Answer]](
	a *App, cmd *cobra.Command, again repeat, did, task string, ask func(context.Context, node) (*Answer, error),
) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	answer, err := call(cmd.Context(), c, again, 0, ask)
	if err != nil {
		return err
	}
	if a.format == formatJSON {
		return output.JSON(a.Out, A(answer))
	}
	_, err = fmt.Fprintln(a.Out, did, output.Visible(task))
	return err
}
