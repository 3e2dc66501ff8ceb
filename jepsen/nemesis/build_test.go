package nemesis

import "testing"

// TestRefusesDisk_FindsHowBuildEnded: a build on a disk that it does not fit has to end by itself, with an error that says so.
func TestRefusesDisk_FindsHowBuildEnded(t *testing.T) {
	const words = "quotad: /d: this build does not fit the cluster: log entry 7 has version 3; this build applies versions 2 to 2: upgrade it"
	for name, c := range map[string]struct {
		code int
		said string
		ok   bool
	}{
		"it says so":             {1, words, true},
		"of a snapshot":          {1, "quotad: snapshot of a newer version", true},
		"it ran on":              {-1, words, false},
		"as if all were well":    {0, words, false},
		"another reason":         {1, "quotad: /d: permission denied", false},
		"with a panic":           {2, "panic: " + words, false},
		"it says nothing at all": {1, "", false},
	} {
		if why := refusesDisk(c.code, c.said); (why == "") != c.ok {
			t.Errorf("%s: judged %q", name, why)
		}
	}
}

// TestUpgrade_MixesBuildsWhileFaultsCome: the mix ends with its first build, and kills leaders while builds are mixed.
func TestUpgrade_MixesBuildsWhileFaultsCome(t *testing.T) {
	mix, err := MixNamed(Upgrade)
	if err != nil {
		t.Fatal(err)
	}
	builds := &Builds{New: "new", Previous: "previous"}
	mixed, broken := false, 0
	for _, name := range mix.Faults {
		switch name {
		case "upgrade-followers", "downgrade-followers":
			mixed = true
		case "upgrade-others", "downgrade-others":
			mixed = false
		case "kill-leader":
			if mixed {
				broken++
			}
		}
	}
	if mixed || broken != 2 {
		t.Errorf("mixed at the end: %v; leaders killed while builds are mixed: %d", mixed, broken)
	}
	if newBuild(builds) != "new" || previousBuild(builds) != "previous" {
		t.Error("upgrades and downgrades lead to the wrong builds")
	}
}
