package cli

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestStatus_NamesAnsweringNode: status names the node whose view it shows, and what that view lacks.
func TestStatus_NamesAnsweringNode(t *testing.T) {
	members := []*quotav1.Member{
		{Id: "n1", Voter: true, LastContact: durationpb.New(0), MatchIndex: 9}, {Id: "n2", Voter: true},
	}
	for name, c := range map[string]struct {
		status     *quotav1.GetStatusResponse
		says, omit string
	}{
		"a leader": {
			status: &quotav1.GetStatusResponse{Node: "n1", Role: "leader", Leader: "n1", LeaderAddress: "a:1", Members: members},
			says:   "no answer", omit: "sees it",
		},
		"a follower": {
			status: &quotav1.GetStatusResponse{Node: "n2", Role: "follower", Leader: "n1", LeaderAddress: "a:1", Members: members},
			says:   "as n2 sees it; the leader n1 sees more: --server a:1", omit: "no answer",
		},
		"no leader, and a log that is not replayed": {
			status: &quotav1.GetStatusResponse{Node: "n2", Role: "follower", AppliedIndex: 3, LastIndex: 9},
			says:   "6 entries wait for a leader", omit: "sees more",
		},
	} {
		var out strings.Builder
		if err := (&App{Out: &out}).printStatus(c.status); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), c.says) || strings.Contains(out.String(), c.omit) {
			t.Errorf("%s: not %q, or %q, in\n%s", name, c.says, c.omit, out.String())
		}
	}
}
