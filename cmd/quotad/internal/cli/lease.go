package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) leaseCommand() *cobra.Command {
	return group("lease", "List and revoke leases", a.leaseList(), a.leaseRevoke())
}

func (a *App) leaseList() *cobra.Command {
	var holder, quota string
	var stale bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List live leases",
		Example: `  quotad lease list
  quotad lease list --quota github/core --holder picard`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.ListLeasesRequest{Holder: holder, Quota: quota, PageSize: pageSize, Read: readMode(stale)}
			all, err := listLeases(cmd.Context(), c, request)
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, all)
			}
			table := output.Table{Header: []string{"LEASE", "HOLDER", "CLASS", "HELD", "CONSUMED", "EXPIRES IN"}}
			for _, lease := range all.Leases {
				table.Add(output.Int(lease.Id), lease.Holder, quotafile.ClassWord(lease.Class), itemsText(lease.Held),
					itemsText(lease.Consumed), output.Duration(lease.ExpiresIn))
			}
			return table.Write(a.Out)
		},
	}
	cmd.Flags().StringVar(&holder, "holder", "", "only leases of this holder")
	cmd.Flags().StringVar(&quota, "quota", "", "only leases with an item of this quota")
	staleFlag(cmd, &stale)
	return a.clientFlags(cmd)
}

func listLeases(ctx context.Context, c *cluster, request *quotav1.ListLeasesRequest) (*quotav1.ListLeasesResponse, error) {
	all := &quotav1.ListLeasesResponse{}
	for {
		page, err := call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.ListLeasesResponse, error) {
			return n.quota.ListLeases(ctx, request)
		})
		if err != nil {
			return nil, err
		}
		all.Meta, all.Leases = page.Meta, append(all.Leases, page.Leases...)
		if page.NextPageToken == "" {
			return all, nil
		}
		request.PageToken = page.NextPageToken
	}
}

// itemsText formats granted items: github/core=7 openai/tokens=500.
func itemsText(items []*quotav1.GrantedItem) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = item.Quota + "=" + output.Int(item.Amount)
	}
	return output.Or(strings.Join(words, " "))
}

// plainItemsText formats returned or charged items.
func plainItemsText(items []*quotav1.Item) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = item.Quota + "=" + output.Int(item.GetAmount())
	}
	return output.Or(strings.Join(words, " "))
}

func (a *App) leaseRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke LEASE",
		Short: "Revoke a lease; its holder learns it with its next command",
		Long: `Revoke a lease. Its held amounts are available at once; its consumed amounts keep counting. Its fence is dead: the holder's
next Consume or Renew is refused.`,
		Example: `  quotad lease revoke 42`,
		Args:    arguments("LEASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			lease, err := number(cmd, "LEASE", args[0])
			if err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.RevokeLeaseRequest{Lease: lease}
			answer, err := call(cmd.Context(), c, removes, 0, func(ctx context.Context, n node) (*quotav1.RevokeLeaseResponse, error) {
				return n.admin.RevokeLease(ctx, request)
			})
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, answer)
			}
			_, err = fmt.Fprintf(a.Out, "revoked lease %d; returned: %s\n", lease, output.Visible(plainItemsText(answer.Returned)))
			return err
		},
	}
	return a.clientFlags(cmd)
}

// number parses an id or fence.
func number(cmd *cobra.Command, what, text string) (uint64, error) {
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil || value == 0 {
		return 0, usagef(cmd, "", "%s %q is not a number above 0", what, text)
	}
	return value, nil
}
