package main

import (
	"testing"

	"github.com/quotad/quotad/jepsen/nemesis"
)

// TestTLSIsDrawnFromTheSeed: a run that must rotate certificates has some, one that may has some by its seed, and no other has.
func TestTLSIsDrawnFromTheSeed(t *testing.T) {
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
