package main

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var updateScripts = flag.Bool("update", false, "write the golden outputs in testdata/script anew")

// raceExit shortens what a process that was built with the race detector waits at its end for other threads' reports: a second by
// default, and these tests start hundreds of processes.
const raceExit = "atexit_sleep_ms=50"

// commandLine returns the build of quotad that runs the commands of sessions and documents: the one that the environment names or else,
// also for all nodes, the test binary. With the race detector a command takes several times as long, and there are hundreds.
func commandLine() (string, error) {
	if named := os.Getenv("QUOTAD_TEST_COMMAND"); named != "" {
		return named, nil
	}
	return os.Executable()
}

// The test binary is quotad itself when a script runs it: the processes in the scripts are real ones.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"quotad": func() { os.Exit(run()) }})
}

// TestScripts runs the sessions in testdata/script: every subcommand against real processes on loopback. They catch
// what a user or a script would see (output, exit codes, files, signals); faults of disk and network they do not make.
// Their quotas are no windows of the calendar where amounts are compared: these go back when the hour ends.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *updateScripts,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                scriptCommands(),
		Setup:               setupScript,
	})
}
