package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// appender appends fields to a message. Their numbers are below 16, so that a tag is a byte.
type appender struct {
	b []byte
	// bad is set by what cannot be written: what was appended is to be thrown away, and the library says why.
	bad bool
	// lately are durations that were appended, each with what it became; the next one takes place next. Results that go together mostly
	// have the same ones.
	lately [4]appended
	next   int
}

// appended is a duration and its encoding, length and content.
type appended struct {
	duration *durationpb.Duration
	size     int
	encoded  [30]byte
}

func (a *appender) batchRequest(m *quotav1.BatchRequest) bool {
	for _, c := range m.Commands {
		a.command(c)
	}
	a.unknown(m)
	return !a.bad
}

func (a *appender) command(m *quotav1.Command) {
	kind, ok := m.GetKind().(*quotav1.Command_Reserve)
	if !ok || kind == nil || kind.Reserve == nil {
		a.other(1, m)
		return
	}
	command, reserve := a.open(1), a.open(1)
	a.reserve(kind.Reserve)
	a.close(reserve)
	a.unknown(m)
	a.close(command)
}

func (a *appender) reserve(m *quotav1.ReserveRequest) {
	if m.RequestId != nil {
		a.other(1, m.RequestId)
	}
	a.text(2, m.Holder)
	for _, item := range m.Items {
		a.item(item)
	}
	a.duration(4, m.Ttl)
	a.flag(5, m.Consume)
	a.number(6, uint64(m.Class))
	a.duration(7, m.Wait)
	a.flag(8, m.Resume)
	a.flag(9, m.NoBlock)
	a.flag(10, m.Emergency)
	a.flag(12, m.Fallback)
	a.unknown(m)
}

func (a *appender) item(m *quotav1.Item) {
	at := a.open(3)
	if m != nil {
		a.text(1, m.Quota)
		if m.Amount != nil { // 0 is not the same as none
			a.b = protowire.AppendVarint(append(a.b, 2<<3), uint64(*m.Amount))
		}
		a.unknown(m)
	}
	a.close(at)
}

func (a *appender) batchResponse(m *quotav1.BatchResponse) bool {
	if m.Meta != nil {
		a.other(1, m.Meta)
	}
	for _, r := range m.Results {
		a.result(r)
	}
	a.unknown(m)
	return !a.bad
}

func (a *appender) result(m *quotav1.CommandResult) {
	lease := leaseOf(m)
	if lease == nil {
		a.other(2, m)
		return
	}
	result, response, at := a.open(2), a.open(1), a.open(2)
	a.lease(lease)
	a.close(at)
	a.unknown(m.GetReserve())
	a.close(response)
	a.unknown(m)
	a.close(result)
}

// leaseOf returns what a result of the usual shape grants, nil of others.
func leaseOf(m *quotav1.CommandResult) *quotav1.Lease {
	kind, ok := m.GetKind().(*quotav1.CommandResult_Reserve)
	if !ok || kind == nil || kind.Reserve == nil || kind.Reserve.Meta != nil {
		return nil
	}
	outcome, ok := kind.Reserve.Outcome.(*quotav1.ReserveResponse_Lease)
	if !ok || outcome == nil {
		return nil
	}
	return outcome.Lease
}

func (a *appender) lease(m *quotav1.Lease) {
	a.number(1, m.Id)
	a.number(2, m.Fence)
	for _, item := range m.Items {
		a.granted(3, item)
	}
	a.duration(4, m.ExpiresIn)
	if m.Operation != nil {
		at := a.open(5)
		a.operation(m.Operation)
		a.close(at)
	}
	a.number(6, uint64(m.Class))
	a.duration(7, m.AskedTtl)
	if m.Forecast != nil {
		a.other(12, m.Forecast)
	}
	if m.BackPressure != nil {
		a.other(14, m.BackPressure)
	}
	a.unknown(m)
}

func (a *appender) operation(m *quotav1.Operation) {
	a.number(1, m.Op)
	for _, item := range m.Items {
		a.granted(2, item)
	}
	a.duration(3, m.SpendIn)
	a.duration(4, m.Transit)
	a.unknown(m)
}

func (a *appender) granted(field byte, m *quotav1.GrantedItem) {
	at := a.open(field)
	if m != nil {
		a.text(1, m.Quota)
		a.number(2, uint64(m.Amount))
		a.duration(3, m.ExpiresIn)
		a.text(4, m.InsteadOf)
		a.unknown(m)
	}
	a.close(at)
}

func (a *appender) duration(field byte, m *durationpb.Duration) {
	if m == nil {
		return
	}
	for i := range a.lately {
		if l := &a.lately[i]; l.duration == m {
			a.b = append(append(a.b, field<<3|byte(protowire.BytesType)), l.encoded[:l.size]...)
			return
		}
	}
	at := a.open(field)
	a.number(1, uint64(m.Seconds))
	a.number(2, uint64(m.Nanos))
	a.unknown(m)
	a.close(at)
	if l := &a.lately[a.next]; len(a.b)-at < len(l.encoded) {
		l.duration, l.size = m, copy(l.encoded[:], a.b[at-1:])
		a.next = (a.next + 1) % len(a.lately)
	}
}

// other appends a field that is a message in the library's way.
func (a *appender) other(field byte, m proto.Message) {
	at := a.open(field)
	b, err := proto.MarshalOptions{}.MarshalAppend(a.b, m)
	if err != nil {
		a.bad = true
		return
	}
	a.b = b
	a.close(at)
}

// unknown appends what was read from somebody who knows more fields.
func (a *appender) unknown(m proto.Message) { a.b = append(a.b, m.ProtoReflect().GetUnknown()...) }

func (a *appender) number(field byte, n uint64) {
	if n != 0 {
		a.b = protowire.AppendVarint(append(a.b, field<<3), n)
	}
}

func (a *appender) flag(field byte, is bool) {
	if is {
		a.b = append(a.b, field<<3, 1)
	}
}

func (a *appender) text(field byte, s string) {
	if s != "" {
		a.bad = a.bad || !utf8.ValidString(s)
		a.b = protowire.AppendString(append(a.b, field<<3|byte(protowire.BytesType)), s)
	}
}

// open begins a field that is a message and returns where its content begins. Its length is thought to take one byte.
func (a *appender) open(field byte) int {
	a.b = append(a.b, field<<3|byte(protowire.BytesType), 0)
	return len(a.b)
}

// close ends a field that is a message: what it has is moved where its length takes more than a byte.
func (a *appender) close(at int) {
	length := uint64(len(a.b) - at)
	if more := protowire.SizeVarint(length) - 1; more > 0 {
		var room [9]byte
		a.b = append(a.b, room[:more]...)
		copy(a.b[at+more:], a.b[at:])
	}
	protowire.AppendVarint(a.b[:at-1], length)
}
