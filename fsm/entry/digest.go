package entry

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// DigestHolder returns a digest of a holder's name. Many names with the same digest are infeasible to find: their
// holders would slow down each other's walks.
func DigestHolder(name string) uint64 {
	var room [128]byte
	digest := sha256.Sum256(append(room[:0], name...))
	return binary.BigEndian.Uint64(digest[:])
}

// DigestItems returns a digest of items, never 0.
func DigestItems(items []*logpb.Item) uint64 {
	hash := fnv.New64a()
	var number [9]byte
	for _, item := range items {
		binary.BigEndian.PutUint64(number[:8], uint64(item.GetAmount()))
		number[8] = 0
		if item.Amount != nil {
			number[8] = 1
		}
		_, _ = hash.Write([]byte(item.Quota))
		_, _ = hash.Write([]byte{0})
		_, _ = hash.Write(number[:])
	}
	return max(hash.Sum64(), 1)
}

// Digester computes digests of commands, in a buffer that it reuses.
type Digester struct{ room []byte }

// Command returns a digest of a command's content, without its identity. For a plain Reserve it uses the encoding in
// its entry (raw). It encodes anything else again, with the same result as proto.Marshal, which leaders use.
// Deterministic encodings of two binaries may differ for unknown fields only. An entry with such fields comes from a
// newer binary, and this binary does not accept its commands.
func (d *Digester) Command(command *logpb.Command, raw []byte) uint64 {
	if raw != nil {
		d.room = protowire.AppendBytes(protowire.AppendTag(d.room[:0], reserveField, protowire.BytesType), raw)
		return digestBytes(d.room)
	}
	kind := command.Kind
	if r := command.GetReport(); r.GetAnswerDigest() != 0 { // signals read from the same answer again may differ
		kind = &logpb.Command_Report{Report: &logpb.Report{Lease: r.Lease, Fence: r.Fence, Op: r.Op, AnswerDigest: r.AnswerDigest}}
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(d.room[:0], &logpb.Command{Kind: kind})
	if err != nil {
		panic("fsm: a decoded command cannot be encoded: " + err.Error())
	}
	d.room = encoded
	return digestBytes(encoded)
}

func digestBytes(data []byte) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write(data)
	return max(hash.Sum64(), 1)
}
