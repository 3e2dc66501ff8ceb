package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// Hash returns the hash of the ledger (fence, quotas, leases, operations) and of the whole state, including time and
// policy. Replicas at the same index have equal hashes. A refused command does not change the ledger's. Objects that
// have ended by the passing of time alone are left out, whether or not a command has removed them yet.
func (s *State) Hash() (ledger, whole [32]byte) {
	all, part := sha256.New(), sha256.New()
	writeRecord(all, &logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Head{Head: s.encodeHead()}})
	var fence [16]byte
	binary.BigEndian.PutUint64(fence[:8], s.fence())
	binary.BigEndian.PutUint64(fence[8:], s.lastLease)
	_, _ = part.Write(fence[:])
	s.ledgerRecords(func(record *logpb.SnapshotRecord) bool {
		if encoded := record.GetQuota(); encoded != nil {
			q, _ := s.quotas.byNumber.Get(encoded.Number)
			g := q.ledgerAt(s.clock)
			record = &logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Quota{Quota: encodeQuota(q, &g)}}
		}
		writeRecord(part, record)
		return true
	})
	part.Sum(ledger[:0])
	_, _ = all.Write(ledger[:])
	for _, section := range []func(func(*logpb.SnapshotRecord) bool) bool{
		s.accountRecords, s.policyRecords, s.requestRecords, s.memberRecords, s.tasks.Records, s.resumeRecords,
		s.deletedRecords, s.queue.encodeMoving, s.reopeningRecords,
	} {
		section(func(record *logpb.SnapshotRecord) bool {
			writeRecord(all, record)
			return true
		})
	}
	all.Sum(whole[:0])
	return ledger, whole
}

func writeRecord(to hash.Hash, record *logpb.SnapshotRecord) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(record)
	if err != nil {
		panic("fsm: a record of the state cannot be encoded: " + err.Error())
	}
	_, _ = to.Write(binary.AppendUvarint(nil, uint64(len(encoded))))
	_, _ = to.Write(encoded)
}
