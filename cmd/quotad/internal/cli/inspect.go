package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
	"github.com/quotad/quotad/raftnode/logstore"
)

// summary is the output of verify.
type summary struct {
	Path      string `json:"path"`
	ClusterID string `json:"clusterId"`
	Index     uint64 `json:"index"`
	Term      uint64 `json:"term"`
	Epoch     uint32 `json:"epoch"`
	Quotas    int64  `json:"quotas"`
	Leases    int64  `json:"leases"`
	Sessions  int64  `json:"sessions"`
	// LogEntries is the number of entries in a data directory's log; absent for a backup.
	LogEntries *int64 `json:"logEntries,omitempty"`
}

func (a *App) verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify FILE|DATADIR",
		Short: "Check a backup, or a stopped node's data directory",
		Long: `Check a backup or a stopped node's data directory: checksum, form, that it can be restored, that all totals equal the
sums of their parts. For a directory the check includes every page and file of the log store, every entry, every snapshot,
that the log continues where the newest snapshot ends, and that nothing is missing or older than the node's witness. For
damage it prints the file, the place and what to do. The printed index and contents are those of the newest snapshot and
every entry after it. It changes nothing.`,
		Example: `  quotad verify quotad-2026-01-31.backup
  quotad verify /var/lib/quotad`,
		Args: arguments("FILE|DATADIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := os.Stat(args[0])
			if err != nil {
				return notReadable(err)
			}
			var found *summary
			if info.IsDir() {
				found, err = summarizeDir(args[0])
			} else {
				found, err = summarize(args[0])
			}
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.Value(a.Out, found)
			}
			return a.printSummary(found)
		},
	}
	return a.outputFlag(cmd)
}

func (a *App) printSummary(found *summary) error {
	table := output.Table{}
	table.Add(found.Path, "good")
	table.Add("cluster", output.Or(found.ClusterID))
	table.Add("index", fmt.Sprintf("%d (term %d)", found.Index, found.Term))
	table.Add("fence epoch", output.Int(found.Epoch))
	table.Add("holds", fmt.Sprintf("%d quotas, %d leases, %d sessions", found.Quotas, found.Leases, found.Sessions))
	if found.LogEntries != nil {
		table.Add("log entries", output.Int(*found.LogEntries))
	}
	return table.Write(a.Out)
}

// summarize verifies a snapshot or backup.
func summarize(path string) (*summary, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, notReadable(err)
	}
	defer func() { _ = file.Close() }()
	machine, err := fsm.Restore(bufio.NewReaderSize(file, 1<<20))
	if err == nil {
		err = machine.State().Verify()
	}
	if err != nil {
		return nil, damaged(path, err, "use another copy: a damaged backup cannot be repaired")
	}
	return summaryOf(path, machine.State()), nil
}

func summaryOf(path string, state *fsm.State) *summary {
	counts := state.Counts()
	return &summary{
		Path: path, ClusterID: state.ClusterID(), Index: state.Index(), Term: state.Term(), Epoch: state.Epoch(),
		Quotas: counts.Quotas, Leases: counts.Leases, Sessions: counts.Sessions,
	}
}

// ofANode is the hint for a data directory that cannot be used.
const ofANode = "replace the node: its peers have the data"

// summarizeDir verifies a stopped node's data directory.
func summarizeDir(dir string) (*summary, error) {
	offline, err := openOffline(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = offline.Close() }()
	if err := offline.Verify(); err != nil {
		return nil, damaged(dir, err, whatToDo(err))
	}
	var entries int64
	err = offline.Entries(0, 0, func(entry logstore.Entry) error {
		entries++
		_, err := decode(entry)
		return err
	})
	if err != nil {
		return nil, damaged(dir, err, ofANode)
	}
	// All entries can be decoded, so State can apply them.
	state, err := offline.State()
	if err == nil {
		err = state.Verify()
	}
	if err != nil {
		return nil, damaged(dir, err, ofANode)
	}
	found := summaryOf(dir, state)
	found.LogEntries = &entries
	return found, nil
}

func openOffline(dir string) (*logstore.Offline, error) {
	offline, err := logstore.OpenOffline(dir)
	return offline, offlineError(err)
}

// offlineError adds hint and exit code to the usual errors of a stopped node's data directory.
func offlineError(err error) error {
	switch {
	case errors.Is(err, logstore.ErrDataDirInUse):
		return fail(ExitUnavailable, `stop the node first; of a running one, "quotad backup" shows the state`, "%w", err)
	case errors.Is(err, fs.ErrNotExist):
		return fail(ExitNotFound, "", "%w", err)
	case errors.Is(err, logstore.ErrDamaged), errors.Is(err, logstore.ErrWiped), errors.Is(err, logstore.ErrUncommittedRestore):
		return fail(ExitFailure, whatToDo(err), "%w", err)
	case errors.Is(err, logstore.ErrTwoLogStores):
		return fail(ExitFailure, `a migration was interrupted: run "quotad migrate" again with the same --to`, "%w", err)
	}
	return err
}

