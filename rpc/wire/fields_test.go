package wire_test

import (
	"reflect"
	"runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/wire"
)

// scalar returns a number as a value of a field's kind.
func scalar(fd protoreflect.FieldDescriptor, n int64) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{byte(n)})
	default:
		panic("no numbers of the kind " + fd.Kind().String())
	}
}

// fill sets a field, at any depth, to a value that is not zero.
func fill(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	value := func(fd protoreflect.FieldDescriptor, empty protoreflect.Value) protoreflect.Value {
		switch fd.Kind() {
		case protoreflect.MessageKind:
			fillAll(empty.Message())
			return empty
		case protoreflect.StringKind:
			return protoreflect.ValueOfString("text of " + string(fd.Name()))
		default:
			return scalar(fd, 1001+2*int64(fd.Number())) // odd, and different for each field
		}
	}
	if fd.IsMap() { // one entry: the order of several varies
		entries := m.Mutable(fd).Map()
		entries.Set(value(fd.MapKey(), protoreflect.Value{}).MapKey(), value(fd.MapValue(), entries.NewValue()))
		return
	}
	if !fd.IsList() {
		m.Set(fd, value(fd, m.NewField(fd)))
		return
	}
	list := m.Mutable(fd).List()
	for range 2 {
		list.Append(value(fd, list.NewElement()))
	}
}

// fillAll sets all fields of a message, and of a oneof the first one.
func fillAll(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if kinds := fd.ContainingOneof(); kinds == nil || kinds.Fields().Get(0) == fd {
			fill(m, fd)
		}
	}
}

// target is a message that wire encodes itself, in a usual batch.
type target struct{ batch, message proto.Message }

func targets() map[string]func() target {
	request := func(pick func(r *quotav1.ReserveRequest) proto.Message) func() target {
		return func() target {
			m := usualRequest(2)
			m.Commands[0].GetReserve().Wait = durationpb.New(5)
			return target{m, pick(m.Commands[0].GetReserve())}
		}
	}
	response := func(pick func(l *quotav1.Lease) proto.Message) func() target {
		return func() target {
			m := usualResponse(2)
			lease := m.Results[0].GetReserve().GetLease()
			lease.AskedTtl, lease.Operation.SpendIn, lease.Operation.Transit = durationpb.New(5), durationpb.New(6), durationpb.New(7)
			return target{m, pick(lease)}
		}
	}
	return map[string]func() target{
		"BatchRequest":     func() target { m := usualRequest(2); return target{m, m} },
		"Command":          func() target { m := usualRequest(2); return target{m, m.Commands[0]} },
		"ReserveRequest":   request(func(r *quotav1.ReserveRequest) proto.Message { return r }),
		"Item":             request(func(r *quotav1.ReserveRequest) proto.Message { return r.Items[0] }),
		"Ttl":              request(func(r *quotav1.ReserveRequest) proto.Message { return r.Ttl }),
		"Wait":             request(func(r *quotav1.ReserveRequest) proto.Message { return r.Wait }),
		"BatchResponse":    func() target { m := usualResponse(2); return target{m, m} },
		"CommandResult":    func() target { m := usualResponse(2); return target{m, m.Results[0]} },
		"ReserveResponse":  func() target { m := usualResponse(2); return target{m, m.Results[0].GetReserve()} },
		"Lease":            response(func(l *quotav1.Lease) proto.Message { return l }),
		"ExpiresIn":        response(func(l *quotav1.Lease) proto.Message { return l.ExpiresIn }),
		"AskedTtl":         response(func(l *quotav1.Lease) proto.Message { return l.AskedTtl }),
		"Lease's item":     response(func(l *quotav1.Lease) proto.Message { return l.Items[0] }),
		"Operation":        response(func(l *quotav1.Lease) proto.Message { return l.Operation }),
		"SpendIn":          response(func(l *quotav1.Lease) proto.Message { return l.Operation.SpendIn }),
		"Transit":          response(func(l *quotav1.Lease) proto.Message { return l.Operation.Transit }),
		"Operation's item": response(func(l *quotav1.Lease) proto.Message { return l.Operation.Items[0] }),
	}
}

// TestCodec_CarriesEveryField: each field of the messages that wire encodes itself survives, next to the usual ones and alone, and so do
// unknown fields. A field that the schema gets later and append.go does not know fails here.
func TestCodec_CarriesEveryField(t *testing.T) {
	for name, draw := range targets() {
		t.Run(name, func(t *testing.T) {
			fields := draw().message.ProtoReflect().Descriptor().Fields()
			for i := range fields.Len() {
				for _, alone := range []bool{false, true} {
					in := draw()
					if alone {
						proto.Reset(in.message)
					}
					fill(in.message.ProtoReflect(), fields.Get(i))
					getsThrough(t, in.batch)
				}
			}
			in := draw()
			fillAll(in.message.ProtoReflect())
			getsThrough(t, in.batch)
			in = draw()
			in.message.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 5))
			getsThrough(t, in.batch)
		})
	}
}

