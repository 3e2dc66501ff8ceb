package raftnode

import (
	"encoding/binary"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// packed is events one after the other, without pointers: they are kept for whoever may come to watch, and as they are they would be
// most of what the garbage collector looks at. An event is its kind, the set of its fields that are not zero, and
// these, in the order of numbersOf and namesOf. A final result is not kept: who waits for it is told when it is applied.
type packed []byte

// numberCount is how many of an event's fields are numbers; the others are names.
const numberCount = 7

// numbersOf returns an event's numbers, all but its kind.
func numbersOf(e *fsm.Event) [numberCount]uint64 {
	return [...]uint64{
		e.Lease, e.Fence, e.Ticket, uint64(e.Amount), uint64(e.Duration), uint64(e.Reason), uint64(e.Outcome),
	}
}

// namesOf returns where an event has its names.
func namesOf(e *fsm.Event) [5]*string {
	return [...]*string{&e.Quota, &e.Holder, &e.Task, &e.Workflow, &e.Step}
}

// add appends an event.
func (p packed) add(e *fsm.Event) packed {
	p = binary.AppendUvarint(p, uint64(e.Kind))
	at := len(p)
	p = append(p, 0, 0)
	var fields uint16
	for i, number := range numbersOf(e) {
		if number != 0 {
			fields |= 1 << i
			p = binary.AppendUvarint(p, number)
		}
	}
	for i, name := range namesOf(e) {
		if *name != "" {
			fields |= 1 << (numberCount + i)
			p = append(binary.AppendUvarint(p, uint64(len(*name))), *name...)
		}
	}
	binary.LittleEndian.PutUint16(p[at:], fields)
	return p
}

// unpack returns the events, so many, which share one string for all their names.
func (p packed) unpack(count int) []fsm.Event {
	all, text := make([]fsm.Event, count), string(p)
	next := func() uint64 {
		number, size := binary.Uvarint(p)
		p = p[size:]
		return number
	}
	for i := range all {
		e := &all[i]
		e.Kind = fsm.EventKind(next())
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
