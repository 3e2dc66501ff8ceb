// Command jepsen runs a cluster of real quotad processes under faults and checks its promises. jepsen/README.md explains its output;
// docs/decisions/0004-fault-suite.md explains its design.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/jepsen/report"
	"github.com/quotad/quotad/jepsen/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "jepsen:", err)
		os.Exit(1)
	}
}

// errFailed says that a run did not pass; its verdicts are printed already.
var errFailed = errors.New("the run did not pass")

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "jepsen", Short: "Run a cluster of real processes under faults and check its promises",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(runCommand(), judgeCommand(), plantedCommand(), workerCommand(), hostileCommand(), mixesCommand(), tableCommand())
	return root
}

func runCommand() *cobra.Command {
	cmd, _ := newRunCommand()
	return cmd
}

// newRunCommand returns the command and the plan that its flags fill in.
func newRunCommand() (*cobra.Command, *plan) {
	p := new(plan)
	cmd := &cobra.Command{
		Use: "run", Short: "Run a cluster under faults and judge the run", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.tlsPinned = cmd.Flags().Changed("tls")
			if err := p.complete(); err != nil {
				return err
			}
			dir, err := p.run(cmd.Context(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			return judge(cmd, dir, p.summary)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.builds.New, "binary", "bin/quotad", "path of the quotad under test")
	flags.StringVar(&p.builds.Previous, "previous", "", "path of the previous quotad, with which the nodes start; required by mix upgrade")
	flags.StringVar(&p.builds.Unfit, "unfit", "", "path of a quotad that applies other log entries; required by mix upgrade")
	flags.StringVar(&p.mixName, "mix", "default", "mix of faults; jepsen mixes lists them")
	flags.StringSliceVar(&p.faults, "faults", nil, "faults to inject instead of those of the mix; each must occur")
	flags.DurationVar(&p.length, "time", p.length, "duration of the faults (default 10m)")
	flags.Uint64Var(&p.seed, "seed", 0, "seed of faults and workload; 0: random")
	flags.IntVar(&p.nodes, "nodes", 3, "number of nodes")
	flags.StringVar(&p.network, "network", "", "network of the nodes: namespaces or loopback; empty: namespaces where they are allowed")
	flags.BoolVar(&p.proxied, "proxied", false, "run links through proxies that delay streams and cut them")
	flags.BoolVar(&p.tls, "tls", false,
		"use TLS on both ports of the nodes; without the flag the seed decides in runs that may rotate certificates")
	flags.StringVar(&p.store, "store", "", "log store of the nodes: boltdb or wal; empty: QUOTAD_LOG_STORE, else the default of quotad")
	flags.BoolVar(&p.plainDisks, "plain-disks", false, "use plain disks, without injected disk faults")
	flags.StringVar(&p.folder, "dir", "bin/jepsen", "folder for runs")
	flags.StringVar(&p.summary, "summary", "", "file to append a line to for each run")
	flags.Float64Var(&p.load, "load", 1, "factor on the load of the workload")
	flags.StringVar(&p.defect, "defect", "", "name of the planted defect in the binary, for the report")
	return cmd, p
}

func tableCommand() *cobra.Command {
	return &cobra.Command{
		Use: "table SUMMARY...", Short: "Print the runs of summary files as a table (Markdown)", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var lines []*report.Line
			for _, path := range args {
				more, err := report.ReadSummary(path)
				if err != nil {
					return err
				}
				lines = append(lines, more...)
			}
			report.Table(cmd.OutOrStdout(), lines)
			return nil
		},
	}
}

func judgeCommand() *cobra.Command {
	var summary string
	cmd := &cobra.Command{
		Use: "judge DIR", Short: "Judge a run again", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return judge(cmd, history.Dir(args[0]), summary) },
	}
	cmd.Flags().StringVar(&summary, "summary", "", "file to append a line to")
	return cmd
}

// judge judges a run, prints the verdicts and writes the page.
func judge(cmd *cobra.Command, dir history.Dir, summary string) error {
	result, err := check.Run(dir)
	if err != nil {
		return err
	}
	report.Print(cmd.OutOrStdout(), result)
	page, err := report.Write(dir, result)
	if err != nil {
		return err
	}
	if summary != "" {
		if err := report.Summarize(summary, result); err != nil {
			return err
		}
	}
	cmd.Printf("page: %s\n", page)
	if result.Outcome() != check.Pass {
		return fmt.Errorf("%w: %s (seed %d, mix %s)", errFailed, result.Outcome(), result.Facts.Seed, result.Facts.Mix)
	}
	return nil
}

func workerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "worker", Short: "Run a process of the workload, with the spec from standard input", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return workload.Run(cmd.InOrStdin()) },
	}
}

func hostileCommand() *cobra.Command {
	return &cobra.Command{
		Use: "hostile", Short: "Run a hostile caller, with the spec from standard input, until that ends", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return hostile.Run(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
}
