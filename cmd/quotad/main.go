// Command quotad is a node of a replicated quota store, the tool to operate a cluster of them, and a holder for shells.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	// Zones in the messages of tools must be known on machines without a table of their own, too.
	_ "time/tzdata"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/cli"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/demo"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/plan"
)

func main() { os.Exit(run()) }

// run carries the command line out and returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// The first signal asks to stop in order; after it the default is back, so that a second one ends the process.
	context.AfterFunc(ctx, stop)
	app := &cli.App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Extra: []*cobra.Command{demo.Command(), bench.Command(), plan.Command()}}
	return int(app.Run(ctx, os.Args[1:]))
}
