package logstore

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quotad/quotad/fsm"
)

// verifyVersions returns a wrapped ErrUnfitBuild if this build does not apply an entry after the newest snapshot. Open calls it before raft
// applies any. The first and the last command suffice: versions only rise.
func verifyVersions(dir string, log raft.LogStore) error {
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil {
		return err
	}
	all, _, err := ListSnapshots(dir)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		first = max(first, all[0].Index+1)
	}
	for _, way := range []struct {
		from, to uint64
		step     int64
	}{{first, last, 1}, {last, first, -1}} {
		if err := checkFirstCommand(log, way.from, way.to, way.step); err != nil {
			return err
		}
	}
	return nil
}

// checkFirstCommand checks the version of the first command from one index towards another.
func checkFirstCommand(log raft.LogStore, from, to uint64, step int64) error {
	for at := from; at != 0 && (step > 0 && at <= to || step < 0 && at >= to); at = uint64(int64(at) + step) {
		var entry raft.Log
		if err := log.GetLog(at, &entry); err != nil {
			return err
		}
		if entry.Type != raft.LogCommand {
			continue
		}
		if version, ok := versionOf(entry.Data); ok {
			if err := fsm.CheckVersion(at, version); err != nil {
				return fmt.Errorf("%w: %w", ErrUnfitBuild, err)
			}
		}
		return nil
	}
	return nil
}

// versionOf reads the version of an encoded entry, which is its first field.
func versionOf(data []byte) (version uint32, ok bool) {
	number, kind, size := protowire.ConsumeTag(data)
	if size < 0 || number != 1 || kind != protowire.VarintType {
		return 0, false
	}
	value, size := protowire.ConsumeVarint(data[size:])
	return uint32(value), size >= 0
}

// ErrUnfitBuild says that a node's build cannot take part: it does not apply an entry of the cluster's log, or speaks another protocol with
// its peers.
var ErrUnfitBuild = errors.New("this build does not fit the cluster")
