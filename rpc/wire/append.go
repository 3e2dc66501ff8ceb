package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/field"
	"github.com/quotad/quotad/rpc/quotav1"
)

// appender appends the fields of a Batch's messages.
type appender struct {
	field.Appender
	// lately are the durations that were appended last, with their encodings; next is the place of the next one. Results of one Batch
	// mostly have the same ones.
	lately [4]appended
	next   int
}

// appended is a duration and its encoding: length and content.
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
	return !a.Bad
}

func (a *appender) command(m *quotav1.Command) {
	kind, ok := m.GetKind().(*quotav1.Command_Reserve)
	if !ok || kind == nil || kind.Reserve == nil {
		a.other(1, m)
		return
	}
	command, reserve := a.Open(1), a.Open(1)
	a.reserve(kind.Reserve)
	a.Close(reserve)
	a.unknown(m)
	a.Close(command)
}

func (a *appender) reserve(m *quotav1.ReserveRequest) {
	if m.RequestId != nil {
		a.other(1, m.RequestId)
	}
	a.Text(2, m.Holder)
	for _, item := range m.Items {
		a.item(item)
	}
	a.duration(4, m.Ttl)
	a.Flag(5, m.Consume)
	a.Number(6, uint64(m.Class))
	a.duration(7, m.Wait)
	a.Flag(8, m.Resume)
	a.Flag(9, m.NoBlock)
	a.Flag(10, m.Emergency)
	a.Flag(12, m.Fallback)
	a.Text(13, m.Member)
	a.unknown(m)
}

func (a *appender) item(m *quotav1.Item) {
	at := a.Open(3)
	if m != nil {
		a.Text(1, m.Quota)
		if m.Amount != nil { // 0 is not the same as absent
			a.Present(2, uint64(*m.Amount))
		}
		a.unknown(m)
	}
	a.Close(at)
}

func (a *appender) batchResponse(m *quotav1.BatchResponse) bool {
	if m.Meta != nil {
		a.other(1, m.Meta)
	}
	for _, r := range m.Results {
		a.result(r)
	}
	a.unknown(m)
	return !a.Bad
}

func (a *appender) result(m *quotav1.CommandResult) {
	lease := leaseOf(m)
	if lease == nil {
		a.other(2, m)
		return
	}
	result, response, at := a.Open(2), a.Open(1), a.Open(2)
	a.lease(lease)
	a.Close(at)
	a.unknown(m.GetReserve())
	a.Close(response)
	a.unknown(m)
	a.Close(result)
}

// leaseOf returns the lease of a result of the usual shape, nil for others.
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
	a.Number(1, m.Id)
	a.Number(2, m.Fence)
	for _, item := range m.Items {
		a.granted(3, item)
	}
	a.duration(4, m.ExpiresIn)
	if m.Operation != nil {
		at := a.Open(5)
		a.operation(m.Operation)
		a.Close(at)
	}
	a.Number(6, uint64(m.Class))
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
	a.Number(1, m.Op)
	for _, item := range m.Items {
		a.granted(2, item)
	}
	a.duration(3, m.SpendIn)
	a.duration(4, m.Transit)
	a.unknown(m)
}

func (a *appender) granted(field byte, m *quotav1.GrantedItem) {
	at := a.Open(field)
	if m != nil {
		a.Text(1, m.Quota)
		a.Number(2, uint64(m.Amount))
		a.duration(3, m.ExpiresIn)
		a.Text(4, m.InsteadOf)
		a.Text(5, m.Pool)
		a.Text(6, m.Member)
		a.unknown(m)
	}
	a.Close(at)
}

func (a *appender) duration(field byte, m *durationpb.Duration) {
	if m == nil {
		return
	}
	for i := range a.lately {
		if l := &a.lately[i]; l.duration == m {
			a.B = append(append(a.B, field<<3|byte(protowire.BytesType)), l.encoded[:l.size]...)
			return
		}
	}
	at := a.Open(field)
	a.Number(1, uint64(m.Seconds))
	a.Number(2, uint64(m.Nanos))
	a.unknown(m)
	a.Close(at)
	if l := &a.lately[a.next]; len(a.B)-at < len(l.encoded) {
		l.duration, l.size = m, copy(l.encoded[:], a.B[at-1:])
		a.next = (a.next + 1) % len(a.lately)
	}
}

// other appends a field that is a message, through the library.
func (a *appender) other(field byte, m proto.Message) {
	at := a.Open(field)
	b, err := proto.MarshalOptions{}.MarshalAppend(a.B, m)
	if err != nil {
		a.Bad = true
		return
	}
	a.B = b
	a.Close(at)
}

// unknown appends the unknown fields of a message, which a newer version sent.
func (a *appender) unknown(m proto.Message) { a.B = append(a.B, m.ProtoReflect().GetUnknown()...) }
