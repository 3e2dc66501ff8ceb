package fsm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
)

// timeOf formats a duration as docs/policy.md does.
func timeOf(ns int64) string {
	for _, unit := range []struct {
		of   int64
		name string
	}{{day, "days"}, {hour, "h"}, {minute, "min"}} {
		if n := ns / unit.of; n > 0 && ns%unit.of == 0 && (unit.of != day || n > 1) {
			return fmt.Sprintf("%d %s", n, unit.name)
		}
	}
	return fmt.Sprintf("%d s", ns/second)
}

// partOf formats millionths as docs/policy.md does.
func partOf(millionths int64) string {
	return strconv.FormatFloat(float64(millionths)/fixed.Million, 'f', -1, 64)
}

// TestPolicyPage_MatchesCode: docs/policy.md states exactly the defaults and bounds of the state machine.
func TestPolicyPage_MatchesCode(t *testing.T) {
	shares := "0 to 1, together at most 1; not of slots"
	want := map[string][2]string{
		"zones":             {"off", "smooth, strict; windows only"},
		"shares.critical":   {"0", shares},
		"shares.standard":   {"0", shares},
		"shares.background": {"0", shares},
		"shares.holders": {"none", fmt.Sprintf("%d holders, together at most 1; instead of the classes; windows only",
			ledger.MaxHolderShares)},
		"shares.cap":         {partOf(ledger.DefaultCap), "critical's share to 1"},
		"shares.floor":       {partOf(ledger.DefaultFloor), "0 to 1"},
		"shares.quiet":       {timeOf(ledger.DefaultQuiet), timeOf(second) + " to " + timeOf(ledger.MaxQuiet)},
		"prediction.samples": {strconv.Itoa(ledger.DefaultSamples), fmt.Sprintf("%d to %d; windows only", ledger.MinSamples, ledger.MaxSamples)},
		"prediction.ahead":   {timeOf(ledger.DefaultAhead), timeOf(second) + " to " + timeOf(ledger.MaxAhead)},
		"fallback (of the quota)": {
			"none", fmt.Sprintf("%d in a chain", maxDepth),
		},
		"ageing":                {"off", timeOf(second) + " to " + timeOf(ledger.MaxAgeing)},
		"ramp":                  {"off", "up to " + timeOf(ledger.MaxRamp)},
		"breaker.failures":      {"none: it must be set", fmt.Sprintf("1 to %d,%03d", ledger.MaxBreakerCount/1000, ledger.MaxBreakerCount%1000)},
		"breaker.closed":        {timeOf(ledger.DefaultClosed), timeOf(second) + " to " + timeOf(ledger.MaxClosed)},
		"observe":               {"no", ""},
		"metering":              {"no", ""},
		"an override's --limit": {"none", "0 to 2^53-1"},
		"an override's --for":   {"none", timeOf(minOverride) + " to " + timeOf(maxOverride)},
	}
	if fixed.MaxAmount != 1<<53-1 {
		t.Error("the page has another largest amount")
	}
	page, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| knob | unit | default |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(strings.ReplaceAll(line, "`", ""), "|")
		if len(cells) != 8 {
			t.Fatalf("%d cells: %s", len(cells), line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		expected, known := want[cells[1]]
		if got := [2]string{cells[3], cells[5]}; !known || got != expected {
			t.Errorf("%s: the page says %q, the code %q", cells[1], got, expected)
		}
		delete(want, cells[1])
	}
	for knob := range want { // in any order
		t.Errorf("the page has no %s", knob)
	}
}
