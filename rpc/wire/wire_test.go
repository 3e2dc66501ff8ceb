package wire_test

import (
	"bytes"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/wire"
)

var _ connect.Codec = wire.Codec{}

// Texts for strings: one that is not UTF-8, and one whose length takes three bytes.
const bad = "\xff"

var long = strings.Repeat("long", 5_000)

// tester is a test, or a check of a property.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// parsesAlike checks that wire reads data as the library does, into a message of empty's type, and keeps no reference to data.
func parsesAlike(t tester, empty proto.Message, data []byte) {
	t.Helper()
	want, got := fresh(empty), usualOf(empty)
	wrong := proto.Unmarshal(data, want)
	lent := bytes.Clone(data)
	err := wire.Codec{}.Unmarshal(lent, got)
	for i := range lent {
		lent[i] ^= 0xff
	}
	if (err != nil) != (wrong != nil) {
		t.Fatalf("%x: %v, the library says %v", data, err, wrong)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("%x\n%v\nthe library has\n%v", data, got, want)
	}
	if a, b := listed(got), listed(want); a != b {
		t.Fatalf("%x: list is there: %v, the library has %v", data, a, b)
	}
	appendsAlike(t, got)
}

// appendsAlike checks that wire's encoding of a message and the library's mean the same to both.
func appendsAlike(t tester, m proto.Message) {
	t.Helper()
	want, wrong := proto.Marshal(m)
	got, err := wire.Codec{}.MarshalAppend([]byte("before"), m)
	if (err != nil) != (wrong != nil) {
		t.Fatalf("%v: %v, the library says %v", m, err, wrong)
	}
	if err != nil {
		return
	}
	got, ok := bytes.CutPrefix(got, []byte("before"))
	if !ok || len(got) != len(want) {
		t.Fatalf("%v\n%x\nthe library has\n%x", m, got, want)
	}
	meant := fresh(m)
	if err := proto.Unmarshal(want, meant); err != nil {
		t.Fatalf("%x: %v", want, err)
	}
	for _, data := range [][]byte{got, want} {
		for _, unmarshal := range []func([]byte, proto.Message) error{
			proto.Unmarshal, func(data []byte, m proto.Message) error { return wire.Codec{}.Unmarshal(data, m) },
		} {
			again := fresh(m)
			if err := unmarshal(data, again); err != nil || !proto.Equal(again, meant) {
				t.Fatalf("%x: %v\n%v\nthe library has\n%v", data, err, again, meant)
			}
		}
	}
}

// usualOf returns a message of the same type that has content, which must be gone after a read.
func usualOf(m proto.Message) proto.Message {
	if _, ok := m.(*quotav1.BatchRequest); ok {
		return usualRequest(1)
	}
	return usualResponse(1)
}

// listed tells an empty list from nil.
func listed(m proto.Message) bool {
	switch m := m.(type) {
	case *quotav1.BatchRequest:
		return m.Commands != nil
	case *quotav1.BatchResponse:
		return m.Results != nil
	}
	return false
}

// sized returns a field with a length, made of parts.
func sized(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

// number returns a field that is a number.
func number(number protowire.Number, n int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), uint64(n))
}

