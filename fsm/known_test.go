package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
)

// populate sets every field of a message and of its messages to a value other than the default; of a oneof the chosen
// field.
func populate(m protoreflect.Message, kind protoreflect.Name, chosen int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if of := field.ContainingOneof(); of != nil && !of.IsSynthetic() {
			if string(of.Name()) == "kind" && field.Name() != kind ||
				string(of.Name()) != "kind" && chosen%of.Fields().Len() != field.Index()-of.Fields().Get(0).Index() {
				continue
			}
		}
		if !field.IsList() {
			m.Set(field, something(m, field, kind, chosen))
			continue
		}
		list := m.Mutable(field).List()
		for range 2 {
			if field.Kind() == protoreflect.MessageKind {
				populate(list.AppendMutable().Message(), kind, chosen)
			} else {
				list.Append(something(m, field, kind, chosen))
			}
		}
	}
}

func something(m protoreflect.Message, field protoreflect.FieldDescriptor, kind protoreflect.Name, chosen int) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.MessageKind:
		inner := m.NewField(field)
		populate(inner.Message(), kind, chosen)
		return inner
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("some")
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(-1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(-1)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(1 << 31)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1 << 63)
	default:
		panic(fmt.Sprintf("%s is of a kind that this test does not know", field.FullName()))
	}
}

// kindsOf returns the names of a message's kinds.
func kindsOf(m proto.Message) (kinds []protoreflect.Name) {
	fields := m.ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range fields.Len() {
		kinds = append(kinds, fields.Get(i).Name())
	}
	return kinds
}

// kindsBy returns the names of the kinds that a version knows.
func kindsBy(m proto.Message, version int) (kinds []protoreflect.Name) {
	fields := m.ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range fields.Len() {
		if entry.SinceOf(fields.Get(i)) <= uint32(version) {
			kinds = append(kinds, fields.Get(i).Name())
		}
	}
	return kinds
}

// hasUnknown reports whether protobuf kept unknown fields in a message, or in its messages.
func hasUnknown(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				found = found || hasUnknown(value.List().Get(i).Message())
			}
		default:
			found = found || hasUnknown(value.Message())
		}
		return !found
	})
	return found
}

// eachMessage calls fn with a message and every message in it.
func eachMessage(m protoreflect.Message, fn func(protoreflect.Message)) {
	fn(m)
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				eachMessage(value.List().Get(i).Message(), fn)
			}
		default:
			eachMessage(value.Message(), fn)
		}
		return true
	})
}

// unknownField is a field that no message has.
var unknownField = protowire.AppendVarint(protowire.AppendTag(nil, 1999, protowire.VarintType), 1)

// stopsAt applies an entry, and returns the machine's panic message; empty: no panic.
func stopsAt(m *Machine, data []byte) (words string) {
	defer func() {
		if stopped := recover(); stopped != nil {
			words = fmt.Sprint(stopped)
		}
	}()
	m.Apply(1, 1, data)
	return ""
}

// TestApply_StopsAtUnknownFields: anywhere in an entry, for every kind of command; without the field the entry is
// applied.
func TestApply_StopsAtUnknownFields(t *testing.T) {
	for _, kind := range kindsOf(&logpb.Command{}) {
		for chosen := range 3 {
			entry := &logpb.Entry{}
			populate(entry.ProtoReflect(), kind, chosen)
			entry.Version, entry.Commands = EntryVersion, entry.Commands[:1]
			data, err := proto.Marshal(entry)
			if err != nil {
				t.Fatal(err)
			}
			if words := stopsAt(New(), data); words != "" {
				t.Errorf("%s: %s", kind, words)
			}
			eachMessage(entry.ProtoReflect(), func(m protoreflect.Message) {
				m.SetUnknown(unknownField)
				data, err := proto.Marshal(entry)
				if err != nil {
					t.Fatal(err)
				}
				m.SetUnknown(nil)
				if words := stopsAt(New(), data); !strings.Contains(words, "field 1999 of "+string(m.Descriptor().FullName())) ||
					!strings.Contains(words, "upgrade") {
					t.Errorf("%s, with an unknown field in %s: stopped with %q", kind, m.Descriptor().FullName(), words)
				}
			})
		}
	}
}

// TestApply_StopsAtUnknownFieldsOfPlainReserves: even if protobuf does not decode them first, or with another wire
// type.
func TestApply_StopsAtUnknownFieldsOfPlainReserves(t *testing.T) {
	command, err := proto.Marshal(reserve(ask("a", itemOf("q", 1))))
	if err != nil {
		t.Fatal(err)
	}
	for name, field := range map[string][]byte{
		"unknown":      unknownField,
		"another type": protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.VarintType), 7),
		"fixed":        protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), 7),
	} {
		encoded, err := proto.Marshal(&logpb.Entry{Version: EntryVersion})
		if err != nil {
			t.Fatal(err)
		}
		encoded = protowire.AppendBytes(protowire.AppendTag(encoded, 5, protowire.BytesType), append(bytes.Clone(command), field...))
		if words := stopsAt(New(), encoded); !strings.Contains(words, "does not know it") {
			t.Errorf("%s: stopped with %q", name, words)
		}
	}
}

// TestApply_NewerVersionGoesFirst: unknown fields of a newer version do not hide that it is newer.
func TestApply_NewerVersionGoesFirst(t *testing.T) {
	data, err := proto.Marshal(&logpb.Entry{Version: EntryVersion + 1})
	if err != nil {
		t.Fatal(err)
	}
	if words := stopsAt(New(), append(data, unknownField...)); !strings.Contains(words, "has version") {
		t.Errorf("stopped with %q", words)
	}
}

