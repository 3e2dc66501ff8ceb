package main

import (
	"io"
	"strings"
	"testing"
)

// TestPlantedCommand_RefusesUnknownName: a misspelt name must not look like a defect that was caught.
func TestPlantedCommand_RefusesUnknownName(t *testing.T) {
	cmd := plantedCommand()
	cmd.SetArgs([]string{"no-such-defect"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), `"no-such-defect"`) {
		t.Errorf("an unknown name gives %v", err)
	}
}