// whatToDo is the hint for a data directory that cannot be used.
func whatToDo(err error) string {
	var place *logstore.DamageError
	switch {
	case errors.Is(err, logstore.ErrWiped), errors.Is(err, logstore.ErrUncommittedRestore):
		return "see \"quotad member replace --help\""
	case errors.As(err, &place) && place.Advice != "":
		return "" // the error contains the advice
	}
	return ofANode
}

// damaged is the error for a file that cannot be used, with a hint.
func damaged(path string, err error, hint string) error {
	if errors.Is(err, fsm.ErrNewerSnapshot) {
		hint = "use the quotad version that wrote it, or a later one"
	}
	return fail(ExitFailure, hint, "%s: %w", path, err)
}

// decode decodes the payload of an entry that carries commands; it returns nil for other kinds.
func decode(entry logstore.Entry) (*logpb.Entry, error) {
	if entry.Kind != "command" {
		return nil, nil
	}
	decoded := new(logpb.Entry)
	if err := proto.Unmarshal(entry.Data, decoded); err != nil {
		return nil, fmt.Errorf("log entry %d cannot be decoded: %w", entry.Index, err)
	}
	if decoded.Version > fsm.EntryVersion {
		return nil, fmt.Errorf("log entry %d has version %d; this binary knows %d", entry.Index, decoded.Version, fsm.EntryVersion)
	}
	return decoded, nil
}

func (a *App) inspectCommand() *cobra.Command {
	return group("inspect", "Show log entries and snapshots of a stopped node as JSON", a.inspectLog(), a.inspectSnapshot())
}

// logLine is the form in which inspect prints an entry.
type logLine struct {
	Index uint64          `json:"index"`
	Term  uint64          `json:"term"`
	Kind  string          `json:"kind"`
	Entry json.RawMessage `json:"entry,omitempty"`
}

func (a *App) inspectLog() *cobra.Command {
	var from, to uint64
	cmd := &cobra.Command{
		Use:     "log DATADIR",
		Short:   "Show the log of a stopped node, one JSON object per entry and line",
		Example: `  quotad inspect log /var/lib/quotad --from 1000 --to 1010 | jq .entry.commands`,
		Args:    arguments("DATADIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			offline, err := openOffline(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = offline.Close() }()
			return offline.Entries(from, to, func(entry logstore.Entry) error {
				line := logLine{Index: entry.Index, Term: entry.Term, Kind: entry.Kind}
				decoded, err := decode(entry)
				if err != nil {
					return damaged(args[0], err, ofANode)
				}
				if decoded != nil {
					if line.Entry, err = output.Raw(decoded); err != nil {
						return err
					}
				}
				return output.Line(a.Out, line)
			})
		},
	}
	cmd.Flags().Uint64Var(&from, "from", 0, "first index (default: the oldest)")
	cmd.Flags().Uint64Var(&to, "to", 0, "last index (default: the newest)")
	return cmd
}

func (a *App) inspectSnapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot FILE|DATADIR",
		Short: "Show a backup, or the newest snapshot of a stopped node, one JSON object per record and line",
		Example: `  quotad inspect snapshot quotad-2026-01-31.backup
  quotad inspect snapshot /var/lib/quotad | jq -c 'select(.quota)'`,
		Args: arguments("FILE|DATADIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := snapshotPath(args[0])
			if err != nil {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return notReadable(err)
			}
			defer func() { _ = file.Close() }()
			err = snapshot.Read(bufio.NewReaderSize(file, 1<<20), func(_ uint32, record *logpb.SnapshotRecord) error {
				raw, err := output.Raw(record)
				if err != nil {
					return err
				}
				return output.Line(a.Out, raw)
			})
			if err != nil {
				return damaged(path, err, ofANode)
			}
			return nil
		},
	}
	return cmd
}

// snapshotPath returns the path of a data directory's newest snapshot; it returns the path of a file unchanged.
func snapshotPath(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", notReadable(err)
	}
	if !info.IsDir() {
		return path, nil
	}
	offline, err := openOffline(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = offline.Close() }()
	snapshots, err := offline.Snapshots()
	if err != nil {
		return "", damaged(path, err, ofANode)
	}
	if len(snapshots) == 0 {
		return "", fail(ExitNotFound, `"quotad inspect log" shows its log`, "%s has no snapshot yet", path)
	}
	return snapshots[0].Path, nil
}
