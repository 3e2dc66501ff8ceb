package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/rpc"
)

// versionInfo is what version prints.
type versionInfo struct {
	Version         string `json:"version"`
	Revision        string `json:"revision,omitempty"`
	Go              string `json:"go"`
	Platform        string `json:"platform"`
	OldestEntry     int    `json:"oldestEntryVersion"`
	EntryVersion    int    `json:"entryVersion"`
	SnapshotVersion int    `json:"snapshotVersion"`
	APIVersion      int    `json:"apiVersion"`
}

// Version is the binary's version as the toolchain recorded it: the module's version for an installed release, "devel"
// for one built in a checkout.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func describeVersion() versionInfo {
	found := versionInfo{
		Version: Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		OldestEntry: fsm.OldestEntryVersion, EntryVersion: fsm.EntryVersion, SnapshotVersion: fsm.SnapshotVersion, APIVersion: rpc.APIVersion,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				found.Revision = setting.Value
			}
		}
	}
	return found
}

func (a *App) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, and which formats of log and snapshot this binary knows",
		Example: `  quotad version -o json | jq -r .version`,
		Args:    arguments(),
		RunE: func(_ *cobra.Command, _ []string) error {
			found := describeVersion()
			if a.format == formatJSON {
				return output.Value(a.Out, found)
			}
			table := output.Table{}
			table.Add("quotad", found.Version)
			if found.Revision != "" {
				table.Add("revision", found.Revision)
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