// TestKnownFields_AgreesWithProtobuf: the check of the encoding finds the same fields as protobuf.
func TestKnownFields_AgreesWithProtobuf(t *testing.T) {
	examples := map[*entry.Fields][][]byte{}
	add := func(k *entry.Fields, m proto.Message) {
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Check(data); err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		examples[k] = append(examples[k], data)
	}
	for _, kind := range kindsOf(&logpb.Command{}) {
		for chosen := range 3 {
			m := &logpb.Command{}
			populate(m.ProtoReflect(), kind, chosen)
			add(entry.KnownCommand, m)
			add(entry.KnownEntry, &logpb.Entry{Version: 1, Commands: []*logpb.Command{m, m}})
		}
	}
	for _, kind := range kindsOf(&logpb.SnapshotRecord{}) {
		m := &logpb.SnapshotRecord{}
		populate(m.ProtoReflect(), kind, 0)
		add(entry.KnownRecord, m)
	}
	rapid.Check(t, func(rt *rapid.T) {
		k := rapid.SampledFrom([]*entry.Fields{entry.KnownEntry, entry.KnownCommand, entry.KnownRecord}).Draw(rt, "type")
		data := bytes.Clone(rapid.SampledFrom(examples[k]).Draw(rt, "example"))
		for range rapid.IntRange(0, 3).Draw(rt, "changes") {
			data[rapid.IntRange(0, len(data)-1).Draw(rt, "at")] = rapid.Byte().Draw(rt, "byte")
		}
		var m proto.Message
		switch k {
		case entry.KnownEntry:
			m = new(logpb.Entry)
		case entry.KnownCommand:
			m = new(logpb.Command)
		default:
			m = new(logpb.SnapshotRecord)
		}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		// If a oneof occurs twice protobuf keeps the last one, and unknown fields of the first one are lost.
		if err := k.Check(data); hasUnknown(m.ProtoReflect()) && !errors.Is(err, entry.ErrUnknownField) {
			rt.Fatalf("%x: %v", data, err)
		} else if err != nil && !hasUnknown(m.ProtoReflect()) {
			if again, _ := proto.Marshal(m); len(again) >= len(data) {
				rt.Fatalf("%x: %v, and protobuf knows it all", data, err)
			}
		}
	})
}

// TestReadSnapshot_TellsNewerFromDamaged: an unknown field or kind of record means newer if the checksum is valid, and
// damaged if it is not.
func TestReadSnapshot_TellsNewerFromDamaged(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	w.granted(ask("a", itemOf("r", 1)))
	good := snapshotOf(t, w.m.Freeze())
	var records []*logpb.SnapshotRecord
	if err := snapshot.Read(bytes.NewReader(good), func(_ uint32, record *logpb.SnapshotRecord) error {
		records = append(records, record)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, record := range records {
		eachMessage(record.ProtoReflect(), func(m protoreflect.Message) {
			m.SetUnknown(unknownField)
			newer := encodedRecords(t, records)
			m.SetUnknown(nil)
			if _, err := Restore(bytes.NewReader(newer)); !errors.Is(err, ErrNewerSnapshot) || errors.Is(err, ErrCorruptSnapshot) {
				t.Errorf("an unknown field in %s of record %d: %v", m.Descriptor().FullName(), i, err)
			}
			newer[len(newer)-3]++
			if _, err := Restore(bytes.NewReader(newer)); !errors.Is(err, ErrCorruptSnapshot) || errors.Is(err, ErrNewerSnapshot) {
				t.Errorf("the same, damaged: %v", err)
			}
		})
	}
	kind := &logpb.SnapshotRecord{}
	kind.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1999, protowire.BytesType), []byte("new")))
	if _, err := Restore(bytes.NewReader(encodedRecords(t, append(records, kind)))); !errors.Is(err, ErrNewerSnapshot) {
		t.Errorf("a record of unknown kind: %v", err)
	}
	if _, err := Restore(bytes.NewReader(encodedRecords(t, append(records, &logpb.SnapshotRecord{})))); !errors.Is(err, ErrCorruptSnapshot) {
		t.Errorf("a record of no kind: %v", err)
	}
	if !bytes.Equal(encodedRecords(t, records), good) {
		t.Error("the records are not those of the snapshot")
	}
}

// encodedRecords returns a snapshot of records.
func encodedRecords(t *testing.T, records []*logpb.SnapshotRecord) []byte {
	t.Helper()
	var b bytes.Buffer
	out := snapshot.NewWriter(&b, SnapshotVersion)
	for _, record := range records {
		out.Record(record)
	}
	if err := out.Finish(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// BenchmarkDecode decodes entries of a hundred Consumes, which protobuf decodes.
func BenchmarkDecode(b *testing.B) {
	commands := make([]*logpb.Command, 100)
	for i := range commands {
		commands[i] = consumeCmd(&logpb.Consume{Lease: uint64(i + 1), Fence: 1 << 48, Op: 1, Items: []*logpb.Item{itemOf("github/core", 1)}})
		commands[i].Session, commands[i].Seq, commands[i].AckedBelow, commands[i].By = 5, uint64(i), uint64(i), "agent-*"
	}
	data, err := proto.Marshal(&logpb.Entry{Version: 1, StampNs: 5, WallEarlyNs: 7, WallLateNs: 9, Commands: commands})
	if err != nil {
		b.Fatal(err)
	}
	d := &entry.Decoder{Names: new(entry.Names)}
	for b.Loop() {
		if err := d.Decode(data); err != nil {
			b.Fatal(err)
		}
		for i := range d.Commands() {
			if _, _, err := d.Command(i); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(commands)), "ns/command")
}
