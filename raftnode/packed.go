package raftnode

import (
	"encoding/binary"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// packed is a list of encoded events without pointers. Many events are kept for watchers that may resume, and unpacked they would be most
// of the garbage collector's work. An event is its kind, the set of its fields that are not zero, and these fields in the order of add. It
// has no final result: the waiting caller gets that when it is applied.
type packed []byte

// numberCount is the number of an event's numeric fields; the others are names.
const numberCount = 7

// namesOf returns pointers to an event's names.
func namesOf(e *effect.Event) [5]*string {
	return [...]*string{&e.Quota, &e.Holder, &e.Task, &e.Workflow, &e.Step}
}

// packer appends an event's fields.
type packer struct {
	packed
	// fields is the set of appended fields.
	fields uint16
}

func (p *packer) number(field int, n uint64) {
	if n != 0 {
		p.fields |= 1 << field
		p.packed = binary.AppendUvarint(p.packed, n)
	}
}

func (p *packer) name(field int, name string) {
	if name != "" {
		p.fields |= 1 << (numberCount + field)
		p.packed = append(binary.AppendUvarint(p.packed, uint64(len(name))), name...)
	}
}

// add appends an event.
func (p packed) add(e *effect.Event) packed {
	p = binary.AppendUvarint(p, uint64(e.Kind))
	at := len(p)
	w := packer{packed: append(p, 0, 0)}
	w.number(0, e.Lease)
	w.number(1, e.Fence)
	w.number(2, e.Ticket)
	w.number(3, uint64(e.Amount))
	w.number(4, uint64(e.Duration))
	w.number(5, uint64(e.Reason))
	w.number(6, uint64(e.Outcome))
	w.name(0, e.Quota)
	w.name(1, e.Holder)
	w.name(2, e.Task)
	w.name(3, e.Workflow)
	w.name(4, e.Step)
	binary.LittleEndian.PutUint16(w.packed[at:], w.fields)
	return w.packed
}

// unpack returns the given number of events, whose names share one string.
func (p packed) unpack(count int) []effect.Event {
	all, text := make([]effect.Event, count), string(p)
	next := func() uint64 {
		number, size := binary.Uvarint(p)
		p = p[size:]
		return number
	}
	for i := range all {
		e := &all[i]
		e.Kind = effect.EventKind(next())
		fields := binary.LittleEndian.Uint16(p)
		p = p[2:]
		var numbers [numberCount]uint64
		for n := range numbers {
			if fields&(1<<n) != 0 {
				numbers[n] = next()
			}
		}
		e.Lease, e.Fence, e.Ticket = numbers[0], numbers[1], numbers[2]
		e.Amount, e.Duration = int64(numbers[3]), int64(numbers[4])
		e.Reason, e.Outcome = logpb.Reason(numbers[5]), logpb.TaskOutcome(numbers[6])
		for n, name := range namesOf(e) {
			if fields&(1<<(numberCount+n)) != 0 {
				length := int(next())
				from := len(text) - len(p)
				*name, p = text[from:from+length], p[length:]
			}
		}
	}
	return all
}
