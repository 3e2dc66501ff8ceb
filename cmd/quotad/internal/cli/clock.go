package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) clockCommand() *cobra.Command {
	return group("clock", "Set the cluster's view of the time of day right", a.clockReset())
}

func (a *App) clockReset() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Set the view of the time of day to the members' clocks, after wrong clocks carried it ahead",
		Long: `Sets the cluster's view of the time of day to the members' clocks. Use it where wrong clocks of a majority carried the view
so far ahead that nobody can wait until real time has caught up (the check "views" of /readyz and quotad status says by how much).
Set the clocks right first: a majority of them must agree.

Every window begins again at the right time, with all that was consumed in it. What leases hold of windows ends. Of windows that
end at the provider's reset the reset must be reported again. Rates, slots, cooldowns and leases do not change.`,
		Example: `  quotad clock reset`,
		Args:    arguments(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.resetClock(cmd) },
	}
	return a.clientFlags(cmd)
}

func (a *App) resetClock(cmd *cobra.Command) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	// It has no request id: a clock that is right is not reset again, and it must work while no keys are left.
	request := &quotav1.ResetClockRequest{}
	answer, err := call(cmd.Context(), c, withID, 0, func(ctx context.Context, n node) (*quotav1.ResetClockResponse, error) {
		return n.admin.ResetClock(ctx, request)
	})
	if err != nil {
		return err
	}
	if a.format == formatJSON {
		return output.JSON(a.Out, answer)
	}
	_, err = fmt.Fprintf(a.Out, "reset the clock, which was %s ahead: %d windows began again\n", output.Duration(answer.Ahead), answer.Windows)
	return err
}
