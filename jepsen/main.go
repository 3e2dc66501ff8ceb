// Command jepsen breaks a cluster of real quotad processes and judges whether its promises held. jepsen/README.md explains its output;
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
		Use: "jepsen", Short: "Break a cluster of real processes and judge what became of its promises",
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
		Use: "run", Short: "Run a cluster, break it for a while, and judge the run", Args: cobra.NoArgs,
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
	flags.StringVar(&p.builds.New, "binary", "bin/quotad", "the quotad under test")
	flags.StringVar(&p.builds.Previous, "previous", "", "the quotad before it, with which the nodes begin; mix upgrade needs it")
	flags.StringVar(&p.builds.Unfit, "unfit", "", "a quotad that applies other log entries; mix upgrade needs it")
	flags.StringVar(&p.mixName, "mix", "default", "what is broken; see jepsen mixes")
	flags.StringSliceVar(&p.faults, "faults", nil, "faults to inject instead of the mix's, each of which the run must have had")
	flags.DurationVar(&p.length, "time", p.length, "how long things are broken (default 10m)")
	flags.Uint64Var(&p.seed, "seed", 0, "makes the plan of faults and the workload; 0 draws one")
	flags.IntVar(&p.nodes, "nodes", 3, "how many nodes")
	flags.StringVar(&p.network, "network", "", "namespaces or loopback; empty: namespaces where they are allowed")
	flags.BoolVar(&p.proxied, "proxied", false, "links go through proxies, which delay streams and cut them while they run")
	flags.BoolVar(&p.tls, "tls", false,
		"nodes speak TLS on both ports, or with =false do not; without it the seed says so in runs that may rotate certificates")
	flags.StringVar(&p.store, "store", "", "log store of the nodes, boltdb or wal; empty: quotad's default, or QUOTAD_LOG_STORE")
	flags.BoolVar(&p.plainDisks, "plain-disks", false, "no file system of the suite under the nodes")
	flags.StringVar(&p.folder, "dir", "bin/jepsen", "where runs are kept")
	flags.StringVar(&p.summary, "summary", "", "file to which a line per run is added")
	flags.Float64Var(&p.load, "load", 1, "how much the workload asks, as a factor")
	flags.StringVar(&p.defect, "defect", "", "name of the planted defect in the binary, for the report")
	return cmd, p
}

func tableCommand() *cobra.Command {
	return &cobra.Command{
		Use: "table SUMMARY...", Short: "Put the runs of summary files into a table (Markdown)", Args: cobra.MinimumNArgs(1),
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
	cmd.Flags().StringVar(&summary, "summary", "", "file to which a line is added")
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
		Use: "worker", Short: "Be a process of the workload; the spec comes from standard input", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return workload.Run(cmd.InOrStdin()) },
	}
}

func hostileCommand() *cobra.Command {
	return &cobra.Command{
		Use: "hostile", Short: "Be a hostile caller; the spec comes from standard input, whose end ends it", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return hostile.Run(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
}
