package logstore

import (
	"errors"

	"github.com/hashicorp/raft"
)

// Entry is one entry of a node's log.
type Entry struct {
	Index, Term uint64
	Kind        string // command, noop, configuration, barrier
	Data        []byte
}

// eachEntry calls fn for the entries from..to (0: the last) of a log, and skips gaps.
func eachEntry(store raft.LogStore, from, to uint64, fn func(Entry) error) error {
	first, err := store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := store.LastIndex()
	if err != nil {
		return err
	}
	if to == 0 || to > last {
		to = last
	}
	for index := max(from, first, 1); index <= to; index++ {
		var entry raft.Log
		if err := store.GetLog(index, &entry); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				continue
			}
			return err
		}
		if err := fn(Entry{Index: index, Term: entry.Term, Kind: kindOf(entry.Type), Data: entry.Data}); err != nil {
			return err
		}
	}
	return nil
}

func kindOf(t raft.LogType) string {
	switch t {
	case raft.LogCommand:
		return "command"
	case raft.LogNoop:
		return "noop"
	case raft.LogConfiguration:
		return "configuration"
	case raft.LogBarrier:
		return "barrier"
	case raft.LogAddPeerDeprecated, raft.LogRemovePeerDeprecated:
	}
	return "other"
}
