package fsm

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// decoder decodes entries as proto.Unmarshal does. Of the command that comes most, a Reserve that is answered at once, it makes
// no new objects: those of the entry before are used again, so nothing may be kept of such a command but its names. Fields' numbers are those of
// log.proto; a message with any other field, or one of another kind, is protobuf's to decode.
type decoder struct {
	entry logpb.Entry
	// raw are the encoded Reserves of the plain commands, parts of the entry, by position in it; nil for all others.
	raw [][]byte
	// plain are the objects, of which so many are used in this entry.
	plain []*plainReserve
	used  int
	names names
}

// reserveField is the field of a command in which a Reserve is.
const reserveField = 12

// plainItems is how many items a plain Reserve has at most.
const plainItems = 4

// plainReserve is a Reserve that is answered at once, with all that it consists of.
type plainReserve struct {
	command logpb.Command
	kind    logpb.Command_Reserve
	reserve logpb.Reserve
	class   int32
	list    [plainItems]*logpb.Item
	items   [plainItems]logpb.Item
	amounts [plainItems]int64
}

// decode decodes an entry, which lasts until the next one.
func (d *decoder) decode(data []byte) (*logpb.Entry, error) {
	d.used = 0
	commands, raw := d.entry.Commands[:0], d.raw[:0]
	d.entry.Reset()
	ok := eachField(data, func(field protowire.Number, number uint64, part []byte) bool {
		switch {
		case field == 5 && part != nil:
			command, reserve := d.command(part)
			if command == nil {
				command = new(logpb.Command)
				if proto.Unmarshal(part, command) != nil {
					return false
				}
			}
			commands, raw = append(commands, command), append(raw, reserve)
		case part != nil:
			return false
		case field == 1:
			d.entry.Version = uint32(number)
		case field == 2:
			d.entry.StampNs = int64(number)
		case field == 3:
			d.entry.WallEarlyNs = int64(number)
		case field == 4:
			d.entry.WallLateNs = int64(number)
		default:
			return false
		}
		return true
	})
	if !ok {
		entry := new(logpb.Entry)
		err := proto.Unmarshal(data, entry)
		d.raw = make([][]byte, len(entry.Commands))
		return entry, err
	}
	clear(commands[len(commands):cap(commands)]) // those of a longer entry before
	clear(raw[len(raw):cap(raw)])
	d.entry.Commands, d.raw = commands, raw
	return &d.entry, nil
}

// command decodes a command that is a plain Reserve, and returns that as it is encoded too; nil: it is not one.
func (d *decoder) command(data []byte) (command *logpb.Command, raw []byte) {
	if d.used == len(d.plain) {
		d.plain = append(d.plain, new(plainReserve))
	}
	p := d.plain[d.used]
	p.command.Reset()
	ok := eachField(data, func(field protowire.Number, number uint64, part []byte) (ok bool) {
		switch {
		case field == reserveField && part != nil && p.command.Kind == nil:
			p.kind.Reserve = &p.reserve
			p.command.Kind, raw = &p.kind, part
			return d.reserve(p, part)
		case field == 5 && part != nil:
			p.command.By, ok = d.names.of(part)
			return ok
		case part != nil:
			return false
		case field == 1:
			p.command.Session = number
		case field == 2:
			p.command.Seq = number
		case field == 3:
			p.command.AckedBelow = number
		default:
			return false
		}
		return true
	})
	if !ok || p.command.Kind == nil {
		return nil, nil
	}
	d.used++
	return &p.command, raw
}

func (d *decoder) reserve(p *plainReserve, data []byte) bool {
	r := &p.reserve
	r.Reset()
	r.Items = p.list[:0]
	return eachField(data, func(field protowire.Number, number uint64, part []byte) (ok bool) {
		switch {
		case field == 1 && part != nil:
			r.Holder, ok = d.names.of(part)
			return ok
		case field == 2 && part != nil && len(r.Items) < plainItems:
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

func (d *decoder) item(item *logpb.Item, amount *int64, data []byte) bool {
	item.Reset()
	return eachField(data, func(field protowire.Number, number uint64, part []byte) (ok bool) {
		switch {
		case field == 1 && part != nil:
			item.Quota, ok = d.names.of(part)
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
		field, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return false
		}
		data = data[size:]
		var number uint64
		var part []byte
		switch kind {
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			part, size = protowire.ConsumeBytes(data)
		default:
			return false
		}
		if size < 0 || !fn(field, number, part) {
			return false
		}
		data = data[size:]
	}
	return true
}

// names are those that were decoded lately, so that a name that comes often is one string. They decide nothing.
type names struct{ lately [1 << 12]string }

// of returns a name; false: it is no UTF-8.
func (n *names) of(data []byte) (string, bool) {
	known := &n.lately[hashName(data)%uint32(len(n.lately))]
	if *known != string(data) {
		if !utf8.Valid(data) {
			return "", false
		}
		*known = string(data)
	}
	return *known, true
}

// hashName returns a name's place in a table that decides nothing (FNV-1a).
func hashName[T string | []byte](name T) uint32 {
	hash := uint32(2166136261)
	for i := range len(name) {
		hash = (hash ^ uint32(name[i])) * 16777619
	}
	return hash
}
