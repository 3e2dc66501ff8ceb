package fsm

import "fmt"

// Versions of what is durable. They rise whenever meaning or form changes: an entry's with every change of what Apply does with a
// command or of what a command carries, a snapshot's with every change of its records. A test holds a recorded history and golden
// snapshots against hashes by version, so a change that forgets this fails.
const (
	// EntryVersion is the highest version of log entries that this build applies.
	EntryVersion = 9
	// OldestEntryVersion is the lowest. Entries before it had another meaning: nodes that apply them differently would differ for good.
	OldestEntryVersion = 5
	// SnapshotVersion is the highest version of snapshots that this build writes and reads. It reads all before it.
	SnapshotVersion = 9
)

// AnswerDigestVersion is the version of entries from which on a Report has a digest of the answer from which its signals were read.
const AnswerDigestVersion = 8

const (
	// levelRates is the feature level from which on rates have shares.
	levelRates = 6
	// levelReports is that from which on rates heed what their provider says is left, are predicted, and cooldowns say when to come back
	// by class.
	levelReports = 7
	// levelPoolItems is that from which on a Reserve that names a pool has fewer items.
	levelPoolItems = 8
	// levelAside is that from which on a waiter of a rate with shares is tried again when its amount is lent next to what is set aside.
	levelAside = 8
	// levelOvertaken is that from which on what was consumed after a reporting operation is not taken for what others use, and shares of a
	// rate are of what these leave.
	levelOvertaken = 8
	// levelOneWord is that from which on one caller's word holds a rate back for a bounded time, and closes it for an hour at most.
	levelOneWord = 8
	// levelSpread is that from which on callers also come back spread where a ramp makes them wait for longer than the cooldown.
	levelSpread = 9
	// levelHeard is that from which on a report of an operation is stale only next to a later one of the same caller.
	levelHeard = 9
	// levelOwn is that from which on sessions and idempotency keys belong to the caller that made them, not to all of the same reach.
	levelOwn = 9
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
