package cli

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) clockCommand() *cobra.Command {
	return group("clock", "Reset the cluster's time of day", a.clockReset())
}

func (a *App) clockReset() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Reset the cluster's time of day to the members' clocks after wrong clocks moved it ahead",
		Long: `Reset the cluster's time of day to the members' clocks. Use it if wrong clocks of a majority moved it so far ahead that
you cannot wait until real time has caught up; the check "views" of /readyz and "quotad status" shows by how much. Correct
the clocks first: a majority of them must agree.

Every window begins again at the right time, charged with everything that was consumed in it. Held amounts of windows
return. Windows that end at the provider's reset need a new report of that reset. Rates, slots, cooldowns and leases do
not change.

Repeating the command is safe: if the view is not ahead, it changes nothing.`,
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
	// The request has no id: resetting a clock that is right changes nothing, and the command must work while no keys are
	// left.
	request := &quotav1.ResetClockRequest{}
	answer, err := call(cmd.Context(), c, byNature, 0, func(ctx context.Context, n node) (*quotav1.ResetClockResponse, error) {
		return n.admin.ResetClock(ctx, request)
	})
	right := isRight(err)
	switch {
	case right:
		answer = &quotav1.ResetClockResponse{}
	case err != nil:
		return err
	}
	if a.format == formatJSON {
		return output.JSON(a.Out, answer)
	}
	if right {
		return a.done("the clock is not ahead: there is nothing to reset")
	}
	_, err = fmt.Fprintf(a.Out, "reset the clock by %s: %d windows began again\n", output.Duration(answer.Ahead), answer.Windows)
	return err
}

// isRight reports whether the cluster refused because its clock is right, as it is after a reset whose answer was lost.
func isRight(err error) bool {
	var rpc *connect.Error
	return errors.As(err, &rpc) && infoOf(rpc).GetReason() == quotav1.Reason_REASON_CLOCK_NOT_AHEAD
}
