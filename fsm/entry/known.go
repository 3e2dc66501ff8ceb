package entry

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/logpb"
)

// An unknown field changes the meaning of its message: ignoring it would make replicas differ. protobuf keeps such
// fields silently. So decoded messages are checked again in their encoding, which takes a fraction of the time of
// reflection.

// ErrUnknownField means that a message has a field that this binary does not know.
var ErrUnknownField = errors.New("this binary does not know it: upgrade")

// Fields are the fields of a message, by number; an unknown field is the zero value.
type Fields struct {
	name   protoreflect.FullName
	fields []knownField
}

// knownField is the encoding of a field.
type knownField struct {
	// wire is its type; packed says that it may also be encoded as bytes.
	wire   protowire.Type
	packed bool
	known  bool
	// message are the fields of its message type; nil: not a message.
	message *Fields
}

// Known fields of an entry, a command and a record of a snapshot.
var (
	KnownEntry   = fieldsOf((*logpb.Entry)(nil).ProtoReflect().Descriptor(), map[protoreflect.FullName]*Fields{})
	KnownCommand = fieldsOf((*logpb.Command)(nil).ProtoReflect().Descriptor(), map[protoreflect.FullName]*Fields{})
	KnownRecord  = fieldsOf((*logpb.SnapshotRecord)(nil).ProtoReflect().Descriptor(), map[protoreflect.FullName]*Fields{})
)

// fieldsOf returns the fields of a message type; made has the types computed before.
func fieldsOf(of protoreflect.MessageDescriptor, made map[protoreflect.FullName]*Fields) *Fields {
	if k := made[of.FullName()]; k != nil {
		return k
	}
	k := &Fields{name: of.FullName()}
	made[of.FullName()] = k
	for i := range of.Fields().Len() {
		field := of.Fields().Get(i)
		if field.IsMap() || field.Kind() == protoreflect.GroupKind {
			panic(fmt.Sprintf("fsm: %s is of a kind that the log and snapshots do not use", field.FullName()))
		}
		one := knownField{wire: wireOf(field.Kind()), known: true}
		one.packed = field.IsList() && one.wire != protowire.BytesType
		if field.Kind() == protoreflect.MessageKind {
			one.message = fieldsOf(field.Message(), made)
		}
		for len(k.fields) <= int(field.Number()) {
			k.fields = append(k.fields, knownField{})
		}
		k.fields[field.Number()] = one
	}
	return k
}

// wireOf returns the encoding of a single value of a kind.
func wireOf(kind protoreflect.Kind) protowire.Type {
	switch kind {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return protowire.BytesType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Uint32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Uint64Kind:
	}
	return protowire.VarintType
}

// Check returns an error if an encoded message, or one within it, has an unknown field. The message must be one that
// protobuf decodes.
func (k *Fields) Check(data []byte) error {
	for len(data) > 0 {
		number, wire, n := protowire.Number(data[0]>>3), protowire.Type(data[0]&7), 1
		if data[0] < 1<<3 || data[0] >= 1<<7 { // not a tag of one byte
			if number, wire, n = protowire.ConsumeTag(data); n < 0 {
				return protowire.ParseError(n)
			}
		}
		data = data[n:]
		var field *knownField
		if int(number) < len(k.fields) {
			field = &k.fields[number]
		}
		if field == nil || !field.known || wire != field.wire && (!field.packed || wire != protowire.BytesType) {
			return fmt.Errorf("field %d of %s: %w", number, k.name, ErrUnknownField)
		}
		if wire == protowire.VarintType && len(data) > 0 && data[0] < 1<<7 {
			data = data[1:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return protowire.ParseError(n)
		}
		if field.message != nil {
			part, _ := protowire.ConsumeBytes(data)
			if err := field.message.Check(part); err != nil {
				return err
			}
		}
		data = data[n:]
	}
	return nil
}
