// Package localtest makes a test binary act as quotad, for tests of code that starts its own binary as nodes.
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

// Main is a TestMain. With the arguments of `quotad serve` or `quotad gateway` it runs quotad. Otherwise it runs the tests,
// which must leak no goroutine.
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
