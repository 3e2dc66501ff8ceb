package rpc_test

import (
	"testing"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestGetStatus_HasBuildsAndLevels: the status has the feature level, the levels that the node supports, and build and levels of each
// member.
func TestGetStatus_HasBuildsAndLevels(t *testing.T) {
	n := newNodes(t, 1)[0]
	n.kill()
	n.config.Build.Version, n.api.Version = "its-build", "its-version"
	n.again(t)
	admin := quotav1connect.NewAdminServiceClient(h2c(t), n.url)
	var status *quotav1.GetStatusResponse
	eventually(t, "the state is at the newest level, and the member's build is known", func() bool {
		var err error
		status, err = admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
		return err == nil && status.Level == fsm.EntryVersion && len(status.Members) == 1 && status.Members[0].Version != ""
	})
	const oldest, newest = uint32(fsm.OldestEntryVersion), uint32(fsm.EntryVersion)
	if status.OldestLevel != oldest || status.NewestLevel != newest || status.Version != "its-version" || status.ApiVersion != rpc.APIVersion {
		t.Errorf("the node: levels %d to %d, version %s, API %d", status.OldestLevel, status.NewestLevel, status.Version, status.ApiVersion)
	}
	if m := status.Members[0]; m.OldestLevel != oldest || m.NewestLevel != newest || m.Version != "its-build" {
		t.Errorf("the member: %v", m)
	}
}
