package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) quotaOverride() *cobra.Command {
	var limit int64
	var length, note string
	var end bool
	cmd := &cobra.Command{
		Use:   "override NAME --limit N --for DURATION",
		Short: "Override a quota's limit for a limited time",
		Long: `Override a quota's limit for a limited time; its own limit returns automatically. Live leases keep what they hold; after a
lower limit nothing is granted until the quota fits. A limit of 0 suspends the quota. A change of the definition does not
end the override; --end does.`,
		Example: `  quotad quota override github/core --limit 1000 --for 2h --note "shared with the migration"
  quotad quota override openai/tokens --limit 0 --for 15m
  quotad quota override github/core --end`,
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &quotav1.OverrideQuotaRequest{Name: args[0], Note: note}
			given := cmd.Flags().Changed("limit")
			switch {
			case end && (given || length != "" || note != ""):
				return usagef(cmd, "", "--end excludes all other flags")
			case !end && (!given || length == ""):
				return usagef(cmd, "--for is how long the override lasts; --end ends the present one", "--limit and --for belong together")
			case given && (limit < 0 || limit > quotafile.MaxAmount):
				return usagef(cmd, "0 suspends the quota", "--limit %d is not within 0 to %d", limit, int64(quotafile.MaxAmount))
			}
			if !end {
				lasts, err := durationFlag(cmd, "for", length)
				if err != nil {
					return err
				}
				request.Limit, request.Duration = &limit, lasts
			}
			return a.overrideQuota(cmd, request)
		},
	}
	cmd.Flags().Int64Var(&limit, "limit", 0, "limit; 0 suspends the quota")
	cmd.Flags().StringVar(&length, "for", "", "how long, 1s to 31d")
	cmd.Flags().StringVar(&note, "note", "", "reason, shown to people")
	cmd.Flags().BoolVar(&end, "end", false, "end the present override")
	return a.clientFlags(cmd)
}

func (a *App) overrideQuota(cmd *cobra.Command, request *quotav1.OverrideQuotaRequest) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	answer, err := call(cmd.Context(), c, byNature, 0, func(ctx context.Context, n node) (*quotav1.OverrideQuotaResponse, error) {
		return n.admin.OverrideQuota(ctx, request)
	})
	if err != nil {
		return err
	}
	if a.format == formatJSON {
		return output.JSON(a.Out, answer)
	}
	if request.Limit == nil {
		_, err = fmt.Fprintln(a.Out, "ended the override of", output.Visible(request.Name))
		return err
	}
	_, err = fmt.Fprintf(a.Out, "%s has a limit of %d for %s\n", output.Visible(request.Name), *request.Limit,
		strictyaml.FormatDuration(request.Duration.AsDuration()))
	return err
}

func overrideText(over *quotav1.Override) string {
	text := fmt.Sprintf("limit %d for another %s", over.Limit, output.Duration(over.Left))
	if over.Note != "" {
		text += ": " + output.Visible(over.Note)
	}
	return text
}

func circuitWord(circuit quotav1.Circuit) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(circuit.String(), "CIRCUIT_")), "_", "-")
}

// forecastText describes the forecast and the measures that follow from it.
func forecastText(quota *quotav1.QuotaStatus) string {
	f, by := quota.Forecast, fmt.Sprintf("by the last %d reports", quota.Samples)
	if quota.Definition.GetRate() != nil {
		by = "by what was granted lately"
	}
	if f == nil {
		return "lasts, " + by
	}
	text := fmt.Sprintf("used up in %s %s", output.Duration(durationpb.New(f.ExhaustedIn.AsDuration().Round(time.Second))), by)
	if quota.WindowClosesIn != nil {
		text += fmt.Sprintf(", %s before the reset",
			output.Duration(durationpb.New((quota.WindowClosesIn.AsDuration() - f.ExhaustedIn.AsDuration()).Round(time.Second))))
	}
	text += fmt.Sprintf(": calls should shrink to %.0f %%", 100*f.Smaller)
	if f.Fallback != "" {
		text += ", or go to " + f.Fallback
	}
	if f.Parks {
		text += "; background work waits"
	}
	return text
}
