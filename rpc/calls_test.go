package rpc_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
)

// procedures returns the paths of all calls by their names without the service, which no two share.
func procedures(t *testing.T) map[string]string {
	t.Helper()
	paths := map[string]string{}
	for _, file := range []protoreflect.FileDescriptor{
		quotav1.File_quota_v1_quota_proto, quotav1.File_quota_v1_admin_proto, quotav1.File_quota_v1_task_proto,
	} {
		service := file.Services().Get(0)
		for i := range service.Methods().Len() {
			name := string(service.Methods().Get(i).Name())
			if paths[name] != "" {
				t.Errorf("two services have a call %s", name)
			}
			paths[name] = "/" + string(service.FullName()) + "/" + name
		}
	}
	return paths
}

// TestCallLists_FollowVerbs: a call's verb decides what the call needs room for, and which port serves it. A call in none of the lists
// would count as a holder's that finds no room on a full node, or as an operator's that is not admitted.
func TestCallLists_FollowVerbs(t *testing.T) {
	// Sessions neither take quota nor concern a lease. An operator's shell needs them too.
	sessions := map[string]bool{"OpenSession": true, "CloseSession": true}
	// These find room like calls about held amounts, although their verb is not a holder's, or they concern no lease.
	holding := map[string]bool{"CloseSession": true, "GetStatus": true, "Report": true}
	paths := procedures(t)
	for name, verb := range verbOf {
		path := paths[name]
		operators := verb == rpc.VerbAdminQuota || verb == rpc.VerbAdminCluster || verb == rpc.VerbDebug
		if rpc.OfOperators()[path] != operators {
			t.Errorf("%s: ofOperators is %t; its verb is %s", name, !operators, verb)
		}
		holders := (verb == rpc.VerbUse || verb == rpc.VerbReport || verb == "") && !sessions[name]
		if rpc.NotOfOperators()[path] != holders {
			t.Errorf("%s: notOfOperators is %t; its verb is %q", name, !holders, verb)
		}
		taking := rpc.TakesMore()[path]
		if taking && !holders {
			t.Errorf("%s takes more, and is no holder's call", name)
		}
		if want := holding[name] || holders && !taking; rpc.OfHolding()[path] != want {
			t.Errorf("%s: ofHolding is %t, takesMore %t; a holder's call is in one of them", name, !want, taking)
		}
	}
	known := map[string]bool{"/take": true, "/report": true}
	for _, path := range paths {
		known[path] = true
	}
	for list, calls := range map[string]map[string]bool{
		"ofOperators": rpc.OfOperators(), "ofHolding": rpc.OfHolding(), "takesMore": rpc.TakesMore(), "notOfOperators": rpc.NotOfOperators(),
	} {
		for path := range calls {
			if !known[path] {
				t.Errorf("%s has %s, which is no call", list, path)
			}
		}
	}
}
