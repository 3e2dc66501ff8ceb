package cli

import (
	"regexp"
	"testing"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
)

// TestHelp_NamesKnownVariables: no command refuses a variable that the help of one names.
func TestHelp_NamesKnownVariables(t *testing.T) {
	variable := regexp.MustCompile(`QUOTAD_[A-Z_]+`)
	found := map[string]bool{}
	var read func(*cobra.Command)
	read = func(cmd *cobra.Command) {
		for _, name := range variable.FindAllString(cmd.Long+cmd.UsageString(), -1) {
			found[name] = true
		}
		for _, child := range cmd.Commands() {
			read(child)
		}
	}
	read((&App{}).Root())
	for name := range found {
		if err := config.CheckEnvironment([]string{name + "=x"}); err != nil {
			t.Error(err)
		}
	}
	if len(found) < 9 {
		t.Errorf("only %d variables found: %v", len(found), found)
	}
}
