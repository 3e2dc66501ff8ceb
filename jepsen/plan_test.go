package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quotad/quotad/jepsen/nemesis"
)

// TestPlan_DrawsTLSFromSeed: a run that must rotate certificates has TLS, one that may rotate them has it by its seed, and no other has.
func TestPlan_DrawsTLSFromSeed(t *testing.T) {
	for name, want := range map[string]struct{ with, without bool }{
		"edge": {with: true}, "default": {with: true, without: true}, "short": {without: true}, "none": {without: true},
	} {
		mix, err := nemesis.MixNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		got := map[bool]bool{}
		for seed := range uint64(64) {
			p := plan{mix: mix, seed: seed}
			got[p.wantsTLS()] = true
		}
		if got[true] != want.with || got[false] != want.without {
			t.Errorf("%s: with TLS %v, without %v; want %+v", name, got[true], got[false], want)
		}
	}
}

// TestComplete_KeepsPinnedFlags: flags for TLS and the store override the seed and the mix.
func TestComplete_KeepsPinnedFlags(t *testing.T) {
	there := filepath.Join(t.TempDir(), "quotad")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		tls  bool
		ok   bool
	}{
		"the mix says TLS":         {[]string{"--mix", "edge"}, true, true},
		"TLS is off":               {[]string{"--mix", "edge", "--tls=false"}, false, true},
		"TLS is on":                {[]string{"--mix", "none", "--tls"}, true, true},
		"no TLS":                   {[]string{"--mix", "none", "--store", "boltdb"}, false, true},
		"a store that there isn't": {[]string{"--mix", "none", "--store", "sqlite"}, false, false},
	} {
		cmd, p := newRunCommand()
		if err := cmd.ParseFlags(append(c.args, "--binary", there, "--seed", "1")); err != nil {
			t.Fatal(err)
		}
		p.tlsPinned = cmd.Flags().Changed("tls")
		if err := p.complete(); (err == nil) != c.ok || err == nil && p.tls != c.tls {
			t.Errorf("%s: TLS %v, %v", name, p.tls, err)
		}
	}
}

// TestFindBuilds_NeedsThoseThatAreMixed: a run that mixes builds needs them, and no run begins with a missing one.
func TestFindBuilds_NeedsThoseThatAreMixed(t *testing.T) {
	there := filepath.Join(t.TempDir(), "quotad")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mix    string
		builds nemesis.Builds
		ok     bool
	}{
		"one build":         {"short", nemesis.Builds{New: there}, true},
		"none":              {"short", nemesis.Builds{New: there + "-gone"}, false},
		"all":               {nemesis.Upgrade, nemesis.Builds{New: there, Previous: there, Unfit: there}, true},
		"no previous build": {nemesis.Upgrade, nemesis.Builds{New: there, Unfit: there}, false},
		"no unfit build":    {nemesis.Upgrade, nemesis.Builds{New: there, Previous: there}, false},
		"previous is gone":  {nemesis.Upgrade, nemesis.Builds{New: there, Previous: there + "-gone", Unfit: there}, false},
	} {
		p := plan{mix: nemesis.Mix{Name: c.mix}, builds: c.builds}
		if err := p.findBuilds(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
