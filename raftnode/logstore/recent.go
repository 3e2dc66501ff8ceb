package logstore

import "github.com/hashicorp/raft"

// Bounds of recentEntries.
const (
	maxRecent      = 128
	maxRecentBytes = 1 << 20
)

// recentEntries are the newest consecutive entries on disk. Raft reads each of them back soon: a follower on commit, before it answers for
// the next one; a leader as the entry before those that it sends.
type recentEntries struct {
	entries []*raft.Log
	bytes   int
}

// add adds entries that are now on disk. If there is a gap before them, covered by a snapshot, it drops the older ones.
func (r *recentEntries) add(logs []*raft.Log) {
	if n := len(r.entries); n > 0 && r.entries[n-1].Index+1 != logs[0].Index {
		*r = recentEntries{}
	}
	r.entries = append(r.entries, logs...)
	for _, log := range logs {
		r.bytes += len(log.Data)
	}
	for len(r.entries) > maxRecent || r.bytes > maxRecentBytes {
		r.bytes -= len(r.entries[0].Data)
		r.entries[0] = nil
		r.entries = r.entries[1:]
	}
}

// entryAt returns the entry with an index from a consecutive list, nil if the list lacks it.
func entryAt(entries []*raft.Log, index uint64) *raft.Log {
	if len(entries) == 0 || index < entries[0].Index || index-entries[0].Index >= uint64(len(entries)) {
		return nil
	}
	return entries[index-entries[0].Index]
}
