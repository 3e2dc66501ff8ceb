package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) workflowCommand() *cobra.Command {
	return group("workflow", "Show workflows: limited steps and the step with the baton",
		a.workflowGet(), a.workflowList(), a.workflowDelete())
}

func (a *App) workflowGet() *cobra.Command {
	var stale bool
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show one workflow: its state, the step with the baton, and each step",
		Long: `Show one workflow: whether its steps run together or one at a time, which step has the baton, and when it is calm again.
For each step, in workflow order: when it was limited last, for how long and by which quota it still is, for how long it
waits for a limited step downstream, and its number of waiting requests.`,
		Example: `  quotad workflow get release
  quotad workflow get release -o yaml`,
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.GetWorkflowRequest{Name: args[0], Read: readMode(stale)}
			answer, err := call(cmd.Context(), c, reads, 0, func(ctx context.Context, n node) (*quotav1.GetWorkflowResponse, error) {
				return n.quota.GetWorkflow(ctx, request)
			})
			if err != nil {
				return err
			}
			return a.printWorkflow(answer.Workflow)
		},
	}
	staleFlag(cmd, &stale)
	return a.clientFlags(cmd, formatYAML)
}

func (a *App) printWorkflow(workflow *quotav1.WorkflowStatus) error {
	switch a.format {
	case formatJSON:
		return output.JSON(a.Out, workflow)
	case formatYAML:
		text, err := quotafile.Write(&quotafile.File{Workflows: []*quotav1.Workflow{workflow.Definition}, HasWorkflows: true})
		if err != nil {
			return err
		}
		_, err = a.Out.Write(text)
		return err
	}
	table := output.Table{}
	table.Add("name", workflow.Definition.Name)
	table.Add("state", stateWord(workflow.State))
	table.Add("for", output.Duration(workflow.StateFor))
	table.Add("baton", batonText(workflow.Baton))
	table.Add("calm in", output.Duration(workflow.CalmIn))
	if err := table.Write(a.Out); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Out); err != nil {
		return err
	}
	steps := output.Table{Header: []string{"STEP", "AFTER", "LIMITED AGO", "FOR", "BY", "PAUSED FOR", "WAITING"}}
	after := map[string][]string{}
	for _, step := range workflow.Definition.Steps {
		after[step.Holder] = step.After
	}
	for _, step := range workflow.Steps {
		steps.Add(step.Holder, output.Or(strings.Join(after[step.Holder], " ")), output.Duration(step.LimitedAgo),
			output.Duration(step.LimitedFor),
			output.Or(step.Quota), output.Duration(step.PausedFor), output.Int(step.Waiting))
	}
	return steps.Write(a.Out)
}

func stateWord(state quotav1.WorkflowState) string {
	return strings.ToLower(strings.TrimPrefix(state.String(), "WORKFLOW_STATE_"))
}

// batonText names the step with the baton and the time it has left.
func batonText(baton *quotav1.WorkflowBaton) string {
	if baton == nil {
		return output.Dash
	}
	text := baton.Holder + ", " + output.Duration(baton.EndsIn) + " left"
	if baton.Fence == 0 {
		return text + ", not taken yet"
	}
	return text + ", fence " + output.Int(baton.Fence)
}

// pressureText describes the state of a holder's workflow.
func pressureText(pressure *quotav1.BackPressure) string {
	text := "workflow " + pressure.Workflow + " is " + stateWord(pressure.State)
	if pressure.Step == "" {
		return text
	}
	where := "you are " + strings.ToLower(strings.TrimPrefix(pressure.Side.String(), "SIDE_"))
	switch pressure.Side { //nolint:exhaustive // the others are their names
	case quotav1.Side_SIDE_SELF:
		where = "that is you"
	case quotav1.Side_SIDE_OTHER_BRANCH:
		where = "you are on another branch"
	}
	return fmt.Sprintf("%s, %s is limited by %s for %s (%s)", text, pressure.Step, pressure.Quota, output.Duration(pressure.LimitedFor), where)
}

func (a *App) workflowList() *cobra.Command {
	var holder string
	var stale bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List workflows by name",
		Example: `  quotad workflow list
  quotad workflow list --holder triage`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			all, err := listWorkflows(cmd.Context(), c, holder, readMode(stale))
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, all)
			}
			table := output.Table{Header: []string{"NAME", "STEPS", "STATE", "FOR", "LIMITED", "BATON", "CALM IN"}}
			for _, workflow := range all.Workflows {
				table.Add(workflow.Definition.Name, output.Int(len(workflow.Steps)), stateWord(workflow.State), output.Duration(workflow.StateFor),
					output.Or(strings.Join(limitedSteps(workflow), " ")), output.Or(workflow.Baton.GetHolder()), output.Duration(workflow.CalmIn))
			}
			return table.Write(a.Out)
		},
	}
	cmd.Flags().StringVar(&holder, "holder", "", "only workflows in which this holder is a step")
	staleFlag(cmd, &stale)
	return a.clientFlags(cmd)
}

// limitedSteps returns the holders that are limited now.
func limitedSteps(workflow *quotav1.WorkflowStatus) []string {
	var names []string
	for _, step := range workflow.Steps {
		if step.LimitedFor != nil {
			names = append(names, step.Holder)
		}
	}
	return names
}

func listWorkflows(ctx context.Context, c *cluster, holder string, mode quotav1.ReadMode) (*quotav1.ListWorkflowsResponse, error) {
	all := &quotav1.ListWorkflowsResponse{}
	request := &quotav1.ListWorkflowsRequest{Holder: holder, PageSize: pageSize, Read: mode}
	for {
		page, err := call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.ListWorkflowsResponse, error) {
			return n.quota.ListWorkflows(ctx, request)
		})
		if err != nil {
			return nil, err
		}
		all.Meta, all.Workflows = page.Meta, append(all.Workflows, page.Workflows...)
		if page.NextPageToken == "" {
			return all, nil
		}
		request.PageToken = page.NextPageToken
	}
}

func (a *App) workflowDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a workflow",
		Long: `Delete a workflow, in any state. Its holders are then independent. Applying a quotas.yaml that has the workflow creates it
again.`,
		Example: `  quotad workflow delete release`,
		Args:    arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.DeleteWorkflowRequest{Name: args[0]}
			answer, err := call(cmd.Context(), c, removes, 0, func(ctx context.Context, n node) (*quotav1.DeleteWorkflowResponse, error) {
				return n.admin.DeleteWorkflow(ctx, request)
			})
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, answer)
			}
			_, err = fmt.Fprintln(a.Out, "deleted", output.Visible(strings.TrimSpace(args[0])))
			return err
		},
	}
	return a.clientFlags(cmd)
}
