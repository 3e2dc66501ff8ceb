package model

import (
	"testing"

	"pgregory.net/rapid"
)

// TestFork_IsIndependent: a judge and its fork judge the same entries in the same way. Shared books would count each entry twice.
func TestFork_IsIndependent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newDrive(fromRapid{rt}, rapid.Bool().Draw(rt, "policies"))
		d.found()
		for range rapid.IntRange(0, 100).Draw(rt, "entries before") {
			d.step()
		}
		origin, fork := d.judge, d.judge.Fork()
		for range rapid.IntRange(1, 50).Draw(rt, "entries after") {
			violations := append(d.step(), fork.Entry(d.entries[len(d.entries)-1], &d.last)...)
			if len(violations) > 0 {
				rt.Fatalf("%+v\n%s", violations[0], d.answered(60))
			}
			for name, judge := range map[string]*Judge{"origin": origin, "fork": fork} {
				d.judge = judge
				if err := d.audit(); err != nil {
					rt.Fatalf("the %s: %v\n%s", name, err, d.answered(60))
				}
			}
			d.judge = origin
		}
		if origin.Stats() != fork.Stats() {
			rt.Fatalf("the origin has %+v, the fork %+v", origin.Stats(), fork.Stats())
		}
	})
}