// odd returns fields that somebody may send in any message: each is tried in all the messages that wire reads itself.
func odd() [][]byte {
	list := [][]byte{
		{},
		{0},
		{2},
		{7}, // no field has the number 0
		{0x8a, 0x00, 0x00},
		{0x88, 0x80, 0x00, 0x01}, // a tag that takes more bytes than it needs
		{0x0a, 0x80, 0x00},
		{0x12, 0x80, 0x80, 0x00},
		{0x1a, 0xff}, // lengths
		{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, // numbers
		{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
		{0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},
		{0x10, 0x80},
		{0x28, 0x80, 0x80, 0x00},
		{0x28, 0x02},
		{0x0b, 0x0c},
		{0x0b, 0x08, 0x01, 0x0c},
		{0x0b},
		{0x0b, 0x14},
		{0x0c},
		{0x7b, 0x7c}, // groups
		bytes.Repeat([]byte{0x7b}, 20_000), append(bytes.Repeat([]byte{0x7b}, 9_000), bytes.Repeat([]byte{0x7c}, 9_000)...),
		number(protowire.MaxValidNumber, 1), number(protowire.MaxValidNumber+1, 1),
		{0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x01},
	}
	for field := range protowire.Number(17) {
		list = append(
			list, number(field, 1), number(field, 0), number(field, -1), number(field, math.MinInt64), number(field, 1<<32+5),
			sized(field), sized(field, []byte("text")), sized(field, []byte{0xff}), sized(field, number(1, 7)), sized(field, number(2, -7)),
			sized(field, number(1, 7), number(9, 7), sized(10)), sized(field, []byte(long)),
			protowire.AppendFixed32(protowire.AppendTag(nil, field, protowire.Fixed32Type), 7),
			protowire.AppendFixed64(protowire.AppendTag(nil, field, protowire.Fixed64Type), 7),
			protowire.AppendTag(nil, field, protowire.Fixed64Type), protowire.AppendTag(nil, field, protowire.BytesType),
			protowire.AppendTag(nil, field, 6),
		)
	}
	return list
}

// place is a message that wire reads itself, with the messages around its content.
type place struct {
	name  string
	empty proto.Message
	usual []byte
	in    []protowire.Number
}

func places() []place {
	request, response := new(quotav1.BatchRequest), new(quotav1.BatchResponse)
	text := sized(1, []byte("quota"))
	second := number(1, 1)
	granted := slices.Concat(text, number(2, 5), sized(3, second), sized(4, []byte("other")))
	operation := slices.Concat(number(1, 3), sized(2, granted), sized(3, second), sized(4, second))
	lease := slices.Concat(number(1, 8), number(2, 9), sized(3, granted), sized(4, second), sized(5, operation), number(6, 2))
	item := slices.Concat(text, number(2, 5))
	reserve := slices.Concat(sized(1, number(1, 5)), sized(2, []byte("holder")), sized(3, item), sized(4, second), number(5, 1), number(6, 2))
	return []place{
		{"BatchRequest", request, sized(1, sized(1, reserve)), nil},
		{"Command", request, sized(1, reserve), []protowire.Number{1}},
		{"ReserveRequest", request, reserve, []protowire.Number{1, 1}},
		{"RequestId", request, number(1, 5), []protowire.Number{1, 1, 1}},
		{"Item", request, item, []protowire.Number{3, 1, 1}},
		{"Ttl", request, second, []protowire.Number{4, 1, 1}},
		{"Wait", request, second, []protowire.Number{7, 1, 1}},
		{"BatchResponse", response, sized(2, sized(1, sized(2, lease))), nil},
		{"Meta", response, number(1, 5), []protowire.Number{1}},
		{"CommandResult", response, sized(1, sized(2, lease)), []protowire.Number{2}},
		{"ReserveResponse", response, sized(2, lease), []protowire.Number{1, 2}},
		{"Lease", response, lease, []protowire.Number{2, 1, 2}},
		{"Lease's item", response, granted, []protowire.Number{3, 2, 1, 2}},
		{"item's ExpiresIn", response, second, []protowire.Number{3, 3, 2, 1, 2}},
		{"Operation", response, operation, []protowire.Number{5, 2, 1, 2}},
		{"Operation's item", response, granted, []protowire.Number{2, 5, 2, 1, 2}},
		{"Transit", response, second, []protowire.Number{4, 5, 2, 1, 2}},
	}
}

// within wraps a message's content in the messages around it, innermost first.
func (p place) within(content []byte) []byte {
	for _, number := range p.in {
		content = sized(number, content)
	}
	return content
}

// TestUnmarshal_OddFieldsMatchLibrary reads odd fields in each message: alone, before the usual content, and after it. It also reads the
// usual content twice.
func TestUnmarshal_OddFieldsMatchLibrary(t *testing.T) {
	for _, p := range places() {
		t.Run(p.name, func(t *testing.T) {
			parsesAlike(t, p.empty, p.within(slices.Concat(p.usual, p.usual)))
			for _, field := range odd() {
				for _, content := range [][]byte{field, slices.Concat(field, p.usual), slices.Concat(p.usual, field)} {
					parsesAlike(t, p.empty, p.within(content))
				}
			}
		})
	}
}

// TestUnmarshal_AnyOrderOfFields reads the fields of each message from the last to the first, which is as valid.
func TestUnmarshal_AnyOrderOfFields(t *testing.T) {
	for _, p := range places() {
		t.Run(p.name, func(t *testing.T) {
			var back []byte
			for rest := p.usual; len(rest) > 0; {
				_, _, size := protowire.ConsumeField(rest)
				back = slices.Concat(rest[:size], back)
				rest = rest[size:]
			}
			parsesAlike(t, p.empty, p.within(back))
		})
	}
}

// TestUnmarshal_DamagedMatchesLibrary reads usual batches that end too early or have a wrong byte.
func TestUnmarshal_DamagedMatchesLibrary(t *testing.T) {
	for _, m := range usual(2) {
		data, err := proto.Marshal(m.message)
		if err != nil {
			t.Fatal(err)
		}
		for at := range data {
			parsesAlike(t, m.message, data[:at])
			for _, other := range []byte{0, 1, 2, 0x0a, 0x7f, 0x80, 0xff, data[at] ^ 1, data[at] ^ 8, data[at] + 1, data[at] - 1} {
				damaged := bytes.Clone(data)
				damaged[at] = other
				parsesAlike(t, m.message, damaged)
			}
		}
	}
}

// TestUnmarshal_EachCommandHasItsHolder reads a batch of commands of several holders, and of none: each command has its own.
func TestUnmarshal_EachCommandHasItsHolder(t *testing.T) {
	command := func(holder string) []byte { return sized(1, sized(1, sized(2, []byte(holder)))) }
	same, none := command("a"), sized(1, sized(1))
	parsesAlike(t, new(quotav1.BatchRequest), slices.Concat(same, command("b"), none, same, command(""), none, same))
	parsesAlike(t, new(quotav1.BatchRequest), slices.Concat(same, command(bad), same))
}

// TestUnmarshal_KeptLeaseKeepsNothingElse: an application that keeps one lease keeps no other part of the batch in memory.
func TestUnmarshal_KeptLeaseKeepsNothingElse(t *testing.T) {
	data, err := proto.Marshal(usualResponse(3))
	if err != nil {
		t.Fatal(err)
	}
	m := new(quotav1.BatchResponse)
	if err := (wire.Codec{}).Unmarshal(data, m); err != nil {
		t.Fatal(err)
	}
	kept := m.Results[1].GetReserve().GetLease()
	others := []weak.Pointer[quotav1.CommandResult]{weak.Make(m.Results[0]), weak.Make(m.Results[2])}
	runtime.GC()
	for _, other := range others {
		if other.Value() != nil {
			t.Error("another result is still there")
		}
	}
	runtime.KeepAlive(kept)
}

// TestCodec_RefusesNonMessages: a value that is not a message is an error, and a nil message is an empty one.
func TestCodec_RefusesNonMessages(t *testing.T) {
	for _, nothing := range []any{nil, 5, "text", struct{}{}} {
		if _, err := (wire.Codec{}).Marshal(nothing); err == nil {
			t.Errorf("Marshal took %v", nothing)
		}
		if _, err := (wire.Codec{}).MarshalAppend(nil, nothing); err == nil {
			t.Errorf("MarshalAppend took %v", nothing)
		}
		if err := (wire.Codec{}).Unmarshal(nil, nothing); err == nil {
			t.Errorf("Unmarshal took %v", nothing)
		}
	}
	for _, m := range []proto.Message{
		(*quotav1.BatchRequest)(nil), (*quotav1.BatchResponse)(nil), (*quotav1.Command)(nil),
		new(quotav1.BatchRequest), new(quotav1.BatchResponse), new(quotav1.Command),
	} {
		want, _ := proto.Marshal(m)
		got, err := wire.Codec{}.Marshal(m)
		if err != nil || len(got) != 0 || (got == nil) != (want == nil) {
			t.Errorf("Marshal(%T): %v, %v", m, got, err)
		}
		if got, err := (wire.Codec{}).MarshalAppend([]byte{5}, m); err != nil || !bytes.Equal(got, []byte{5}) {
			t.Errorf("MarshalAppend(%T): %v, %v", m, got, err)
		}
	}
}

// TestCodec_PassesOtherTypesToLibrary: messages of other types go through the library.
func TestCodec_PassesOtherTypesToLibrary(t *testing.T) {
	want := usualRequest(1).Commands[0].GetReserve()
	data, err := wire.Codec{}.MarshalAppend(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got := &quotav1.ReserveRequest{Holder: "somebody", Resume: true}
	if err := (wire.Codec{}).Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if err := (wire.Codec{}).Unmarshal(data[1:], got); err == nil {
		t.Error("what cannot be read was taken")
	}
}

// TestMarshalAppend_OddRequests appends commands that nobody sends on purpose: with nil where a value is usual, and with bad text.
func TestMarshalAppend_OddRequests(t *testing.T) {
	list := []*quotav1.Command{
		nil,
		{},
		{Kind: (*quotav1.Command_Reserve)(nil)},
		{Kind: &quotav1.Command_Reserve{}},
		{Kind: (*quotav1.Command_Renew)(nil)},
		{Kind: &quotav1.Command_Renew{}},
		{Kind: &quotav1.Command_Renew{Renew: &quotav1.RenewRequest{RequestId: &quotav1.RequestId{IdempotencyKey: bad}}}},
	}
	for _, r := range []*quotav1.ReserveRequest{
		{},
		{Items: []*quotav1.Item{nil, {}, {Amount: new(int64(0))}, {Amount: new(int64(-5))}}},
		{Items: []*quotav1.Item{{Quota: bad}}},
		{Items: []*quotav1.Item{{Quota: long}}},
		{Holder: bad},
		{Holder: long},
		{Class: -7},
		{RequestId: &quotav1.RequestId{}, Ttl: &durationpb.Duration{}, Wait: &durationpb.Duration{Seconds: -5, Nanos: -7}},
		{RequestId: &quotav1.RequestId{IdempotencyKey: bad}},
		{RequestId: &quotav1.RequestId{IdempotencyKey: long}},
	} {
		list = append(list, &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: r}})
	}
	for _, c := range list {
		appendsAlike(t, &quotav1.BatchRequest{Commands: []*quotav1.Command{c, usualRequest(1).Commands[0], c}})
	}
}

// TestMarshalAppend_OddResponses is the same for results.
func TestMarshalAppend_OddResponses(t *testing.T) {
	none := []*quotav1.GrantedItem{nil, {}, nil}
	responses := []*quotav1.ReserveResponse{
		nil,
		{},
		{Meta: &quotav1.Meta{Node: "n1"}},
		{Meta: &quotav1.Meta{}, Outcome: &quotav1.ReserveResponse_Lease{Lease: &quotav1.Lease{Id: 5}}},
		{Outcome: (*quotav1.ReserveResponse_Lease)(nil)},
		{Outcome: &quotav1.ReserveResponse_Refusal{}},
		{Outcome: &quotav1.ReserveResponse_Waiting{Waiting: &quotav1.Waiting{}}},
	}
	for _, lease := range []*quotav1.Lease{
		nil,
		{},
		{Items: none, Operation: &quotav1.Operation{Items: none}},
		{Class: -7, ExpiresIn: &durationpb.Duration{}, AskedTtl: &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}},
		{Operation: &quotav1.Operation{}, Forecast: &quotav1.Forecast{}, BackPressure: &quotav1.BackPressure{}},
		{Items: []*quotav1.GrantedItem{{Quota: bad}}},
		{Items: []*quotav1.GrantedItem{{InsteadOf: bad}}},
		{Items: []*quotav1.GrantedItem{{Amount: -5, Quota: long, ExpiresIn: &durationpb.Duration{}}}},
		{Forecast: &quotav1.Forecast{Smaller: math.NaN(), Quota: long}},
		{Forecast: &quotav1.Forecast{Quota: bad}},
	} {
		responses = append(responses, &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Lease{Lease: lease}})
	}
	list := []*quotav1.CommandResult{
		nil,
		{},
		{Kind: (*quotav1.CommandResult_Reserve)(nil)},
		{Kind: (*quotav1.CommandResult_Error)(nil)},
		{Kind: &quotav1.CommandResult_Error{}},
	}
	for _, r := range responses {
		list = append(list, &quotav1.CommandResult{Kind: &quotav1.CommandResult_Reserve{Reserve: r}})
	}
	for _, r := range list {
		appendsAlike(t, &quotav1.BatchResponse{Results: []*quotav1.CommandResult{r, usualResponse(1).Results[0], r}})
	}
	appendsAlike(t, &quotav1.BatchResponse{Meta: &quotav1.Meta{}})
	appendsAlike(t, &quotav1.BatchResponse{Meta: &quotav1.Meta{Node: bad}})
}

