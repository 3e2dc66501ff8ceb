package gateway

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestAPICommands_AreThoseOfTheSchema: calls that can have a request id are exactly those that are repeated after a lost answer.
func TestAPICommands_AreThoseOfTheSchema(t *testing.T) {
	calls := 0
	for _, file := range []protoreflect.FileDescriptor{quotav1.File_quota_v1_quota_proto, quotav1.File_quota_v1_task_proto} {
		service := file.Services().Get(0)
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			procedure := strings.TrimPrefix(string(service.FullName()), "quota.v1.") + "/" + string(method.Name())
			without, known := apiCommands[procedure]
			id := method.Input().Fields().ByName("request_id")
			if known != (id != nil) {
				t.Errorf("%s: its request has the field request_id: %t; it is in apiCommands: %t", procedure, id != nil, known)
			}
			if !known {
				continue
			}
			calls++
			if id != nil && id.Number() != requestIDField {
				t.Errorf("%s: request_id is field %d, not %d", procedure, id.Number(), requestIDField)
			}
			if without.name == "" {
				continue
			}
			if field := method.Input().Fields().ByName(protoreflect.Name(without.name)); field == nil || field.Number() != without.number {
				t.Errorf("%s: no field %s has number %d", procedure, without.name, without.number)
			}
		}
	}
	if calls != len(apiCommands) {
		t.Errorf("apiCommands has %d calls, %d of them in the schema", len(apiCommands), calls)
	}
}
