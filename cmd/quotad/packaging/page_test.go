// Package packaging tests what is released: the page that shows it, the binaries, and the Debian package.
package packaging

import (
	"os"
	"strings"
	"testing"
)

// TestPage_ShowsWhatIsShipped: the configuration and the unit on the operators' page are those of the package.
func TestPage_ShowsWhatIsShipped(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for language, name := range map[string]string{"ini": "quotad.service", "yaml": "quotad.yaml"} {
		shipped, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if block := "```" + language + "\n" + string(shipped) + "```\n"; !strings.Contains(string(page), block) {
			t.Errorf("docs/operations.md does not show cmd/quotad/packaging/%s as it is, in a block of %s", name, language)
		}
	}
}
