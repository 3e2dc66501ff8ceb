package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quotad/quotad/cmd/quotad/internal/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/fleet/sim"
)

// seeds is how many seeds of each scenario a quick test runs; `make scenarios` runs more.
var seeds = flag.Int("seeds", 2, "how many seeds of each scenario are run")

const scenarioFolder = "../../../../docs/scenarios"

func scenarioFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(scenarioFolder, "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d scenarios: %v", len(files), err)
	}
	return files
}

// Every scenario holds what its file expects, for some seeds.
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
			runs, err := RunSeeds(t.Context(), f, 1, *seeds)
			if err != nil {
				t.Fatal(err)
			}
			for _, run := range runs {
				for _, wrong := range run.Wrong {
					t.Errorf("seed %d: %s", run.Seed, wrong)
				}
			}
		})
	}
}

// The same seed gives the same result, to the last byte; another seed another one.
func TestSameSeedSameResult(t *testing.T) {
	f, err := fleet.Read(filepath.Join(scenarioFolder, "s9-s2-six-writers.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []sim.Side{sim.Alone, sim.Governed} {
		text := func(seed uint64) []byte {
			r, err := sim.Run(f, side, seed)
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
			t.Errorf("%s: seed 7 gave two results", side)
		} else if bytes.Equal(first, text(8)) {
			t.Errorf("%s: seeds 7 and 8 gave the same result", side)
		}
	}
}

// The page's table of the first seed, and the plots, are what the command makes now.
func TestPageIsNotStale(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(scenarioFolder, "..", "scenarios.md"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := readScenarios(scenarioFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.runs, err = RunSeeds(t.Context(), s.fleet, 1, 1); err != nil {
			t.Fatal(err)
		}
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
	want, err := pageOf(string(page), all, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	part := func(text string) string {
		_, rest, _ := strings.Cut(text, firstBegin)
		rest, _, _ = strings.Cut(rest, firstEnd)
		return rest
	}
	if part(string(page)) != part(want) {
		t.Errorf("docs/scenarios.md has\n%s\nthe command makes\n%s\nrun make scenarios-page", part(string(page)), part(want))
	}
}
