// Command tool compares quotad with etcd and Redis (the same works alternately, on one machine and one disk, in one run),
// and its own benchmarks with stored ratios. It is a separate module, so that quotad's users do not build the clients of
// other systems.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use: "quotad-bench", Short: "Compare quotad with its peers and with its own past", SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(runCommand(), reportCommand(), checkCommand(), hostileCommand(), failoverCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "Error:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func runCommand() *cobra.Command {
	var plan bench.Plan
	var quotad, commit, results string
	var names []string
	var local bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Measure and write the results to a file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			systems, err := choose(quotad, names)
			if err != nil {
				return err
			}
			plan.Systems = systems
			measured, err := plan.Run(cmd.Context())
			if err != nil {
				return err
			}
			measured.Commit = commit
			if local {
				if measured.Local, err = measureLocal(cmd.Context(), quotad, plan.Rounds, plan.Duration); err != nil {
					return err
				}
			}
			if err := bench.WriteResults(results, measured); err != nil {
				return err
			}
			return measured.Table(cmd.OutOrStdout())
		},
	}
	plan.Flags(cmd.Flags())
	cmd.Flags().StringVar(&quotad, "quotad", "bin/quotad", "quotad's binary")
	cmd.Flags().StringVar(&commit, "commit", "", "commit of the binary, for the results")
	cmd.Flags().StringVar(&results, "results", "bin/bench-peers.json", "file for the results")
	cmd.Flags().StringSliceVar(&names, "systems", nil, "systems to run; default: all")
	cmd.Flags().BoolVar(&local, "local", true, "also compare local takes with limiters of one process")
	return cmd
}

// choose returns the systems with the given names; none: all.
func choose(quotad string, names []string) ([]bench.System, error) {
	all := []bench.System{
		bench.Quotad(quotad, "boltdb"), bench.Quotad(quotad, "wal"), etcdSystem(etcdLoop), etcdSystem(etcdPut), redisSystem(0), redisSystem(2),
	}
	if len(names) == 0 {
		return all, nil
	}
	var chosen []bench.System
	var known []string
	for _, s := range all {
		known = append(known, fmt.Sprintf("%q", s.Name))
	}
	for _, name := range names {
		at := slices.IndexFunc(all, func(s bench.System) bool { return s.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("there is no system %q; there are %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[at])
	}
	return chosen, nil
}
