package rpc

import (
	"maps"
	"testing"

	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestAudited_IsWhatOperatorsMayDo: each call that needs a verb of operators has a line in the log, but for those that only look, and no
// other call has one.
func TestAudited_IsWhatOperatorsMayDo(t *testing.T) {
	want := maps.Clone(ofOperators)
	for _, looks := range []string{quotav1connect.AdminServiceGetStateHashProcedure, quotav1connect.AdminServiceDumpLogProcedure} {
		if !want[looks] {
			t.Errorf("%s is no operator's call any more", looks)
		}
		delete(want, looks)
	}
	for procedure := range want {
		if !audited[procedure] {
			t.Errorf("%s leaves no line in the log", procedure)
		}
	}
	for procedure := range audited {
		if !want[procedure] {
			t.Errorf("%s leaves a line in the log and is no operator's call", procedure)
		}
	}
}
