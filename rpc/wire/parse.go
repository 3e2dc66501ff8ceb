package wire

import (
	"bytes"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// These functions read messages of the usual shape. They return false or nil for others: an unknown field or type, a message that the
// library would merge with an earlier one, and data that cannot be read. The caller then discards what was read.

// A tag is a field's number and one of these types: content with a length, or a number.
const (
	sized  = byte(protowire.BytesType)
	number = byte(protowire.VarintType)
)

// next returns a message's first field and what follows. The tag of an unreadable field is 0. Of a tag of several bytes it returns the
// first one, which equals no tag that is known here.
func next(b []byte) (tag byte, value uint64, content, rest []byte) {
	tag = b[0]
	size := 1
	if len(b) > 1 && b[1] < 0x80 {
		value = uint64(b[1])
	} else if value, size = protowire.ConsumeVarint(b[1:]); size < 0 {
		return 0, 0, nil, nil
	}
	b = b[1+size:]
	switch tag & 7 {
	case number:
		return tag, value, nil, b
	case sized:
		if value <= uint64(len(b)) {
			return tag, 0, b[:value], b[value:]
		}
	}
	return 0, 0, nil, nil
}

// each calls fn for a message's fields until it returns false, and tells whether it took all.
func each(b []byte, fn func(tag byte, value uint64, content []byte) bool) bool {
	for len(b) > 0 {
		tag, value, content, rest := next(b)
		if !fn(tag, value, content) {
			return false
		}
		b = rest
	}
	return true
}

// only returns the content of a message's only field; false if that has another tag or is not alone.
func only(b []byte, tag byte) ([]byte, bool) {
	if len(b) == 0 {
		return nil, false
	}
	first, _, content, rest := next(b)
	return content, first == tag && len(rest) == 0
}

// count returns how often a message has a field that is a message. Each takes at least two bytes, so a list of pointers takes at most
// four times the bytes that it is read from.
func count(b []byte, field byte) (n int) {
	for len(b) > 0 {
		tag, _, _, rest := next(b)
		if tag == field {
			n++
		}
		b = rest
	}
	return n
}

// recent holds the values read last, which messages of one Batch mostly share, to use them again.
type recent struct {
	holder    string
	durations [durationKinds]parsed
	// discardUnknown is the codec's.
	discardUnknown bool
}

// parsed is a duration and the bytes that it was read from.
type parsed struct {
	content  []byte
	duration *durationpb.Duration
}

// The kinds of durations.
const (
	askedTTL      = 0
	askedWait     = 1
	leaseExpiry   = 2
	itemExpiry    = 3
	chargeExpiry  = 4
	spendTime     = 5
	transitTime   = 6
	durationKinds = 7
)

// reserving holds the parts of a usual Reserve in a Batch, in one allocation.
type reserving struct {
	command quotav1.Command
	kind    quotav1.Command_Reserve
	reserve quotav1.ReserveRequest
	item    quotav1.Item
	amount  int64
	items   [1]*quotav1.Item
}

func parseRequest(b []byte, m *quotav1.BatchRequest, discardUnknown bool) bool {
	if n := count(b, 1<<3|sized); n > 0 {
		m.Commands = make([]*quotav1.Command, 0, n)
	}
	lately := recent{discardUnknown: discardUnknown}
	for len(b) > 0 {
		tag, _, content, rest := next(b)
		if tag != 1<<3|sized {
			return false
		}
		c := parseCommand(content, &lately)
		if c == nil && !parseOther(content, &c, &lately) {
			return false
		}
		m.Commands = append(m.Commands, c)
		b = rest
	}
	return true
}

func parseCommand(b []byte, lately *recent) *quotav1.Command {
	b, ok := only(b, 1<<3|sized)
	if !ok {
		return nil
	}
	c := new(reserving)
	c.command.Kind, c.kind.Reserve = &c.kind, &c.reserve
	if !parseReserve(b, c, lately) {
		return nil
	}
	return &c.command
}

func parseReserve(b []byte, c *reserving, lately *recent) bool {
	m := &c.reserve
	return each(b, func(tag byte, value uint64, content []byte) bool {
		switch tag {
		case 1<<3 | sized:
			return parseOther(content, &m.RequestId, lately)
		case 2<<3 | sized:
			ok := parseText(content, &lately.holder)
			m.Holder = lately.holder
			return ok
		case 3<<3 | sized:
			return parseItem(content, c)
		case 4<<3 | sized:
			return lately.duration(askedTTL, content, &m.Ttl)
		case 5<<3 | number:
			m.Consume = value != 0
		case 6<<3 | number:
			m.Class = quotav1.Class(value)
		case 7<<3 | sized:
			return lately.duration(askedWait, content, &m.Wait)
		case 8<<3 | number:
			m.Resume = value != 0
		case 9<<3 | number:
			m.NoBlock = value != 0
		case 10<<3 | number:
			m.Emergency = value != 0
		case 12<<3 | number:
			m.Fallback = value != 0
		case 13<<3 | sized:
			return parseText(content, &m.Member)
		default:
			return false
		}
		return true
	})
}

func parseItem(b []byte, c *reserving) bool {
	m, amount := &c.item, &c.amount
	if len(c.reserve.Items) == 0 {
		c.reserve.Items = c.items[:0]
	} else {
		m, amount = new(quotav1.Item), new(int64)
	}
	c.reserve.Items = append(c.reserve.Items, m)
	return each(b, func(tag byte, value uint64, content []byte) bool {
		switch tag {
		case 1<<3 | sized:
			return parseText(content, &m.Quota)
		case 2<<3 | number:
			*amount = int64(value)
			m.Amount = amount
		default:
			return false
		}
		return true
	})
}

// granting holds the parts of a usual lease in the results of a Batch, in one allocation.
type granting struct {
	result    quotav1.CommandResult
	kind      quotav1.CommandResult_Reserve
	reserve   quotav1.ReserveResponse
	outcome   quotav1.ReserveResponse_Lease
	lease     quotav1.Lease
	operation quotav1.Operation
	granted   [2]quotav1.GrantedItem
	items     [2][1]*quotav1.GrantedItem
}

func parseResponse(b []byte, m *quotav1.BatchResponse, discardUnknown bool) bool {
	if n := count(b, 2<<3|sized); n > 0 {
		m.Results = make([]*quotav1.CommandResult, 0, n)
	}
	lately := recent{discardUnknown: discardUnknown}
	for len(b) > 0 {
		tag, _, content, rest := next(b)
		switch tag {
		case 1<<3 | sized:
			if !parseOther(content, &m.Meta, &lately) {
				return false
			}
		case 2<<3 | sized:
			r := parseResult(content, &lately)
			if r == nil && !parseOther(content, &r, &lately) {
				return false
			}
			m.Results = append(m.Results, r)
		default:
			return false
		}
		b = rest
	}
	return true
}

// parseResult reads a result that is only a lease.
func parseResult(b []byte, lately *recent) *quotav1.CommandResult {
	b, ok := only(b, 1<<3|sized)
	if ok {
		b, ok = only(b, 2<<3|sized)
	}
	if !ok {
		return nil
	}
	g := new(granting)
	g.result.Kind, g.kind.Reserve = &g.kind, &g.reserve
	g.reserve.Outcome, g.outcome.Lease = &g.outcome, &g.lease
	if !parseLease(b, g, lately) {
		return nil
	}
	return &g.result
}

func parseLease(b []byte, g *granting, lately *recent) bool {
	m := &g.lease
	return each(b, func(tag byte, value uint64, content []byte) bool {
		switch tag {
		case 1<<3 | number:
			m.Id = value
		case 2<<3 | number:
			m.Fence = value
		case 3<<3 | sized:
			return parseGranted(content, &m.Items, g, 0, lately)
		case 4<<3 | sized:
			return lately.duration(leaseExpiry, content, &m.ExpiresIn)
		case 5<<3 | sized:
			return parseOperation(content, g, lately)
		case 6<<3 | number:
			m.Class = quotav1.Class(value)
		case 7<<3 | sized:
			return lately.duration(askedTTL, content, &m.AskedTtl)
		case 12<<3 | sized:
			return parseOther(content, &m.Forecast, lately)
		case 14<<3 | sized:
			return parseOther(content, &m.BackPressure, lately)
		default:
			return false
		}
		return true
	})
}

// parseOperation reads an operation into its place in g. An operation that appears twice is merged there.
func parseOperation(b []byte, g *granting, lately *recent) bool {
	m := &g.operation
	g.lease.Operation = m
	return each(b, func(tag byte, value uint64, content []byte) bool {
		switch tag {
		case 1<<3 | number:
			m.Op = value
		case 2<<3 | sized:
			return parseGranted(content, &m.Items, g, 1, lately)
		case 3<<3 | sized:
			return lately.duration(spendTime, content, &m.SpendIn)
		case 4<<3 | sized:
			return lately.duration(transitTime, content, &m.Transit)
		default:
			return false
		}
		return true
	})
}

// parseGranted appends an item to the list of a lease (which is 0) or of its operation (1).
func parseGranted(b []byte, items *[]*quotav1.GrantedItem, g *granting, which int, lately *recent) bool {
	m := &g.granted[which]
	if len(*items) == 0 {
		*items = g.items[which][:0]
	} else {
		m = new(quotav1.GrantedItem)
	}
	*items = append(*items, m)
	return each(b, func(tag byte, value uint64, content []byte) bool {
		switch tag {
		case 1<<3 | sized:
			if which == 1 {
				m.Quota = g.granted[0].Quota // mostly the same
			}
			return parseText(content, &m.Quota)
		case 2<<3 | number:
			m.Amount = int64(value)
		case 3<<3 | sized:
			return lately.duration(itemExpiry+which, content, &m.ExpiresIn)
		case 4<<3 | sized:
			return parseText(content, &m.InsteadOf)
		case 5<<3 | sized:
			return parseText(content, &m.Pool)
		case 6<<3 | sized:
			return parseText(content, &m.Member)
		default:
			return false
		}
		return true
	})
}

// parseText sets a string, and leaves an equal one in place.
func parseText(b []byte, to *string) bool {
	if !utf8.Valid(b) {
		return false
	}
	if string(b) != *to {
		*to = string(b)
	}
	return true
}

// duration sets a duration. It uses the last one of its kind again if that has the same bytes.
func (r *recent) duration(kind int, b []byte, to **durationpb.Duration) bool {
	if *to != nil {
		return false
	}
	last := &r.durations[kind]
	if last.duration == nil || !bytes.Equal(b, last.content) {
		made := new(durationpb.Duration)
		if !parseDuration(b, made) {
			return false
		}
		last.content, last.duration = b, made
	}
	*to = last.duration
	return true
}

func parseDuration(b []byte, m *durationpb.Duration) bool {
	for len(b) > 0 {
		tag, value, _, rest := next(b)
		switch tag {
		case 1<<3 | number:
			m.Seconds = int64(value)
		case 2<<3 | number:
			m.Nanos = int32(value)
		default:
			return false
		}
		b = rest
	}
	return true
}

// parseOther reads a message through the library.
func parseOther[T any, M interface {
	*T
	proto.Message
}](b []byte, to *M, lately *recent) bool {
	if *to != nil {
		return false
	}
	*to = new(T)
	return proto.UnmarshalOptions{DiscardUnknown: lately.discardUnknown}.Unmarshal(b, *to) == nil
}
