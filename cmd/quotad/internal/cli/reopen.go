package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) quotaReopen() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reopen NAME",
		Short: "Reopen a quota: end its cooldown, its holders' breakers and a cap",
		Long: `Reopen a quota: end its cooldown, the breakers of its holders, and a cap of its window, all of which reports of the
provider's answers caused. For a window that ends at the provider's reset, it also confirms the reported reset. The quota's
own limit stays, and the next report counts again. Repeating the command changes nothing.`,
		Example: `  quotad quota reopen github/core
  quotad quota reopen openai/tokens -o json`,
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.reopenQuota(cmd, args[0]) },
	}
	return a.clientFlags(cmd)
}

func (a *App) reopenQuota(cmd *cobra.Command, name string) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	// The request has no id: it is idempotent, and must work while no keys are left.
	request := &quotav1.ReopenQuotaRequest{Name: name}
	answer, err := call(cmd.Context(), c, byNature, 0, func(ctx context.Context, n node) (*quotav1.ReopenQuotaResponse, error) {
		return n.admin.ReopenQuota(ctx, request)
	})
	if err != nil {
		return err
	}
	if a.format == formatJSON {
		return output.JSON(a.Out, answer)
	}
	_, err = fmt.Fprintf(a.Out, "reopened %s: %s\n", output.Visible(strings.TrimSpace(name)), reopenedText(answer))
	return err
}

// reopenedText lists what the command ended.
func reopenedText(answer *quotav1.ReopenQuotaResponse) string {
	var ended []string
	if answer.CooldownLeft != nil {
		ended = append(ended, fmt.Sprintf("ended a cooldown with %s left", output.Duration(answer.CooldownLeft)))
	}
	if answer.Breakers > 0 {
		ended = append(ended, fmt.Sprintf("closed the breakers of %d holders", answer.Breakers))
	}
	if answer.CappedTo != nil {
		ended = append(ended, fmt.Sprintf("removed a cap of %d", *answer.CappedTo))
	}
	if answer.Freed > 0 {
		ended = append(ended, fmt.Sprintf("%d more available", answer.Freed))
	}
	if answer.More {
		ended = append(ended, "more breakers are open: repeat the command")
	}
	if len(ended) == 0 {
		return "nothing was closed"
	}
	return strings.Join(ended, ", ")
}
