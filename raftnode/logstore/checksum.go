package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// Entries carry a checksum of their content from the leader's disk to every follower's. Neither raft nor its stores verify one on reads, so
// one node would apply a flipped bit, or a leader would send it to all. The checksum is in the entry's Extensions, which raft keeps for
// such layers and forwards unchanged.

// castagnoli is the CRC-32 polynomial for which processors have instructions.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the checksum of an entry's index, term, type and data.
func checksum(log *raft.Log) []byte {
	head := binary.BigEndian.AppendUint64(make([]byte, 0, 17), log.Index)
	head = append(binary.BigEndian.AppendUint64(head, log.Term), byte(log.Type))
	return binary.BigEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, log.Data))
}

// intact says whether an entry is at its index and has the right checksum.
func intact(log *raft.Log, index uint64) bool {
	return log.Index == index && string(log.Extensions) == string(checksum(log))
}

// seal returns entries with their checksums. An entry that has one already comes from a leader and must match it.
func seal(logs []*raft.Log) ([]*raft.Log, error) {
	sealed := make([]*raft.Log, len(logs))
	for i, log := range logs {
		if len(log.Extensions) > 0 {
			if !intact(log, log.Index) {
				return nil, fmt.Errorf("%w: log entry %d was damaged on its way from the leader; the leader sends it again", ErrDamaged, log.Index)
			}
			sealed[i] = log
			continue
		}
		with := *log
		with.Extensions = checksum(log)
		sealed[i] = &with
	}
	return sealed, nil
}

// getIntact reads an entry and verifies it.
func getIntact(store raft.LogStore, index uint64, log *raft.Log) error {
	err := store.GetLog(index, log)
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return err
	case err != nil:
		return entryDamage(store, index, "cannot be read: "+err.Error(), err)
	case !intact(log, index):
		return entryDamage(store, index, "differs from what was written there", nil)
	}
	return nil
}
