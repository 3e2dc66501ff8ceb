package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/raftnode/logstore"
)

func (a *App) migrateCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "migrate DATADIR",
		Short: "Move a stopped node's log into the other store (boltdb, wal)",
		Long: `Copy log, votes and terms of a stopped node's data directory into the other store, read the copy back, compare it, and
only then remove the old store. If it is interrupted, run it again. It needs free space of the size of the log. Nodes of
one cluster can use different stores: migrate one after the other, and set log_store before each start.`,
		Example: `  quotad migrate /var/lib/quotad --to wal`,
		Args:    arguments("DATADIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			store := logstore.Kind(to)
			if store != logstore.Bolt && store != logstore.WAL {
				return usagef(cmd, "boltdb or wal", "--to is missing")
			}
			if err := logstore.Migrate(args[0], store); err != nil {
				return offlineError(err)
			}
			_, err := fmt.Fprintf(a.Out, "the log of %s is now in %s: start the node with log_store: %s\n", args[0], store, store)
			return err
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "new store: boltdb or wal")
	return cmd
}
