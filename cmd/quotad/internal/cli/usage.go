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

func (a *App) usageCommand() *cobra.Command {
	var holder, quota string
	var stale bool
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show usage by holder: used, reserved, lent, borrowed, refused",
		Long: `Show usage by holder, for quotas whose policy has "metering: true" or a share for the holder. USED and RESERVED are about
the present window; the other columns count since the holder was first seen. A holder without requests for an hour and
without use in a present window is forgotten.`,
		Example: `  quotad usage
  quotad usage --quota github/core
  quotad usage --holder ralph -o json`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.ListUsageRequest{Holder: holder, Quota: quota, PageSize: pageSize, Read: readMode(stale)}
			all, err := listUsage(cmd.Context(), c, request)
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, all)
			}
			if len(all.Usage) == 0 {
				_, _ = fmt.Fprintln(a.Err, "nothing is metered; policy: {metering: true} of a quota switches it on")
			}
			return printUsage(a, all)
		},
	}
	cmd.Flags().StringVar(&holder, "holder", "", "only this holder")
	cmd.Flags().StringVar(&quota, "quota", "", "only this quota")
	staleFlag(cmd, &stale)
	return a.clientFlags(cmd)
}

func listUsage(ctx context.Context, c *cluster, request *quotav1.ListUsageRequest) (*quotav1.ListUsageResponse, error) {
	all := &quotav1.ListUsageResponse{}
	for {
		page, err := call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.ListUsageResponse, error) {
			return n.quota.ListUsage(ctx, request)
		})
		if err != nil {
			return nil, err
		}
		all.Meta, all.Usage = page.Meta, append(all.Usage, page.Usage...)
		if page.NextPageToken == "" {
			return all, nil
		}
		request.PageToken = page.NextPageToken
	}
}

func printUsage(a *App, all *quotav1.ListUsageResponse) error {
	table := output.Table{Header: []string{
		"HOLDER", "CLASS", "QUOTA", "RESERVED", "USED", "SHARE", "LENT", "BORROWED", "CONSUMED", "ANSWERED", "LIMITED", "WAITS", "WAITED",
		"REFUSED",
	}}
	for _, u := range all.Usage {
		used := "-"
		if u.Used != nil {
			used = output.Int(*u.Used)
		}
		var refused []string
		for _, d := range u.Refusals {
			refused = append(refused, fmt.Sprintf("%s=%d", strings.TrimPrefix(d.Reason.String(), "REASON_"), d.Times))
		}
		table.Add(u.Holder, quotafile.ClassWord(u.Class), u.Quota, output.Int(u.Reserved), used, output.Int(u.Share), output.Int(u.Lent),
			output.Int(u.Borrowed), output.Int(u.Consumed-u.Returned+u.Overrun), output.Int(u.Answered), output.Int(u.Limited),
			output.Int(u.Waits), output.Duration(u.Waited), output.Or(strings.Join(refused, " ")))
	}
	return table.Write(a.Out)
}
