package wire_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/rpc/quotav1"
)

// drawer draws messages of any type.
type drawer struct{ *rapid.T }

// one is true once in n cases.
func (d drawer) one(n int, what string) bool { return rapid.IntRange(1, n).Draw(d.T, what) == n }

// message fills a message: each field in half of the cases, mostly the first one of a oneof, and seldom unknown fields.
func (d drawer) message(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.ContainingOneof() != nil && !fd.HasOptionalKeyword() || !d.one(2, string(fd.Name())) {
			continue
		}
		if fd.IsMap() { // one entry: the order of several varies
			entries := m.Mutable(fd).Map()
			entries.Set(d.value(fd.MapKey(), protoreflect.Value{}).MapKey(), d.value(fd.MapValue(), entries.NewValue()))
			continue
		}
		if !fd.IsList() {
			m.Set(fd, d.value(fd, m.NewField(fd)))
			continue
		}
		list := m.Mutable(fd).List()
		for range rapid.IntRange(1, 3).Draw(d.T, "length") {
			list.Append(d.value(fd, list.NewElement()))
		}
	}
	kinds := m.Descriptor().Oneofs()
	for i := range kinds.Len() {
		members := kinds.Get(i).Fields()
		if kinds.Get(i).IsSynthetic() || d.one(10, "no kind") {
			continue
		}
		which := 0
		if d.one(4, "another kind") {
			which = rapid.IntRange(0, members.Len()-1).Draw(d.T, "kind")
		}
		m.Set(members.Get(which), d.value(members.Get(which), m.NewField(members.Get(which))))
	}
	if d.one(10, "unknown") {
		unknown := protowire.AppendTag(nil, protowire.Number(rapid.IntRange(90, 99).Draw(d.T, "number")), protowire.BytesType)
		m.SetUnknown(protowire.AppendString(unknown, d.text()))
	}
}

func (d drawer) text() string {
	return rapid.SampledFrom([]string{"", "a", "github/core", "ünïcode", string(make([]byte, 200))}).Draw(d.T, "text")
}

// value draws a field's value or an element of its list. It fills messages in place.
func (d drawer) value(fd protoreflect.FieldDescriptor, empty protoreflect.Value) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		d.message(empty.Message())
		return empty
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(d.text())
	default:
		return scalar(fd, rapid.OneOf(rapid.Int64Range(-1, 300), rapid.Int64()).Draw(d.T, "number"))
	}
}

// holes removes some elements and the values of some oneofs: nil is left where a message should be.
func (d drawer) holes(m proto.Message) {
	switch m := m.(type) {
	case *quotav1.BatchRequest:
		for i, c := range m.Commands {
			if d.one(10, "no command") {
				m.Commands[i] = nil
			} else if kind, ok := c.Kind.(*quotav1.Command_Reserve); ok {
				if d.one(10, "no Reserve") {
					kind.Reserve = nil
				} else if len(kind.Reserve.Items) > 0 && d.one(5, "no item") {
					kind.Reserve.Items[0] = nil
				}
			}
		}
	case *quotav1.BatchResponse:
		for i, r := range m.Results {
			if lease := r.GetReserve().GetLease(); d.one(10, "no result") {
				m.Results[i] = nil
			} else if len(lease.GetItems()) > 0 && d.one(5, "no item") {
				lease.Items[0] = nil
			} else if items := lease.GetOperation().GetItems(); len(items) > 0 && d.one(5, "no item of the operation") {
				items[0] = nil
			}
		}
	}
}

// TestCodec_RandomMatchesLibrary writes random batches and reads them, some of them damaged, as the library does.
func TestCodec_RandomMatchesLibrary(t *testing.T) {
	for _, m := range usual(0) {
		t.Run(m.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				d, random := drawer{rt}, fresh(m.message)
				d.message(random.ProtoReflect())
				d.holes(random)
				appendsAlike(rt, random)
				data, err := proto.Marshal(random)
				if err != nil {
					rt.Fatal(err)
				}
				if len(data) > 0 && d.one(3, "damaged") {
					data[rapid.IntRange(0, len(data)-1).Draw(rt, "at")] = rapid.Byte().Draw(rt, "byte")
				}
				parsesAlike(rt, m.message, data)
			})
		})
	}
}
