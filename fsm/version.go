package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/snapshot"
)

// Versions of what is durable. They rise whenever meaning or form changes: an entry's with every change of what Apply does with a
// command or of what a command carries, a snapshot's with every change of its records. A test holds a recorded history and golden
// snapshots against hashes by version, so a change that forgets this fails.
const (
	// EntryVersion is the highest version of log entries that this build applies.
	EntryVersion = levels.Newest
	// OldestEntryVersion is the lowest. Entries before it had another meaning: nodes that apply them differently would differ for good.
	OldestEntryVersion = levels.Oldest
	// SnapshotVersion is the highest version of snapshots that this build writes and reads. It reads all before it.
	SnapshotVersion = snapshot.Version
)

// AnswerDigestVersion is the version of entries from which on a Report has a digest of the answer from which its signals were read.
const AnswerDigestVersion = 8

const (
	// oldestSnapshot is the lowest version of snapshots that this build writes, that of states of feature level 5.
	oldestSnapshot = 5
)

// snapshotVersion returns the version of this state's snapshots: builds that apply its entries, and nothing newer, read them. From
// oldestSnapshot on snapshots have the number of the feature level.
func (s *State) snapshotVersion() uint32 {
	return min(max(s.featureLevel, oldestSnapshot), SnapshotVersion)
}

// VersionError says that a log entry has a version that this build does not apply.
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

// FeatureLevel returns the state's feature level: the highest version of an entry that was applied, 0 before the first. A leader raises it
// when every member can apply the next one; from then on a build that cannot is not let into the cluster.
func (s *State) FeatureLevel() uint32 { return s.featureLevel }
