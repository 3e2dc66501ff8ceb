// Command quotad is a node of a replicated quota store, the tool that operates a cluster of such nodes, and a holder for
// shells.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	// Embeds the time zone database: messages of tools name zones, and some machines have no database.
	_ "time/tzdata"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/cli"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/demo"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/gatewaybench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/plan"
)

func main() { os.Exit(run()) }

// run runs the command line and returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// The first signal requests an orderly stop and restores the default action, so that a second signal ends the process.
	context.AfterFunc(ctx, stop)
	return int(newApp(os.Stdin, os.Stdout, os.Stderr).Run(ctx, os.Args[1:]))
}

// newApp joins the product's commands and the laboratory's. No other part of the product depends on the laboratory.
func newApp(in io.Reader, out, err io.Writer) *cli.App {
	return &cli.App{
		In: in, Out: out, Err: err, Environ: os.Environ(), Extra: []*cobra.Command{demo.Command(), measures(), plan.Command()},
	}
}

// measures is quotad bench with its subcommand for the gateway.
func measures() *cobra.Command {
	cmd := bench.Command()
	cmd.AddCommand(gatewaybench.Command())
	return cmd
}
