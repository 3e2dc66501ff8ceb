// Command quotad is a node of a replicated quota store, the tool to operate a cluster of them, and a holder for shells.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	// Zones in the messages of tools must be known on machines without a table of their own, too.
	_ "time/tzdata"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/cli"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/demo"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/gatewaybench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/plan"
)

func main() { os.Exit(run()) }

// run carries the command line out and returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// The first signal asks to stop in order; after it the default is back, so that a second one ends the process.
	context.AfterFunc(ctx, stop)
	return int(newApp(os.Stdin, os.Stdout, os.Stderr).Run(ctx, os.Args[1:]))
}

// newApp joins the product's commands and the laboratory's. Nothing else of the product knows the laboratory.
func newApp(in io.Reader, out, err io.Writer) *cli.App {
	return &cli.App{
		In: in, Out: out, Err: err, Environ: os.Environ(), Extra: []*cobra.Command{demo.Command(), measures(), plan.Command()},
	}
}

// measures is quotad bench, with what it measures besides the cluster.
func measures() *cobra.Command {
	cmd := bench.Command()
	cmd.AddCommand(gatewaybench.Command())
	return cmd
}
