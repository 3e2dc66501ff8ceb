package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/snapshot"
)

// Versions of durable formats. They rise whenever meaning or form changes: an entry's with every change of a command's
// fields or of what Apply does with it, a snapshot's with every change of its records. A test compares a recorded
// history and golden snapshots with hashes by version, so a forgotten version fails.
const (
	// EntryVersion is the highest version of log entries that this build applies.
	EntryVersion = levels.Newest
	// OldestEntryVersion is the lowest. Older entries had another meaning, so nodes would apply them differently and
	// diverge.
	OldestEntryVersion = levels.Oldest
	// SnapshotVersion is the highest version of snapshots that this build writes and reads. It also reads all older
	// ones.
	SnapshotVersion = snapshot.Version
)

// AnswerDigestVersion is the first entry version in which a Report carries a digest of the answer that it was read
// from.
const AnswerDigestVersion = 8

const (
	// oldestSnapshot is the lowest version of snapshots that this build writes, for states of feature level 5.
	oldestSnapshot = 5
)

// snapshotVersion returns the version of this state's snapshots, which all builds that apply its entries can read. From
// oldestSnapshot on it equals the feature level.
func (s *State) snapshotVersion() uint32 {
	return min(max(s.featureLevel, oldestSnapshot), SnapshotVersion)
}

// VersionError says that this build does not apply the version of a log entry.
type VersionError struct {
	Index   uint64
	Version uint32
}

// Error implements error.
func (e *VersionError) Error() string {
	if e.Version > EntryVersion {
		return fmt.Sprintf("log entry %d has version %d; this build applies versions %d to %d: upgrade it",
			e.Index, e.Version, OldestEntryVersion, EntryVersion)
	}
	return fmt.Sprintf("log entry %d has version %d; this build applies versions %d to %d: make a backup with the build that wrote it, "+
		"and restore that into a new cluster", e.Index, e.Version, OldestEntryVersion, EntryVersion)
}

// CheckVersion returns a *VersionError for an entry whose version this build does not apply.
func CheckVersion(index uint64, version uint32) error {
	if version < OldestEntryVersion || version > EntryVersion {
		return &VersionError{Index: index, Version: version}
	}
	return nil
}

// FeatureLevel returns the state's feature level: the highest version of an applied entry, 0 before the first. A leader
// raises it when every member can apply the next version. From then on the cluster does not admit builds that cannot.
func (s *State) FeatureLevel() uint32 { return s.featureLevel }
