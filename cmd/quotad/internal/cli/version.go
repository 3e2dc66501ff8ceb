package cli

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/rpc"
)

// version is the version of the source. A release's tag is "v" and this version.
const version = "0.1.0"

// versionInfo is the output of version.
type versionInfo struct {
	Version string `json:"version"`
	// Commit is the commit of the build, empty if the toolchain did not record it. Modified says that the tree had
	// uncommitted changes.
	Commit          string `json:"commit,omitempty"`
	Modified        bool   `json:"modified,omitempty"`
	Go              string `json:"go"`
	Platform        string `json:"platform"`
	OldestEntry     int    `json:"oldestEntryVersion"`
	EntryVersion    int    `json:"entryVersion"`
	SnapshotVersion int    `json:"snapshotVersion"`
	APIVersion      int    `json:"apiVersion"`
}

// Version names this build for people: 0.1.0, or with a known commit 0.1.0+c3e09ce8a1b2.
func Version() string { return describeVersion(buildInfo()).name() }

// name distinguishes builds of one version, in the form of semantic versions.
func (v *versionInfo) name() string {
	name := v.Version
	if v.Commit != "" {
		name += "+" + v.Commit[:min(len(v.Commit), shortCommit)]
	}
	if v.Modified {
		name += ".modified"
	}
	return name
}

// shortCommit is the number of digits that identify a commit, as in the versions of Go modules.
const shortCommit = 12

// buildInfo returns the toolchain's record of this binary.
func buildInfo() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return new(debug.BuildInfo)
}

// atCommit matches the commit in a pseudo-version: that of a module installed between two releases.
var atCommit = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})(?:\+|$)`)

func describeVersion(info *debug.BuildInfo) *versionInfo {
	found := &versionInfo{
		Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		OldestEntry: fsm.OldestEntryVersion, EntryVersion: fsm.EntryVersion, SnapshotVersion: fsm.SnapshotVersion, APIVersion: rpc.APIVersion,
	}
	if match := atCommit.FindStringSubmatch(info.Main.Version); match != nil {
		found.Commit = match[1]
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			found.Commit = setting.Value
		case "vcs.modified":
			found.Modified = setting.Value == "true"
		}
	}
	return found
}

func (a *App) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version and the supported formats of log and snapshot",
		Example: `  quotad version -o json | jq -r .version`,
		Args:    arguments(),
		RunE: func(_ *cobra.Command, _ []string) error {
			found := describeVersion(buildInfo())
			if a.format == formatJSON {
				return output.Value(a.Out, found)
			}
			table := output.Table{}
			table.Add("quotad", found.Version)
			switch {
			case found.Modified:
				table.Add("commit", found.Commit+", with changes")
			case found.Commit != "":
				table.Add("commit", found.Commit)
			}
			table.Add("go", found.Go+" "+found.Platform)
			table.Add("log entries", fmt.Sprintf("versions %d to %d", found.OldestEntry, found.EntryVersion))
			table.Add("snapshots", fmt.Sprintf("up to version %d", found.SnapshotVersion))
			table.Add("API", fmt.Sprintf("version %d", found.APIVersion))
			return table.Write(a.Out)
		},
	}
	return a.outputFlag(cmd)
}
