package local_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/quotad/quotad/cmd/quotad/internal/cli"
)

// TestMain is quotad itself when it is called like it: what starts its own binary starts this one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		app := &cli.App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()}
		code := app.Run(ctx, os.Args[1:])
		stop()
		os.Exit(int(code))
	}
	goleak.VerifyTestMain(m)
}
