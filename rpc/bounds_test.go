package rpc

import (
	"fmt"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/quotad/quotad/rpc/quotav1"
)

// given are the numbers that the cluster assigns: a caller that invents one finds nothing under it, however large it is.
var given = map[protoreflect.Name]bool{
	"session": true, "lease": true, "fence": true, "ticket": true, "from_index": true, "at_least_index": true, "to_index": true,
}

// filled are valid requests, by type, with all messages that have numbers in them.
var filled = map[protoreflect.Name]string{
	"CloseSessionRequest": `{"session":1}`,
	"ReserveRequest":      `{"requestId":{"session":1,"seq":2,"ackedBelow":1},"holder":"a","items":[{"quota":"q","amount":1}]}`,
	"ConsumeRequest":      `{"requestId":{"session":1,"seq":2},"lease":1,"fence":1,"op":1,"items":[{"quota":"q","amount":1}]}`,
	"SettleRequest": `{"requestId":{"session":1,"seq":2},"lease":1,"fence":1,"op":1,"unspent":[{"quota":"q","amount":1}],` +
		`"actual":[{"quota":"q","amount":1}]}`,
	"ReleaseRequest":  `{"requestId":{"session":1,"seq":2},"lease":1,"fence":1,"items":[{"quota":"q","amount":1}]}`,
	"RenewRequest":    `{"requestId":{"session":1,"seq":2},"lease":1,"fence":1}`,
	"WithdrawRequest": `{"requestId":{"session":1,"seq":2},"ticket":1}`,
	"ReportRequest": `{"requestId":{"session":1,"seq":2},"lease":1,"fence":1,"op":1,` +
		`"signals":[{"quota":"q","cause":"CAUSE_OK","limit":1,"remaining":1}]}`,
	"WatchRequest":      `{}`,
	"CheckFenceRequest": `{"lease":1,"fence":1}`,
	"ApplyQuotasRequest": `{"requestId":{"session":1,"seq":2},"quotas":[{"name":"w","window":{"limit":1,"every":"hour"},` +
		`"maxHold":1,"defaultEstimate":1},` +
		`{"name":"r","rate":{"limit":1,"per":"60s","burst":1}},{"name":"s","slots":{"limit":1}}]}`,
	"BeginTaskRequest":      `{"requestId":{"session":1,"seq":2},"task":"t","holder":"a"}`,
	"EndTaskRequest":        `{"requestId":{"session":1,"seq":2},"task":"t","fence":1,"outcome":"TASK_OUTCOME_DONE"}`,
	"RenewTaskRequest":      `{"requestId":{"session":1,"seq":2},"task":"t","fence":1}`,
	"RetryTaskRequest":      `{"requestId":{"session":1,"seq":2},"task":"t"}`,
	"ForgetTaskRequest":     `{"requestId":{"session":1,"seq":2},"task":"t"}`,
	"DeleteQuotaRequest":    `{"requestId":{"session":1,"seq":2},"name":"q"}`,
	"OverrideQuotaRequest":  `{"requestId":{"session":1,"seq":2},"name":"q","limit":1,"duration":"60s"}`,
	"ResetClockRequest":     `{"requestId":{"session":1,"seq":2}}`,
	"ReopenQuotaRequest":    `{"requestId":{"session":1,"seq":2},"name":"q"}`,
	"DeleteWorkflowRequest": `{"requestId":{"session":1,"seq":2},"name":"w"}`,
	"RevokeLeaseRequest":    `{"requestId":{"session":1,"seq":2},"lease":1}`,
	"SetLimitsRequest":      `{"requestId":{"session":1,"seq":2},"limits":{"maxSessions":1}}`,
	"SetFaultRequest":       `{"clockRatePpm":1}`,
}

// TestValidate_BoundsEveryNumber: each number of the schema that a caller chooses or counts has a largest value. A number beyond it is
// refused as a malformed field.
func TestValidate_BoundsEveryNumber(t *testing.T) {
	for name := range rules {
		found, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("quota.v1").Append(name))
		if err != nil {
			t.Fatal(err)
		}
		example, ok := filled[name]
		if !ok {
			if field := firstNumber(found.Descriptor(), map[protoreflect.FullName]bool{}); field != "" && name != "BatchRequest" {
				t.Errorf("%s has no example here, and has %s", name, field)
			}
			continue
		}
		request := found.New()
		if err := protojson.Unmarshal([]byte(example), request.Interface()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := validate(request.Interface()); err != nil {
			t.Fatalf("%s: the example is refused: %v", name, err)
		}
		eachNumber(request, "", func(path string, in protoreflect.Message, field protoreflect.FieldDescriptor) {
			before := in.Get(field)
			had := in.Has(field)
			for _, value := range outOfBounds(field) {
				in.Set(field, value)
				if got := validate(request.Interface()); got == nil || infoOf(got).GetReason() != quotav1.Reason_REASON_INVALID {
					t.Errorf("%s%s = %v: %v", name, path, value, got)
				}
			}
			if in.Set(field, before); !had {
				in.Clear(field)
			}
		})
	}
}

// outOfBounds returns values that no number of a caller may have.
func outOfBounds(field protoreflect.FieldDescriptor) []protoreflect.Value {
	if field.Kind() == protoreflect.Uint64Kind {
		return []protoreflect.Value{
			protoreflect.ValueOfUint64(math.MaxUint64), protoreflect.ValueOfUint64(1 << 63), protoreflect.ValueOfUint64(maxAmount + 1),
		}
	}
	return []protoreflect.Value{
		protoreflect.ValueOfInt64(math.MaxInt64), protoreflect.ValueOfInt64(math.MinInt64), protoreflect.ValueOfInt64(maxAmount + 1),
	}
}

// counts tells whether a field is a number of 64 bits that a caller chooses.
func counts(field protoreflect.FieldDescriptor) bool {
	return (field.Kind() == protoreflect.Uint64Kind || field.Kind() == protoreflect.Int64Kind) && !given[field.Name()] &&
		field.ContainingMessage().ParentFile().Package() == "quota.v1"
}

// eachNumber calls fn for the numbers of a message and of the messages that are set in it.
func eachNumber(m protoreflect.Message, path string, fn func(string, protoreflect.Message, protoreflect.FieldDescriptor)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		at := path + "." + string(field.Name())
		switch {
		case counts(field) && !field.IsList():
			fn(at, m, field)
		case field.Kind() != protoreflect.MessageKind || field.IsMap() || !m.Has(field):
		case field.IsList():
			for j := range m.Get(field).List().Len() {
				eachNumber(m.Get(field).List().Get(j).Message(), fmt.Sprintf("%s[%d]", at, j), fn)
			}
		default:
			eachNumber(m.Get(field).Message(), at, fn)
		}
	}
}

// firstNumber names a number that messages of a type may have; empty: none.
func firstNumber(of protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) string {
	if seen[of.FullName()] {
		return ""
	}
	seen[of.FullName()] = true
	for i := range of.Fields().Len() {
		field := of.Fields().Get(i)
		if counts(field) {
			return string(field.FullName())
		}
		if field.Kind() == protoreflect.MessageKind {
			if inner := firstNumber(field.Message(), seen); inner != "" {
				return inner
			}
		}
	}
	return ""
}
