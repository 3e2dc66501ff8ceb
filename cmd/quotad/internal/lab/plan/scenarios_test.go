package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// seeds is the number of seeds of each scenario in a quick test; `make scenarios` runs more.
var seeds = flag.Int("seeds", 2, "how many seeds of each scenario are run")

const scenarioFolder = "../../../../../docs/scenarios"

func scenarioFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(scenarioFolder, "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d scenarios: %v", len(files), err)
	}
	return files
}

// runsOf returns the runs of seeds 1 to count of a scenario. Seed 1, which two tests need, is run once: TestRun_SameSeedSameResult says why
// that is enough. Nothing may change the runs.
func runsOf(t *testing.T, path string, f *fleet.Fleet, count int) []Runs {
	t.Helper()
	firstRuns.Lock()
	if firstRuns.of == nil {
		firstRuns.of = map[string]func() ([]Runs, error){}
	}
	if firstRuns.of[path] == nil {
		firstRuns.of[path] = sync.OnceValues(func() ([]Runs, error) { return RunSeeds(t.Context(), f, 1, 1) })
	}
	first := firstRuns.of[path]
	firstRuns.Unlock()
	runs, err := first()
	if err != nil {
		t.Fatal(err)
	}
	others, err := RunSeeds(t.Context(), f, 2, count-1)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(runs, others)
}

var firstRuns struct {
	sync.Mutex
	of map[string]func() ([]Runs, error)
}

// TestScenarios: every scenario meets its file's expectations, for some seeds.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, path := range scenarioFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			t.Parallel()
			f, err := fleet.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			if f.Expect == nil {
				t.Fatal("nothing is expected")
			}
			for _, run := range runsOf(t, path, f, *seeds) {
				for _, wrong := range run.Wrong {
					t.Errorf("seed %d: %s", run.Seed, wrong)
				}
			}
		})
	}
}

// TestRun_SameSeedSameResult: the same seed gives the same result, byte for byte; another seed gives a different one.
func TestRun_SameSeedSameResult(t *testing.T) {
	for _, name := range []string{"s9-s2-six-writers", "s3-retry-loop", "s7-cascade"} {
		f, err := fleet.Read(filepath.Join(scenarioFolder, name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range []sim.Side{sim.Alone, sim.Governed} {
			text := func(seed uint64) []byte {
				r, err := sim.Run(t.Context(), f, side, seed)
				if err != nil {
					t.Fatal(err)
				}
				data, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				return data
			}
			if first := text(7); !bytes.Equal(first, text(7)) {
				t.Errorf("%s, %s: seed 7 gave two results", name, side)
			} else if bytes.Equal(first, text(8)) {
				t.Errorf("%s, %s: seeds 7 and 8 gave the same result", name, side)
			}
		}
	}
}

// TestScenario_ExpectationsCanFail: the files' expectations can fail. After one change to a file, its run fails an
// expectation.
func TestScenario_ExpectationsCanFail(t *testing.T) {
	t.Parallel()
	const steps = `      - {holder: triage}
      - {holder: architecture, after: [triage]}
      - {holder: implementation, after: [architecture]}
      - {holder: deployment, after: [implementation]}
      - {holder: announcement, after: [deployment]}
`
	for _, c := range []struct{ file, replace, by, want string }{
		// The limit differs from the one that the file expects.
		{
			"s3-retry-loop", "You've hit your usage limit. Upgrade", "Request rejected (429). Upgrade",
			"was taken for saturated; it was plan_exhausted",
		},
		{"s3-retry-loop", "Rate limit reached for gpt-5", "Something went wrong with gpt-5", "was taken for failed; it was saturated"},
		{"s3-retry-loop", "finished: true, says", "says", "was taken for plan_exhausted; it was finished_then_limited"},
		// Budgets and delays differ.
		{"s3-retry-loop", "max_failures: 5", "max_failures: 4", "8 attempts were failed; 9 have to be"},
		{"s3-retry-loop", "delays: [5m, 15m, 30m]", "delays: [5m, 15m, 31m]", "31m0s is the delay"},
		{"s3-retry-loop", "delays: [5m, 15m, 30m]", "delays: [4m, 15m, 30m]", "4m0s is the delay"},
		{"s3-retry-loop", "shelved: {broken: 1, stubborn: 1}", "shelved: {broken: 1}", "shelved are"},
		{"s3-retry-loop", "for: 12h", "for: 10h30m", "neither done nor shelved"},
		{"s3-retry-loop", "crashes: [{at: 3m, for: 2m}]", "", "0 attempts were lost"},
		{"s3-retry-loop", "burnt: {models/tokens: 450000}", "burnt: {models/tokens: 300000}", "were burnt"},
		{"s3-retry-loop", "attempts: 5\n", "attempts: 4\n", "was begun 5 times"},
		{"s3-retry-loop", "again: 78s-89s", "again: 5m", "make the incident"},
		// The workflow lacks steps, never runs one step at a time, or the chain does not end.
		{"s7-cascade", steps, "      - {holder: triage}\n      - {holder: announcement}\n", "back-pressure kept 0 calls"},
		{"s7-cascade", "    kept_back: 8", "    sequential: 9\n    kept_back: 8", "9 have to"},
		{"s7-cascade", "name: release", "name: release\n    calm: 1h", "goes one at a time still"},
		{"s7-cascade", "for: 3h", "for: 55m", "the chain did not finish"},
		{"s7-cascade", "at: 20m, for: 4m", "at: 20m, for: 2s", "60 make the incident"},
	} {
		t.Run(c.file+" "+c.by, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join(scenarioFolder, c.file+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), c.replace) {
				t.Fatalf("there is no %q any more", c.replace)
			}
			f, err := fleet.Parse(c.file, []byte(strings.Replace(string(text), c.replace, c.by, 1)))
			if err != nil {
				t.Fatal(err)
			}
			runs, err := RunSeeds(t.Context(), f, 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if wrong := strings.Join(runs[0].Wrong, "\n"); !strings.Contains(wrong, c.want) {
				t.Errorf("wrong is %q; %q was to be found", wrong, c.want)
			}
		})
	}
}

// TestPage_IsNotStale: the first seed's tables and plots equal the command's present output, and the page shows the plots.
func TestPage_IsNotStale(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(scenarioFolder, "..", "scenarios.md"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := readScenarios(scenarioFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		s.runs = runsOf(t, s.path, s.fleet, 1)
		var want bytes.Buffer
		if err := Plot(&want, s.fleet, s.runs[0].Alone, s.runs[0].Governed); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(plotPath(s.path))
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s is stale (%v): run make scenarios-page", plotPath(s.path), err)
		}
		if !strings.Contains(string(page), filepath.Base(plotPath(s.path))) {
			t.Errorf("the page does not show %s", filepath.Base(plotPath(s.path)))
		}
	}
	got, err := os.ReadFile(filepath.Join(scenarioFolder, firstTables))
	if err != nil {
		t.Fatal(err)
	}
	if want := markdown(tables(all, firstSeed)); string(got) != want {
		t.Errorf("%s has\n%s\nthe command makes\n%s\nrun make scenarios-page", firstTables, got, want)
	}
	if _, err := pageOf(string(page), all, 1); err != nil {
		t.Error(err)
	}
}
