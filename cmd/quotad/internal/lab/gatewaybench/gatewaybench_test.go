package gatewaybench_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/quotad/quotad/cmd/quotad/internal/cli"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/gatewaybench"
)

// TestMain is quotad itself when it is called like it: the nodes are processes of this binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		app := &cli.App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()}
		code := app.Run(ctx, os.Args[1:])
		stop()
		os.Exit(int(code))
	}
	m.Run()
}

// Each path that is measured answers.
func TestA33_EachPathAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	running, err := gatewaybench.System(binary, 1).Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer running.Stop()
	if n := len(running.PIDs()); n != 3 {
		t.Errorf("%d nodes run", n)
	}
	works := running.Works()
	if len(works) != 5 {
		t.Errorf("%d paths are measured, want 5", len(works))
	}
	for _, w := range works {
		for n := range 3 {
			if err := w.Do(t.Context(), 0, n); err != nil {
				t.Errorf("%s, call %d: %v", w.Name, n, err)
			}
		}
	}
}
