package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
)

// knobs returns the rows of a page's table of knobs by the knob's name: unit, default, in fleet, bounds, and the last cell.
func knobs(t *testing.T, path string) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	_, table, _ := strings.Cut(string(page), "| knob | unit | default | in `fleet` | bounds |")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) == 6 && cells[0] != "---" {
			rows[cells[0]] = cells[1:]
		}
	}
	return rows
}

// TestPolicyPages_HaveKnobsAndPictures: each knob in docs/policy.md names the page of its mechanism; each page in docs/policy has a knob, a
// link to the table of knobs, and a picture. A test of fsm compares the table with the code.
func TestPolicyPages_HaveKnobsAndPictures(t *testing.T) {
	all := knobs(t, "../../docs/policy.md")
	if len(all) < 15 {
		t.Fatalf("%d knobs: is the form of the page another one?", len(all))
	}
	paths, err := filepath.Glob("../../docs/policy/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d pages: %v", len(paths), err)
	}
	withKnob := map[string]bool{}
	for knob, row := range all { // any order will do
		link := pageOfKnob.FindStringSubmatch(row[4])
		if link == nil || link[1] != link[2] || !slices.Contains(paths, "../../docs/policy/"+link[2]+".md") {
			t.Errorf("%s names no page: %q", knob, row[4])
			continue
		}
		withKnob[link[2]] = true
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !withKnob[strings.TrimSuffix(filepath.Base(path), ".md")] || !strings.Contains(string(text), "[knobs](../policy.md#all-knobs)") {
			t.Errorf("%s has no knob, or no link to the table", path)
		}
		if _, err := os.Stat(strings.TrimSuffix(path, ".md") + ".svg"); err != nil {
			t.Error(err)
		}
	}
}

var pageOfKnob = regexp.MustCompile(`^\[(\w+)\]\(policy/(\w+)\.md\)`)

// TestFleetProfile_MatchesPage: the values of profile fleet are those of docs/policy.md.
func TestFleetProfile_MatchesPage(t *testing.T) {
	file, err := quotafile.Parse("f", []byte("quotas: [{name: q, window: {limit: 100, every: hour}, policy: {profile: fleet}}]"))
	if err != nil {
		t.Fatal(err)
	}
	policy := file.Quotas[0].Policy
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	fleet := map[string]string{
		"`zones`":           "`" + strings.ToLower(strings.TrimPrefix(policy.Zones.String(), "ZONES_")) + "`",
		"`shares.critical`": number(policy.Shares.Critical),
		"`shares.standard`": number(policy.Shares.Standard), "`shares.background`": number(policy.Shares.Background),
		"`ageing`": number(policy.Ageing.AsDuration().Minutes()) + " min", "`ramp`": number(policy.Ramp.AsDuration().Minutes()) + " min",
		"`breaker.failures`": strconv.Itoa(int(policy.Breaker.Failures)),
		"`breaker.closed`":   number(policy.Breaker.Closed.AsDuration().Minutes()) + " min",
		"`metering`":         map[bool]string{true: "yes", false: "no"}[policy.Metering],
	}
	if policy.Shares.Cap != 0 || policy.Shares.Floor != nil || policy.Shares.Quiet != nil || policy.Prediction.Samples != 0 ||
		policy.Prediction.Ahead != nil {
		t.Error("the profile has other values than the defaults that the page names for it")
	}
	if policy.Observe || policy.Shares.Holders != nil || file.Quotas[0].Fallback != "" {
		t.Error("the page says that the profile leaves these alone")
	}
	for knob, row := range knobs(t, "../../docs/policy.md") { // any order will do
		want, set := fleet[knob]
		switch {
		case set && row[2] != want:
			t.Errorf("%s is %s in the profile, and the page says %s", knob, want, row[2])
		case !set && row[2] != "-" && row[2] != row[1]:
			t.Errorf("%s has its default in the profile, and the page says %s", knob, row[2])
		}
	}
}
