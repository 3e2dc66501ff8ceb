// Package localtest lets a test binary be quotad itself, so that what starts its own binary as nodes starts that one.
package localtest

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/quotad/quotad/cmd/quotad/internal/cli"
)

// Main is a TestMain: quotad where it is called like `quotad serve` or `quotad gateway`, and the tests, which must leave no goroutine,
// otherwise.
func Main(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "serve" || os.Args[1] == "gateway") {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		app := &cli.App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()}
		code := app.Run(ctx, os.Args[1:])
		stop()
		os.Exit(int(code))
	}
	goleak.VerifyTestMain(m)
}
