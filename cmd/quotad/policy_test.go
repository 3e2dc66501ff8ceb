package main

import (
	"os"
	"path/filepath"
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

// TestPolicyPages_MatchPolicyReference: each mechanism's page states its knobs as docs/policy.md does, every knob has its page, and every
// page has its picture. A test of fsm compares defaults and bounds in docs/policy.md with the code.
func TestPolicyPages_MatchPolicyReference(t *testing.T) {
	all := knobs(t, "../../docs/policy.md")
	if len(all) < 15 {
		t.Fatalf("%d knobs: is the form of the page another one?", len(all))
	}
	pages, err := filepath.Glob("../../docs/policy/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range pages {
		name := strings.TrimSuffix(filepath.Base(path), ".md")
		rows := knobs(t, path)
		if len(rows) == 0 {
			t.Errorf("%s has no knobs", path)
		}
		for knob, row := range rows { // any order will do
			general := all[knob]
			if general == nil || !slices.Equal(row[:4], general[:4]) || general[4] != "["+name+"](policy/"+name+".md)" {
				t.Errorf("%s: %s: %q, and in policy.md %q", path, knob, row, general)
			}
			delete(all, knob)
		}
		if _, err := os.Stat(strings.TrimSuffix(path, ".md") + ".svg"); err != nil {
			t.Error(err)
		}
	}
	for knob := range all { // any order will do
		t.Errorf("%s is on no page", knob)
	}
}

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
