package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// asDriver makes the test binary act as the Go client's driver.
const asDriver = "QUOTAD_CONFORMANCE_DRIVER"

func TestMain(m *testing.M) {
	if os.Getenv(asDriver) != "" {
		if err := serveDriver(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func start(t *testing.T) *kit {
	t.Helper()
	k, err := newKit(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	return k
}

// python returns the command line of a Python program in this folder.
func python(t *testing.T, args ...string) []string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 on this machine")
	}
	return append([]string{path}, args...)
}

func TestGoClient_Conforms(t *testing.T) {
	t.Setenv(asDriver, "1")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	try(t, []string{self})
}

func TestPythonDriver_Conforms(t *testing.T) { try(t, python(t, "driver.py")) }

func try(t *testing.T, command []string) {
	t.Helper()
	k := start(t)
	for _, c := range cases() {
		if c.slow && testing.Short() {
			continue
		}
		began := time.Now()
		if err := k.run(c, command); err != nil {
			t.Errorf("%s: %v\nrule: %s\nsource: %s", c.name, err, c.rule, c.source)
		}
		t.Logf("%s: %v", c.name, time.Since(began).Round(time.Millisecond))
	}
}

// Each defect of a client is found by its case.
func TestCases_CatchBrokenDrivers(t *testing.T) {
	k := start(t)
	for _, c := range cases() {
		if len(defects[c.name]) == 0 {
			t.Errorf("no broken driver belongs to case %s", c.name)
		}
		if c.slow && testing.Short() {
			continue
		}
		for _, defect := range defects[c.name] {
			err := k.run(c, python(t, "broken.py", defect.name))
			if err == nil || !strings.Contains(err.Error(), defect.says) {
				t.Errorf("a client that %s: %v; want an error with %q", defect.name, err, defect.says)
			}
			t.Logf("a client that %s: %v", defect.name, err)
		}
	}
}

// defects are the defects of broken.py, by the case that finds them, with text of its error.
var defects = map[string][]struct{ name, says string }{
	"numbering":   {{"sends-no-ids", "needs session and seq"}},
	"acked_below": {{"forgets-acked-below", "keeps their results"}},
	"repeat":      {{"retries-with-a-new-id", "was sent under"}},
	"refusal":     {{"repeats-refusals", "a refusal is an answer"}},
	"full-disk":   {{"mixes-positions", "on a full disk"}},
	"outcomes":    {{"calls-unknown-not-accepted", "never answered"}},
	"session":     {{"repeats-in-a-new-session", "session are lost"}},
	"deadline":    {{"ignores-served-in", "too early"}, {"counts-from-the-answer", "after it ended"}},
}

// Each case is in README.md, and the documentation has the section that it names.
func TestCases_AreDocumented(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases() {
		if !strings.Contains(string(readme), "\n| `"+c.name+"` |") {
			t.Errorf("README.md has no row of case %s", c.name)
		}
		page, section, _ := strings.Cut(c.source, ", ")
		section, _, _ = strings.Cut(section, " (")
		text, err := os.ReadFile("../../" + page)
		if err != nil || !strings.Contains(string(text), "# "+section+"\n") {
			t.Errorf("case %s: %s has no section %q: %v", c.name, page, section, err)
		}
	}
}

func TestAudit(t *testing.T) {
	reserve := func(seq, mark uint64, quota string) *quotav1.Command {
		return &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{
			RequestId: &quotav1.RequestId{Session: 7, Seq: seq, AckedBelow: mark}, Items: []*quotav1.Item{{Quota: quota}},
		}}}
	}
	yes, no := true, false
	sent := func(arrived bool, c *quotav1.Command) sighting {
		return sighting{exchange: &exchange{delivered: arrived}, command: c}
	}
	for name, test := range map[string]struct {
		all  []sighting
		says string
	}{
		"in order": {[]sighting{sent(yes, reserve(1, 1, "a")), sent(yes, reserve(2, 2, "a"))}, ""},
		"again, with a higher mark": {
			[]sighting{sent(yes, reserve(1, 1, "a")), sent(no, reserve(2, 1, "a")), sent(yes, reserve(2, 2, "a"))}, "",
		},
		"a copy comes late": {
			[]sighting{sent(yes, reserve(1, 1, "a")), sent(yes, reserve(2, 2, "a")), sent(yes, reserve(1, 1, "a"))}, "",
		},
		"given up":           {[]sighting{sent(no, reserve(1, 1, "a")), sent(yes, reserve(2, 2, "a"))}, ""},
		"one number for two": {[]sighting{sent(yes, reserve(1, 1, "a")), sent(yes, reserve(1, 1, "b"))}, "two requests"},
		"no seq":             {[]sighting{sent(yes, reserve(0, 0, "a"))}, "count from 1"},
		"acknowledged before it arrived": {
			[]sighting{sent(no, reserve(1, 1, "a")), sent(yes, reserve(2, 2, "a")), sent(yes, reserve(1, 2, "a"))}, "sent again",
		},
	} {
		err := audit(test.all)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}
