package main

import (
	"io"
	"strings"
	"testing"
)

// TestPlantedCommand_RefusesUnknownName: a misspelt name, or one of another kind, must not look like a defect that was caught.
func TestPlantedCommand_RefusesUnknownName(t *testing.T) {
	for _, args := range [][]string{{"no-such-defect"}, {"--tests", "double-grant"}, {"--sim", "allowance-too-late"}} {
		cmd := plantedCommand()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), `"`+args[len(args)-1]+`"`) {
			t.Errorf("%q gives %v", args, err)
		}
	}
}
