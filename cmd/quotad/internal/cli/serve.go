package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/cmd/quotad/internal/daemon"
	"github.com/quotad/quotad/cmd/quotad/internal/neterr"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

func (a *App) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `Run a node until SIGTERM or SIGINT, then stop within ten seconds: finish calls in flight, transfer leadership, exit with 0.
A second signal ends the process at once. SIGHUP reloads tokens, certificates and log.level.

Every setting can come from a flag, an environment variable (QUOTAD_RAFT_HEARTBEAT for raft.heartbeat) or the file of
--config, in this order of precedence. "quotad config check" shows the result.`,
		Example: `  quotad serve --config /etc/quotad/quotad.yaml
  quotad serve --data-dir /var/lib/quotad                     # one node
  quotad serve --node-id n2 --data-dir data --config tls.yaml \
    --api-listen 10.0.0.2:7450 --raft-listen 10.0.0.2:7451 \
    --peers n1=10.0.0.1:7451/10.0.0.1:7450,n2=10.0.0.2:7451/10.0.0.2:7450,n3=10.0.0.3:7451/10.0.0.3:7450`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			reload := make(chan os.Signal, 1)
			signal.Notify(reload, syscall.SIGHUP)
			defer signal.Stop(reload)
			return startError(daemon.Run(cmd.Context(), daemon.Options{
				Load:  func() (*config.Loaded, error) { return a.loadConfig(cmd) },
				LogTo: a.Err, Version: Version(), Reload: reload,
			}))
		},
	}
	settingFlags(cmd)
	return cmd
}

// startError adds hint and exit code to the usual errors of a node's start.
func startError(err error) error {
	var unsafe *daemon.UnsafeDirError
	var operation *net.OpError
	var other *logstore.OtherKindError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unsafe):
		return fail(ExitUsage, unsafe.Hint, "%w", err)
	case errors.Is(err, logstore.ErrDataDirInUse):
		return fail(ExitFailure, "another quotad uses it: give each node its own data directory", "%w", err)
	case errors.As(err, &other):
		hint := fmt.Sprintf(
			"set log_store to %s, or migrate the log of the stopped node: quotad migrate %s --to %s",
			other.Has, other.Dir, other.Wanted)
		return fail(ExitUsage, hint, "%w", err)
	case errors.Is(err, logstore.ErrTwoLogStores):
		return fail(ExitFailure, "a migration was interrupted: run \"quotad migrate\" again with the same --to", "%w", err)
	case errors.Is(err, raftnode.ErrForeignDataDir):
		return fail(ExitUsage, "node_id and data_dir belong together", "%w", err)
	case errors.Is(err, logstore.ErrWiped), errors.Is(err, logstore.ErrUncommittedRestore), errors.Is(err, raftnode.ErrRemoved):
		return fail(ExitRefused, "see \"quotad member replace --help\"", "%w", err)
	case errors.Is(err, logstore.ErrDamaged):
		return fail(ExitRefused, "\"quotad verify\" shows the damage; replace the node: its peers have the data", "%w", err)
	case errors.As(err, &operation) && operation.Op == "listen" && neterr.InUse(err):
		hint := fmt.Sprintf("another process listens on %s: choose another address with --api-listen or --raft-listen", operation.Addr)
		return fail(ExitFailure, hint, "%w", err)
	}
	return err
}
