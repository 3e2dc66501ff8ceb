package rpc

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// populated sets every field of a message, at any depth, to a value that is not its default. Each list has two items.
func populated[M proto.Message](message M) M {
	populate(message.ProtoReflect())
	return message
}

func populate(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if of := field.ContainingOneof(); of != nil && !of.IsSynthetic() && m.WhichOneof(of) != nil {
			continue // the first one is chosen
		}
		if field.IsMap() {
			entries := m.Mutable(field).Map()
			entries.Set(something(protoreflect.Value{}, field.MapKey()).MapKey(), something(entries.NewValue(), field.MapValue()))
			continue
		}
		if !field.IsList() {
			m.Set(field, something(m.NewField(field), field))
			continue
		}
		list := m.Mutable(field).List()
		for range 2 {
			list.Append(something(list.NewElement(), field))
		}
	}
}

// something returns a value of a field that is not its default, to replace an empty one.
func something(empty protoreflect.Value, field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.MessageKind:
		populate(empty.Message())
		return empty
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("some")
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(3)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(2)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(0.5)
	default:
		panic("a field of a kind that this test does not know: " + string(field.FullName()))
	}
}

// missing names the fields of a message that are not set, at any depth. One field of a oneof is enough.
func missing(m protoreflect.Message) (names []string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		of := field.ContainingOneof()
		switch {
		case of != nil && !of.IsSynthetic() && m.WhichOneof(of) != nil && m.WhichOneof(of) != field:
		case !m.Has(field):
			names = append(names, string(m.Descriptor().Name())+"."+string(field.Name()))
		case field.Kind() != protoreflect.MessageKind || strings.HasPrefix(string(field.Message().FullName()), "google.protobuf."):
		case field.IsList():
			for n := range m.Get(field).List().Len() {
				names = append(names, missing(m.Get(field).List().Get(n).Message())...)
			}
		default:
			names = append(names, missing(m.Get(field).Message())...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestCommands_CarryEveryField: everything in a request is in its log entry, in each field that there is for it.
func TestCommands_CarryEveryField(t *testing.T) {
	who := &caller{id: "ops", pattern: "*", ceiling: 1, verbs: verbs, account: "token:ops"}
	for _, command := range []*logpb.Command{
		reserveCommand(populated(&quotav1.ReserveRequest{}), who),
		reserveCommand(with(populated(&quotav1.ReserveRequest{}), func(r *quotav1.ReserveRequest) { r.Items = r.Items[:1] }), who),
		consumeCommand(populated(&quotav1.ConsumeRequest{}), who),
		settleCommand(populated(&quotav1.SettleRequest{}), who),
		releaseCommand(populated(&quotav1.ReleaseRequest{}), who),
		renewCommand(populated(&quotav1.RenewRequest{}), who),
		withdrawCommand(populated(&quotav1.WithdrawRequest{}), who),
		reportCommand(populated(&quotav1.ReportRequest{}), populated(&quotav1.ReportRequest{}).Signals, 1, who),
	} {
		command.PerHolder = true // set for an address's account, which no token has
		names := slices.DeleteFunc(missing(command.ProtoReflect()),
			func(name string) bool { return name == "Item.pool" }) // set by the state machine
		if len(names) > 0 {
			t.Errorf("%T lacks %v", command.Kind, names)
		}
	}
}

func with[T any](value T, change func(T)) T {
	change(value)
	return value
}

// TestAnswers_CarryEveryField: the state's decision reaches the caller in every field. The call itself sets the meta of its answer.
func TestAnswers_CarryEveryField(t *testing.T) {
	clock := fsm.Clock{Now: 1, WallEarly: 1, WallLate: 1}
	notOfFailures := []string{
		"ErrorInfo.field", "ErrorInfo.leader", "ErrorInfo.leader_address", "ErrorInfo.not_accepted", "ErrorInfo.retry_after",
		"ErrorInfo.forecast", // of refusals
	}
	granted := populated(&logpb.Granted{})
	for name, c := range map[string]struct {
		answer proto.Message
		but    []string
	}{
		"a grant":          {leaseResponse(granted, clock, nil), []string{"ReserveResponse.meta"}},
		"a grant of many":  {leaseResponse(granted, clock, new(durations)), []string{"ReserveResponse.meta"}},
		"an operation":     {apiOperation(granted.Consumed, clock), nil},
		"a refusal":        {apiRefusal(populated(&logpb.Refusal{}), clock), nil},
		"a reported quota": {apiReported(populated(&logpb.Reported{}), clock)[0], nil},
		"a settled one": {
			settled(&logpb.Result{Kind: &logpb.Result_Settled{Settled: populated(&logpb.Settled{})}}, &quotav1.Meta{}), metaFields,
		},
		"a released one": {
			released(&logpb.Result{Kind: &logpb.Result_Released{Released: populated(&logpb.Released{})}}, &quotav1.Meta{}), metaFields,
		},
		"a renewed one": {
			renewed(&logpb.Result{Kind: &logpb.Result_Renewed{Renewed: populated(&logpb.Renewed{})}}, &quotav1.Meta{}, clock), metaFields,
		},
		"a failure's error": {infoOf(failed(populated(&logpb.Failure{}))), notOfFailures},
	} {
		names := slices.DeleteFunc(missing(c.answer.ProtoReflect()), func(name string) bool { return slices.Contains(c.but, name) })
		if len(names) > 0 {
			t.Errorf("%s lacks %v", name, names)
		}
	}
}

// metaFields are those of a Meta, which only a call sets.
var metaFields = missing((&quotav1.Meta{}).ProtoReflect())

// TestLease_EachItemHasItsOwnEnd: items of one lease may end at different times, and none after its lease.
func TestLease_EachItemHasItsOwnEnd(t *testing.T) {
	item := func(quota string, until int64) *logpb.GrantedItem {
		return &logpb.GrantedItem{Quota: quota, Amount: 1, UntilNs: until}
	}
	lease := leaseResponse(&logpb.Granted{
		DeadlineNs: 100, Items: []*logpb.GrantedItem{item("a", 30), item("b", 100), item("c", 50), item("d", 5)},
	}, fsm.Clock{Now: 10}, new(durations)).GetLease()
	for i, want := range []int64{20, 90, 40, 0} {
		if got := lease.Items[i]; got.ExpiresIn.AsDuration().Nanoseconds() != want {
			t.Errorf("%s ends in %v, want %d ns", got.Quota, got.ExpiresIn.AsDuration(), want)
		}
	}
}
