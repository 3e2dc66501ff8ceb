package peer

import "testing"

// TestBuild_Misfit: two builds fit if they have an entry version in common and each applies the level of the other's state.
func TestBuild_Misfit(t *testing.T) {
	for name, tt := range map[string]struct {
		a, b Build
		fit  bool
	}{
		"equal":                            {Build{Oldest: 2, Newest: 2, Level: 2}, Build{Oldest: 2, Newest: 2, Level: 2}, true},
		"a new disk":                       {Build{Oldest: 2, Newest: 2, Level: 2}, Build{Oldest: 2, Newest: 2}, true},
		"before builds were announced":     {Build{Oldest: 2, Newest: 2, Level: 2}, Build{}, false},
		"a rolling upgrade":                {Build{Oldest: 2, Newest: 3, Level: 2}, Build{Oldest: 2, Newest: 2, Level: 2}, true},
		"after the level was raised":       {Build{Oldest: 2, Newest: 3, Level: 3}, Build{Oldest: 2, Newest: 2, Level: 2}, false},
		"a build that left the level":      {Build{Oldest: 2, Newest: 3, Level: 2}, Build{Oldest: 3, Newest: 4}, false},
		"nothing in common":                {Build{Oldest: 2, Newest: 2}, Build{Oldest: 3, Newest: 3}, false},
		"in common, and the level is, too": {Build{Oldest: 2, Newest: 3, Level: 3}, Build{Oldest: 3, Newest: 4}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, misfit := range []string{tt.a.Misfit(tt.b), tt.b.Misfit(tt.a)} {
				if (misfit == "") != tt.fit {
					t.Error(misfit)
				}
			}
		})
	}
}
