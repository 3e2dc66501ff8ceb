package fsm

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// commandsField is the field of an entry in which its commands are.
const commandsField = 5

// AppendCommand appends a command to an encoded logpb.Entry, byte for byte as proto.Marshal has it there. A Reserve, which most are, it
// writes itself, with the fields that this binary knows; their numbers are those of log.proto.
func AppendCommand(entry []byte, command *logpb.Command) ([]byte, error) {
	if kind, ok := command.GetKind().(*logpb.Command_Reserve); ok && kind != nil && kind.Reserve != nil {
		e := encoder{b: entry}
		at := e.open(commandsField)
		e.reserveCommand(command, kind.Reserve)
		if e.close(at); !e.bad {
			return e.b, nil
		}
	}
	entry = protowire.AppendTag(entry, commandsField, protowire.BytesType)
	entry = protowire.AppendVarint(entry, uint64(proto.Size(command)))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(entry, command)
}

// encoder appends fields to a message. Their numbers are below 16, so that a tag is a byte.
type encoder struct {
	b []byte
	// bad is set by what cannot be written: what was appended is to be thrown away, and the library says why.
	bad bool
}

func (e *encoder) reserveCommand(c *logpb.Command, r *logpb.Reserve) {
	e.number(1, c.Session)
	e.number(2, c.Seq)
	e.number(3, c.AckedBelow)
	e.text(4, c.IdempotencyKey)
	e.text(5, c.By)
	at := e.open(reserveField)
	e.reserve(r)
	e.close(at)
}

func (e *encoder) reserve(r *logpb.Reserve) {
	e.text(1, r.Holder)
	for _, item := range r.Items {
		at := e.open(2)
		e.item(item)
		e.close(at)
	}
	e.number(3, uint64(r.TtlNs))
	e.flag(4, r.Consume)
	if r.Class != nil {
		e.present(5, uint64(*r.Class))
	}
	e.number(6, uint64(r.WaitNs))
	e.flag(7, r.Resume)
	e.flag(8, r.Emergency)
	e.flag(9, r.Fallback)
}

func (e *encoder) item(item *logpb.Item) {
	e.text(1, item.GetQuota())
	if item != nil && item.Amount != nil {
		e.present(2, uint64(*item.Amount))
	}
}

// present appends a number, 0 too.
func (e *encoder) present(field byte, n uint64) {
	e.b = protowire.AppendVarint(append(e.b, field<<3), n)
}

func (e *encoder) number(field byte, n uint64) {
	if n != 0 {
		e.present(field, n)
	}
}

func (e *encoder) flag(field byte, is bool) {
	if is {
		e.present(field, 1)
	}
}

func (e *encoder) text(field byte, s string) {
	if s != "" {
		e.bad = e.bad || !utf8.ValidString(s)
		e.b = protowire.AppendString(append(e.b, field<<3|byte(protowire.BytesType)), s)
	}
}

// open begins a field that is a message and returns where its content begins. Its length is thought to take one byte.
func (e *encoder) open(field byte) int {
	e.b = append(e.b, field<<3|byte(protowire.BytesType), 0)
	return len(e.b)
}

// close ends a field that is a message: what it has is moved where its length takes more than a byte.
func (e *encoder) close(at int) {
	length := uint64(len(e.b) - at)
	if more := protowire.SizeVarint(length) - 1; more > 0 {
		var room [9]byte
		e.b = append(e.b, room[:more]...)
		copy(e.b[at+more:], e.b[at:])
	}
	protowire.AppendVarint(e.b[:at-1], length)
}
