package cli

import (
	"runtime/debug"
	"testing"
)

// TestDescribeVersion_NamesTheCommit: a build names its commit, whether it was built from a checkout or installed as a
// module.
func TestDescribeVersion_NamesTheCommit(t *testing.T) {
	const commit = "c3e09ce8a1b20d94a1c0a2f1b7f7a9b9c1d2e3f4"
	built := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: commit}, {Key: "vcs.modified", Value: modified}}
	}
	installed := func(version string, settings ...debug.BuildSetting) debug.BuildInfo {
		return debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	for what, c := range map[string]struct {
		info         debug.BuildInfo
		name, commit string
	}{
		"nothing was recorded":               {name: version},
		"in a clean tree":                    {installed("", built("false")...), version + "+c3e09ce8a1b2", commit},
		"in a tree with changes":             {installed("", built("true")...), version + "+c3e09ce8a1b2.modified", commit},
		"a release that was installed":       {installed("v" + version), version, ""},
		"installed between releases":         {installed("v0.1.1-0.20261124205046-c3e09ce8a1b2"), version + "+c3e09ce8a1b2", "c3e09ce8a1b2"},
		"installed before the first release": {installed("v0.0.0-20261124205046-c3e09ce8a1b2"), version + "+c3e09ce8a1b2", "c3e09ce8a1b2"},
		"both, in a tree with changes": {
			installed("v0.0.0-20261124205046-c3e09ce8a1b2+dirty", built("true")...), version + "+c3e09ce8a1b2.modified", commit,
		},
	} {
		t.Run(what, func(t *testing.T) {
			got := describeVersion(&c.info)
			if got.name() != c.name || got.Commit != c.commit {
				t.Errorf("%q of commit %q, want %q of %q", got.name(), got.Commit, c.name, c.commit)
			}
		})
	}
}
