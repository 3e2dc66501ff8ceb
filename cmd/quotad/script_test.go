package main

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var updateScripts = flag.Bool("update", false, "write the golden outputs in testdata/script again")

// raceExit shortens the time for which a process built with the race detector waits at its end for other threads' reports.
// The default is a second, and these tests start hundreds of processes.
const raceExit = "atexit_sleep_ms=50"

// commandLine returns the quotad binary that runs the commands of scripts and documents: the one that QUOTAD_TEST_COMMAND
// names, or else the test binary, which also runs all nodes. With the race detector a command takes several times as long,
// and there are hundreds.
func commandLine() (string, error) {
	if named := os.Getenv("QUOTAD_TEST_COMMAND"); named != "" {
		return named, nil
	}
	return os.Executable()
}

// TestMain: the test binary acts as quotad when a script runs it, so scripts start real processes.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"quotad": func() { os.Exit(run()) }})
}

// TestScripts runs the scripts in testdata/script: every subcommand against real processes on loopback. They cover what a
// user or a script sees: output, exit codes, files, signals. They inject no faults of disk or network. Scripts that compare
// amounts avoid calendar windows, whose amounts return when the hour ends.
func TestScripts(t *testing.T) {
	t.Parallel() // mostly waiting
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *updateScripts,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                scriptCommands(),
		Setup:               setupScript,
	})
}
