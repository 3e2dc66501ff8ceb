package plan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/live"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// TestShorten: a fleet whose work ends is still whole in a shorter run; the kills of other fleets move to the same
// fractions of the time.
func TestShorten(t *testing.T) {
	for _, c := range []struct {
		file  string
		most  time.Duration
		whole time.Duration
		kills []time.Duration
	}{
		{"s9-s2-six-writers", time.Hour, 0, []time.Duration{20 * time.Second, 100 * time.Second}},
		{"s9-s2-six-writers", 10 * time.Minute, 0, []time.Duration{20 * time.Second, 100 * time.Second}},
		{"s9-s4-six-analysts", 10 * time.Minute, 100 * time.Minute, []time.Duration{time.Minute, 210 * time.Second, 8 * time.Minute}},
		{"s4-six-analysts", 10 * time.Minute, 100 * time.Minute, nil},
	} {
		all, err := readScenarios([]string{filepath.Join(scenarioFolder, c.file+".yaml")})
		if err != nil {
			t.Fatal(err)
		}
		before := slices.Clone(all[0].fleet.Cluster.Kills)
		r := shorten(all[0], c.most)
		if r.whole != c.whole || !slices.Equal(r.fleet.Cluster.Kills, c.kills) || r.fleet.For > c.most && all[0].fleet.For > c.most {
			t.Errorf("%s in %v: of %v, %v long, kills %v", c.file, c.most, r.whole, r.fleet.For, r.fleet.Cluster.Kills)
		}
		if !slices.Equal(all[0].fleet.Cluster.Kills, before) {
			t.Errorf("%s: the file's own kills were moved to %v", c.file, all[0].fleet.Cluster.Kills)
		}
	}
}

// TestRealScenario_FailsIfItProvesNothing: a run fails if a planned event did not happen, or if an event was not recorded.
func TestRealScenario_FailsIfItProvesNothing(t *testing.T) {
	all, err := readScenarios([]string{filepath.Join(scenarioFolder, "s9-s4-six-analysts.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	good := func() *realScenario {
		s := shorten(all[0], 10*time.Minute)
		s.alone = &live.Outcome{Seen: make([]live.Attempt, 9), Result: &sim.Result{Attempts: 9}}
		s.governed = &live.Outcome{Seen: make([]live.Attempt, 8), Result: &sim.Result{Attempts: 9, Served: 8}, Kills: make([]live.Kill, 3)}
		return s
	}
	if wrong := good().wrong(); len(wrong) != 0 {
		t.Fatalf("it should hold: %v", wrong)
	}
	for want, spoil := range map[string]func(*realScenario){
		"killed 2 times":     func(s *realScenario) { s.governed.Kills = s.governed.Kills[1:] },
		"provider refused 1": func(s *realScenario) { s.governed.Refused = 1 },
		"the slowest took 402ms": func(s *realScenario) {
			s.governed.Quotas = []sim.QuotaResult{{Quota: "requests", Period: time.Second}}
			s.governed.Seen = []live.Attempt{
				{At: time.Second, Way: time.Hour}, {At: 2 * time.Second, Way: 402 * time.Millisecond}, {At: 2 * time.Second, Way: 1, Refused: true},
			}
		},
		"provider saw 10":        func(s *realScenario) { s.governed.Seen = make([]live.Attempt, 10) },
		"nobody was served":      func(s *realScenario) { s.governed.Served = 0 },
		"alone: the provider":    func(s *realScenario) { s.alone.Side, s.alone.Seen = sim.Alone, make([]live.Attempt, 10) },
		"risk was never served":  func(s *realScenario) { s.whole, s.governed.Holders = 0, []sim.Holder{{Name: "risk", Calls: 1}} },
		"demand never exceeded ": func(s *realScenario) { s.whole, s.governed.Quotas = 0, []sim.QuotaResult{{Quota: "requests"}} },
	} {
		s := good()
		spoil(s)
		if wrong := strings.Join(s.wrong(), "\n"); !strings.Contains(wrong, want) {
			t.Errorf("%q is not among what is wrong:\n%s", want, wrong)
		}
	}
}

// TestRealSection_IsNotStale: the page's section of runs in real time was made from the current files.
func TestRealSection_IsNotStale(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(scenarioFolder, "..", "scenarios.md"))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range []string{"s1-nine-agents", "s2-six-writers", "s4-six-analysts"} {
		files = append(files, filepath.Join(scenarioFolder, name+".yaml"), filepath.Join(scenarioFolder, "s9-"+name+".yaml"))
	}
	mark, err := filesMark(files)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), realBegin+mark) {
		t.Errorf("the page's runs in real time are of other files than %s: run make scenarios-real", strings.TrimSpace(mark))
	}
}
