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
		Long: `Copies log, votes and terms of a stopped node's data directory into another store, reads the copy back and compares, and
only then removes the old one. Interrupted, it is simply called again. It needs as much free space as the log takes. Nodes
of one cluster may differ: move one after the other, and start each with log_store set to what it has now.`,
		Example: `  quotad migrate /var/lib/quotad --to wal`,
		Args:    arguments("DATADIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			store := logstore.Kind(to)
			if store != logstore.Bolt && store != logstore.WAL {
				return usagef(cmd, "stores: boltdb, wal", "--to must say where to")
			}
			if err := logstore.Migrate(args[0], store); err != nil {
				return offlineError(err)
			}
			_, err := fmt.Fprintf(a.Out, "%s keeps its log in %s now: start the node with log_store: %s\n", args[0], store, store)
			return err
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the store to move to: boltdb or wal")
	return cmd
}
