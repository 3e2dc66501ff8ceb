package entry

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/logpb"
)

// encodesAlike checks that encoding commands one by one, after existing bytes, equals protobuf's encoding of the entry.
func encodesAlike(t tester, commands ...*logpb.Command) {
	t.Helper()
	want, wrong := proto.Marshal(&logpb.Entry{Version: 1, Commands: commands})
	got, err := proto.Marshal(&logpb.Entry{Version: 1})
	for _, command := range commands {
		if err == nil {
			got, err = AppendCommand(got, command)
		}
	}
	if (err != nil) != (wrong != nil) {
		t.Fatalf("%v: %v, protobuf says %v", commands, err, wrong)
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("%v\n%x\nprotobuf has\n%x", commands, got, want)
	}
}

func TestAppendCommand(t *testing.T) {
	long := strings.Repeat("x", 1<<14)
	for _, command := range []*logpb.Command{
		nil,
		{},
		{Kind: &logpb.Command_Reserve{}},
		{Kind: (*logpb.Command_Reserve)(nil)},
		reserve(&logpb.Reserve{}),
		reserve(&logpb.Reserve{Items: []*logpb.Item{nil, {}, {Amount: new(int64)}}, Class: new(int32(-1))}),
		reserve(ask("no \xff UTF-8", itemOf("q", 1))),
		reserve(ask("h", itemOf("no \xff UTF-8", 1), itemOf("q", 1))),
		{By: "no \xff UTF-8", Kind: reserve(ask("h")).Kind},
		{IdempotencyKey: "no \xff UTF-8", By: "b", Kind: reserve(ask("h")).Kind},
		reserve(ask(long, itemOf(long[:127], -1), itemOf(long[:128], 1<<62))),
		renew(&logpb.Renew{Lease: 1}),
	} {
		encodesAlike(t, command, reserve(ask("next", itemOf("q", 1))))
	}
	rapid.Check(t, func(rt *rapid.T) { encodesAlike(rt, randomEntry(rt).Commands...) })
}

// TestAppendCommand_KnowsEveryField sets each field of a Reserve's messages alone: a new one must not be left out.
func TestAppendCommand_KnowsEveryField(t *testing.T) {
	for _, build := range []func() (*logpb.Command, proto.Message){
		func() (*logpb.Command, proto.Message) { c := reserve(&logpb.Reserve{}); return c, c },
		func() (*logpb.Command, proto.Message) { r := &logpb.Reserve{}; return reserve(r), r },
		func() (*logpb.Command, proto.Message) {
			item := &logpb.Item{}
			return reserve(&logpb.Reserve{Items: []*logpb.Item{item}}), item
		},
	} {
		_, message := build()
		fields := message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			if field.ContainingOneof() != nil && !field.HasOptionalKeyword() {
				continue // the kinds, one of which is set
			}
			command, message := build()
			empty, _ := proto.Marshal(command)
			setField(t, message.ProtoReflect(), field)
			encodesAlike(t, command)
			if set, _ := proto.Marshal(command); bytes.Equal(set, empty) {
				t.Errorf("%s was not set", field.FullName())
			}
		}
	}
}

// setField sets a field to a value other than the default.
func setField(t *testing.T, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	t.Helper()
	switch {
	case field.IsList():
		list := m.Mutable(field).List()
		list.Append(list.NewElement())
	case field.Kind() == protoreflect.StringKind:
		m.Set(field, protoreflect.ValueOfString("s"))
	case field.Kind() == protoreflect.BoolKind:
		m.Set(field, protoreflect.ValueOfBool(true))
	case field.Kind() == protoreflect.Int32Kind:
		m.Set(field, protoreflect.ValueOfInt32(3))
	case field.Kind() == protoreflect.Int64Kind:
		m.Set(field, protoreflect.ValueOfInt64(300))
	case field.Kind() == protoreflect.Uint64Kind:
		m.Set(field, protoreflect.ValueOfUint64(300))
	default:
		t.Fatalf("%s is of a kind that this test does not know", field.FullName())
	}
}
