package nemesis

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestMix_EachFaultComesOnce: a mix with Each injects every fault once before random ones, and only a run of sufficient length must have
// had all.
func TestMix_EachFaultComesOnce(t *testing.T) {
	mix, err := Mix{Name: "none"}.Only("kill-leader", "hostile-caller", "clock-ahead-once")
	if err != nil {
		t.Fatal(err)
	}
	var came []string
	for _, step := range mix.first(rand.New(rand.NewPCG(1, 2))) {
		for _, fault := range step {
			came = append(came, fault.Name)
		}
	}
	slices.Sort(came)
	if !slices.Equal(came, mix.Names()) {
		t.Errorf("%v came, asked for are %v", came, mix.Names())
	}
	if got := mix.Demanded(10 * time.Second); got != nil {
		t.Errorf("ten seconds must have had %v", got)
	}
	if got := mix.Demanded(time.Minute); !slices.Equal(got, mix.Names()) {
		t.Errorf("a minute must have had %v", got)
	}
	if _, err := mix.Only("no-such-fault"); err == nil {
		t.Error("a fault that does not exist can be asked for")
	}
}

// TestMixes_HaveSteps: each mix has steps.
func TestMixes_HaveSteps(t *testing.T) {
	for _, mix := range Mixes() {
		if steps := mix.steps(rand.New(rand.NewPCG(1, 2))); len(steps) == 0 && mix.Name != "none" {
			t.Errorf("%s has no steps", mix.Name)
		}
	}
}

// TestFaults_AreInAMix: a fault outside of every mix is never injected. One fault needs its own build.
func TestFaults_AreInAMix(t *testing.T) {
	var drawn []string
	for _, mix := range Mixes() {
		drawn = append(drawn, mix.Names()...)
	}
	for _, fault := range Faults() {
		if !slices.Contains(drawn, fault.Name) {
			t.Errorf("no mix has %s", fault.Name)
		}
	}
}