// durationResults returns results that use a few durations, in many orders.
func durationResults(few []*durationpb.Duration) *quotav1.BatchResponse {
	response := &quotav1.BatchResponse{}
	for i := range 100 {
		of := func(n int) *durationpb.Duration { return few[(i/3*n+i)%len(few)] }
		lease := &quotav1.Lease{
			Id: uint64(i), ExpiresIn: of(1), AskedTtl: few[i/50], Items: []*quotav1.GrantedItem{
				{Quota: strings.Repeat("q", i), Amount: 1, ExpiresIn: of(1)}, {Quota: "p", ExpiresIn: of(3)},
			},
			Operation: &quotav1.Operation{Op: 1, SpendIn: of(4), Transit: of(5)},
		}
		response.Results = append(response.Results, &quotav1.CommandResult{Kind: &quotav1.CommandResult_Reserve{
			Reserve: &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Lease{Lease: lease}},
		}})
	}
	return response
}

func fewDurations() []*durationpb.Duration {
	few := make([]*durationpb.Duration, 7)
	for i := range few {
		few[i] = &durationpb.Duration{Seconds: int64(i) - 1, Nanos: int32(i * 1000)}
	}
	return few
}

// TestMarshal_SharedDurationsMatchLibrary: results that share durations are written as the library writes them, whatever the lengths around
// them.
func TestMarshal_SharedDurationsMatchLibrary(t *testing.T) {
	shared := fewDurations()
	shared[6].ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 9, protowire.BytesType), strings.Repeat("x", 200)))
	response := durationResults(shared)
	got, err := wire.Codec{}.MarshalAppend(nil, response)
	if err != nil {
		t.Fatal(err)
	}
	want, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%x\nthe library has\n%x", got, want)
	}
}

// TestUnmarshal_SharesEqualDurations: a duration equal to the one before is read as the same object, and any other is its own.
func TestUnmarshal_SharesEqualDurations(t *testing.T) {
	written := durationResults(fewDurations())
	data, err := proto.Marshal(written)
	if err != nil {
		t.Fatal(err)
	}
	read := &quotav1.BatchResponse{}
	if err := (wire.Codec{}).Unmarshal(data, read); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(read, written) {
		t.Errorf("%v\nwas read of\n%v", read, written)
	}
	objects := map[*durationpb.Duration]bool{}
	for _, result := range read.Results {
		objects[result.GetReserve().GetLease().GetAskedTtl()] = true
	}
	if len(objects) != 2 {
		t.Errorf("%d objects for two durations", len(objects))
	}
}
