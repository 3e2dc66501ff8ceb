package entry

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/field"
	"github.com/quotad/quotad/fsm/logpb"
)

// commandsField is the field of an entry for its commands.
const commandsField = 5

// AppendCommand appends a command to an encoded logpb.Entry, byte for byte as proto.Marshal does. It encodes a Reserve,
// the most frequent command, itself, with the fields that this binary knows; their numbers are those of log.proto.
func AppendCommand(entry []byte, command *logpb.Command) ([]byte, error) {
	if kind, ok := command.GetKind().(*logpb.Command_Reserve); ok && kind != nil && kind.Reserve != nil {
		e := encoder{field.Appender{B: entry}}
		at := e.Open(commandsField)
		e.reserveCommand(command, kind.Reserve)
		if e.Close(at); !e.Bad {
			return e.B, nil
		}
	}
	entry = protowire.AppendTag(entry, commandsField, protowire.BytesType)
	entry = protowire.AppendVarint(entry, uint64(proto.Size(command)))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(entry, command)
}

// encoder appends the fields of a Reserve's messages.
type encoder struct{ field.Appender }

func (e *encoder) reserveCommand(c *logpb.Command, r *logpb.Reserve) {
	e.Number(1, c.Session)
	e.Number(2, c.Seq)
	e.Number(3, c.AckedBelow)
	e.Text(4, c.IdempotencyKey)
	e.Text(5, c.By)
	e.Text(6, c.Caller)
	e.Flag(7, c.Operator)
	e.Flag(8, c.PerHolder)
	at := e.Open(reserveField)
	e.reserve(r)
	e.Close(at)
}

func (e *encoder) reserve(r *logpb.Reserve) {
	e.Text(1, r.Holder)
	for _, item := range r.Items {
		at := e.Open(2)
		e.item(item)
		e.Close(at)
	}
	e.Number(3, uint64(r.TtlNs))
	e.Flag(4, r.Consume)
	if r.Class != nil {
		e.Present(5, uint64(*r.Class))
	}
	e.Number(6, uint64(r.WaitNs))
	e.Flag(7, r.Resume)
	e.Flag(8, r.Emergency)
	e.Flag(9, r.Fallback)
	e.Text(10, r.Member)
}

func (e *encoder) item(item *logpb.Item) {
	e.Text(1, item.GetQuota())
	if item != nil && item.Amount != nil {
		e.Present(2, uint64(*item.Amount))
	}
	e.Text(3, item.GetPool())
}