// getsThrough checks that a message is the same after wire wrote it and the library read it, and the other way round.
func getsThrough(t *testing.T, m proto.Message) {
	t.Helper()
	byHand, err := wire.Codec{}.MarshalAppend(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	library, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := fresh(m)
	if err := proto.Unmarshal(byHand, got); err != nil || !proto.Equal(got, m) {
		t.Errorf("written by hand: %v\n%v\nwas\n%v", err, got, m)
	}
	if err := (wire.Codec{}).Unmarshal(library, got); err != nil || !proto.Equal(got, m) {
		t.Errorf("read by hand: %v\n%v\nwas\n%v", err, got, m)
	}
}

// TestUnmarshal_UsualNeedsFewAllocations: usual commands and results are read into one allocation each. A field in them that goes through
// the library takes more, as does one that the schema gets later and parse.go does not know.
func TestUnmarshal_UsualNeedsFewAllocations(t *testing.T) {
	const n = 100
	request, response := usualRequest(n), usualResponse(n)
	for i := range n {
		fillAll(request.Commands[i].GetReserve().ProtoReflect())
		fillAll(response.Results[i].GetReserve().GetLease().ProtoReflect())
	}
	for _, test := range []struct {
		name    string
		message proto.Message
		each    float64 // allocations per command or result
	}{
		{"usual request", usualRequest(n), 3},
		{"usual response", usualResponse(n), 3},
		{"request with all fields", request, 15},
		{"response with all fields", response, 37},
	} {
		data, err := proto.Marshal(test.message)
		if err != nil {
			t.Fatal(err)
		}
		byHand := testing.AllocsPerRun(10, func() { _ = wire.Codec{}.Unmarshal(data, fresh(test.message)) })
		library := testing.AllocsPerRun(10, func() { _ = proto.Unmarshal(data, fresh(test.message)) })
		if byHand > test.each*n || byHand > library*3/4 {
			t.Errorf("%s: %v allocations, the library has %v", test.name, byHand, library)
		}
	}
}

// TestMarshal_UsualAvoidsLibrary: usual commands and results do not go through the library, which records the size of what it writes.
func TestMarshal_UsualAvoidsLibrary(t *testing.T) {
	request, response := usualRequest(1), usualResponse(1)
	to := make([]byte, 0, 1_000)
	for _, test := range []struct{ batch, within proto.Message }{
		{request, request.Commands[0]},
		{request, request.Commands[0].GetReserve()},
		{response, response.Results[0]},
		{response, response.Results[0].GetReserve().GetLease()},
	} {
		noted := func() bool { return reflect.ValueOf(test.within).Elem().FieldByName("sizeCache").Int() != 0 }
		if objects := testing.AllocsPerRun(10, func() { _, _ = wire.Codec{}.MarshalAppend(to, test.batch) }); objects > 0 || noted() {
			t.Errorf("%T: %v allocations, by the library: %v", test.within, objects, noted())
		}
	}
	if _ = proto.Size(request); reflect.ValueOf(request.Commands[0]).Elem().FieldByName("sizeCache").Int() == 0 {
		t.Error("the library does not note sizes any more")
	}
}

// TestUnmarshal_MemoryIsNearLibrarys: many small fields take not much more memory than the library takes for them.
func TestUnmarshal_MemoryIsNearLibrarys(t *testing.T) {
	const many = 20_000
	request, response := new(quotav1.BatchRequest), new(quotav1.BatchResponse)
	for _, test := range []struct {
		empty proto.Message
		field []byte
		first []byte // precedes the field, and makes all of it unusual
	}{
		{request, sized(1), nil},
		{request, sized(1), number(2, 1)},
		{request, number(1, 1), nil},
		{request, sized(1, sized(1)), nil},
		{request, sized(1, sized(1)), number(2, 1)},
		{request, sized(1, sized(1, sized(11))), nil},
		{request, sized(1, sized(1, sized(3))), nil},
		{request, sized(1, sized(1, sized(3), sized(3), sized(4))), nil},
		{response, sized(2), nil},
		{response, sized(2, sized(1, sized(2))), nil},
		{response, sized(2, sized(1, sized(2, sized(11)))), nil},
	} {
		data := append(test.first, make([]byte, 0, many*len(test.field))...)
		for range many {
			data = append(data, test.field...)
		}
		took := func(unmarshal func() error) float64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := unmarshal()
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			return float64(after.TotalAlloc - before.TotalAlloc)
		}
		byHand := took(func() error { return wire.Codec{}.Unmarshal(data, fresh(test.empty)) })
		library := took(func() error { return proto.Unmarshal(data, fresh(test.empty)) })
		if byHand > 4*library {
			t.Errorf("%x: %.0f bytes, the library takes %.0f", test.field, byHand, library)
		}
	}
}
