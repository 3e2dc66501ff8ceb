package entry

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// Decoder decodes entries like proto.Unmarshal, and each command only when it is needed. The most frequent command, a
// Reserve that does not wait, it decodes without new objects: it reuses those of the previous one, so callers may keep
// only its names. Field numbers are those of log.proto. protobuf decodes a message with any other field, or one of
// another type.
type Decoder struct {
	// Entry is the present entry, without its commands unless protobuf decoded all of it.
	Entry logpb.Entry
	// encoded are its commands, as parts of the entry; nil if protobuf decoded them.
	encoded [][]byte
	plain   plainReserve
	// Names are recently used names.
	Names *Names
	// Wholly makes protobuf decode all of each entry. The result must be the same, which tests check.
	Wholly bool
}

// reserveField is the field of a command for a Reserve.
const reserveField = 12

// PlainItems is the most items of a plain Reserve.
const PlainItems = 4

// plainReserve is a Reserve that does not wait, with all of its objects.
type plainReserve struct {
	command logpb.Command
	kind    logpb.Command_Reserve
	reserve logpb.Reserve
	class   int32
	list    [PlainItems]*logpb.Item
	items   [PlainItems]logpb.Item
	amounts [PlainItems]int64
}

// Decode decodes an entry's own fields; Command decodes its commands one by one. The own fields are set even if the
// entry has unknown fields.
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
		clear(before[len(encoded):]) // or they would keep their entry alive
	}
	d.encoded = encoded
	return nil
}

// Commands returns how many commands the entry has.
func (d *Decoder) Commands() int { return max(len(d.encoded), len(d.Entry.Commands)) }

// Command decodes one command, valid until the next call. For a plain Reserve it returns the encoded Reserve too.
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

// plainCommand decodes a command that is a plain Reserve, and returns the encoded Reserve too; false: it is not one.
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

// eachField calls fn with the fields of an encoded message, numbers or parts (never nil), until fn returns false. It
// returns false if fn did, or if the message is malformed.
func eachField(data []byte, fn func(field protowire.Number, number uint64, part []byte) bool) bool {
	for len(data) > 0 {
		field, kind, size := protowire.Number(data[0]>>3), protowire.Type(data[0]&7), 1
		if data[0] < 1<<3 || data[0] >= 1<<7 { // not a tag of one byte
			if field, kind, size = protowire.ConsumeTag(data); size < 0 {
				return false
			}
		}
		data = data[size:]
		var number uint64 // the length, for a part
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
