package entry

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// Decoder decodes entries as proto.Unmarshal does, each command when its turn has come. Of the command that comes most, a Reserve that
// is answered at once, it makes no new objects: those of the one before are used again, so nothing may be kept of such a command but its
// names. Fields' numbers are those of log.proto; a message with any other field, or one of another kind, is protobuf's to decode.
type Decoder struct {
	// Entry is the present entry's, without its commands unless protobuf decoded all of it.
	Entry logpb.Entry
	// encoded are its commands, parts of it; nil where protobuf decoded them.
	encoded [][]byte
	plain   plainReserve
	// Names are those that were met lately.
	Names *Names
	// Wholly has protobuf decode all of each entry. Nobody may tell, and tests see to it.
	Wholly bool
}

// reserveField is the field of a command in which a Reserve is.
const reserveField = 12

// PlainItems is how many items a plain Reserve has at most.
const PlainItems = 4

// plainReserve is a Reserve that is answered at once, with all that it consists of.
type plainReserve struct {
	command logpb.Command
	kind    logpb.Command_Reserve
	reserve logpb.Reserve
	class   int32
	list    [PlainItems]*logpb.Item
	items   [PlainItems]logpb.Item
	amounts [PlainItems]int64
}

// Decode decodes what an entry says of itself; its commands follow one by one. What it says of itself is there too where it has fields
// that are not known.
func (d *Decoder) Decode(data []byte) error {
	encoded := d.encoded[:0]
	d.Entry.Reset()
	ok := eachField(data, func(field protowire.Number, number uint64, part []byte) bool {
		switch {
		case field == commandsField && part != nil:
			encoded = append(encoded, part)
		case part != nil:
			return false
		case field == 1:
			d.Entry.Version = uint32(number)
		case field == 2:
			d.Entry.StampNs = int64(number)
		case field == 3:
			d.Entry.WallEarlyNs = int64(number)
		case field == 4:
			d.Entry.WallLateNs = int64(number)
		default:
			return false
		}
		return true
	})
	if !ok || d.Wholly {
		d.encoded = nil
		if err := proto.Unmarshal(data, &d.Entry); err != nil {
			return err
		}
		return KnownEntry.Check(data)
	}
	if before := d.encoded; len(before) > len(encoded) {
		clear(before[len(encoded):]) // or they would keep their entry
	}
	d.encoded = encoded
	return nil
}

// Commands returns how many commands the entry has.
func (d *Decoder) Commands() int { return max(len(d.encoded), len(d.Entry.Commands)) }

// Command decodes one command, which lasts until the next one. Of a plain Reserve it returns the encoded Reserve too.
func (d *Decoder) Command(i int) (command *logpb.Command, raw []byte, err error) {
	if d.encoded == nil {
		return d.Entry.Commands[i], nil, nil
	}
	if raw, plain := d.plainCommand(d.encoded[i]); plain {
		return &d.plain.command, raw, nil
	}
	command = new(logpb.Command)
	if err := proto.Unmarshal(d.encoded[i], command); err != nil {
		return nil, nil, err
	}
	return command, nil, KnownCommand.Check(d.encoded[i])
}

// plainCommand decodes a command that is a plain Reserve, and returns that as it is encoded too; false: it is not one.
func (d *Decoder) plainCommand(data []byte) (raw []byte, plain bool) {
	p := &d.plain
	p.command.Reset()
	ok := eachField(data, func(field protowire.Number, number uint64, part []byte) (ok bool) {
		switch {
		case field == reserveField && part != nil && p.command.Kind == nil:
			p.kind.Reserve = &p.reserve
			p.command.Kind, raw = &p.kind, part
			return d.reserve(part)
		case field == 5 && part != nil:
			p.command.By, ok = d.Names.of(part)
			return ok
		case field == 6 && part != nil:
			p.command.Caller, ok = d.Names.of(part)
			return ok
		case part != nil:
			return false
		case field == 1:
			p.command.Session = number
		case field == 2:
			p.command.Seq = number
		case field == 3:
			p.command.AckedBelow = number
		case field == 7:
			p.command.Operator = number != 0
		case field == 8:
			p.command.PerHolder = number != 0
		default:
			return false
		}
		return true
	})
	return raw, ok && p.command.Kind != nil
}

func (d *Decoder) reserve(data []byte) bool {
	p := &d.plain
	r := &p.reserve
	r.Reset()
	r.Items = p.list[:0]
	return eachField(data, func(field protowire.Number, number uint64, part []byte) (ok bool) {
		switch {
		case field == 1 && part != nil:
			r.Holder, ok = d.Names.of(part)
			return ok
		case field == 2 && part != nil && len(r.Items) < PlainItems:
			i := len(r.Items)
			r.Items = append(r.Items, &p.items[i])
			return d.item(&p.items[i], &p.amounts[i], part)
		case part != nil:
			return false
		case field == 3:
			r.TtlNs = int64(number)
		case field == 4:
			r.Consume = number != 0
		case field == 5:
			p.class = int32(number)
			r.Class = &p.class
		default:
			return false
		}
		return true
	})
}

func (d *Decoder) item(item *logpb.Item, amount *int64, data []byte) bool {
	item.Reset()
	return eachField(data, func(field protowire.Number, number uint64, part []byte) (ok bool) {
		switch {
		case field == 1 && part != nil:
			item.Quota, ok = d.Names.of(part)
			return ok
		case field == 2 && part == nil:
			*amount = int64(number)
			item.Amount = amount
			return true
		}
		return false
	})
}

// eachField calls fn with the fields of an encoded message, numbers or parts (never nil), for as long as it returns true. It
// returns false where fn did, or the message is no such.
func eachField(data []byte, fn func(field protowire.Number, number uint64, part []byte) bool) bool {
	for len(data) > 0 {
		field, kind, size := protowire.Number(data[0]>>3), protowire.Type(data[0]&7), 1
		if data[0] < 1<<3 || data[0] >= 1<<7 { // not a byte's tag
			if field, kind, size = protowire.ConsumeTag(data); size < 0 {
				return false
			}
		}
		data = data[size:]
		var number uint64 // of a part: its length
		if len(data) > 0 && data[0] < 1<<7 {
			number, data = uint64(data[0]), data[1:]
		} else if number, size = protowire.ConsumeVarint(data); size >= 0 {
			data = data[size:]
		} else {
			return false
		}
		var part []byte
		switch kind {
		case protowire.VarintType:
		case protowire.BytesType:
			if number > uint64(len(data)) {
				return false
			}
			part, number, data = data[:number:number], 0, data[number:]
		default:
			return false
		}
		if !fn(field, number, part) {
			return false
		}
	}
	return true
}
