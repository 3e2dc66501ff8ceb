package raftnode_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
)

// TestAddLearnerRefusesWhatCannotJoin, and leaves nothing behind: neither an address of a member that is another one now, nor
// a learner that never comes.
func TestAddLearnerRefusesWhatCannotJoin(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	other := newCluster(t, 1)
	other.propose(rate("q", 10))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	leader := c.leader()
	lead, follower := c.nodes[leader], c.configs[(leader+1)%3]
	eventually(t, "all addresses are known", func() bool {
		known := 0
		_ = lead.Read(ctx, raftnode.Linearizable, func(s *fsm.State, _ fsm.Clock, _ raftnode.Position) { known = len(s.Members()) })
		return known == 3
	})
	before := lead.Status().LastIndex
	nobody, foreign := freeAddress(t), other.configs[0]
	for name, add := range map[string]struct{ id, raft, api, want string }{
		"another API address of a member": {follower.ID, follower.RaftAddress, "127.0.0.1:9", "taken"},
		"a member's Raft address":         {"n9", follower.RaftAddress, "127.0.0.1:9", "taken"},
		"a member's API address":          {"n9", nobody, follower.APIAddress, "taken"},
		"nobody is there":                 {"n9", nobody, "127.0.0.1:9", "does not answer at " + nobody},
		"a node of another cluster":       {"n0", foreign.RaftAddress, "127.0.0.1:9", "taken"},
		"another cluster under a new id":  {"n9", foreign.RaftAddress, "127.0.0.1:9", "it is of cluster"},
	} {
		err := lead.AddLearner(ctx, add.id, add.raft, add.api)
		if unfit, ok := errors.AsType[*raftnode.MemberError](err); !ok || !strings.Contains(unfit.Message, add.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := lead.Status(); after.LastIndex != before || len(after.Members) != 3 {
		t.Errorf("something is left behind: index %d, then %d; %d members", before, after.LastIndex, len(after.Members))
	}
	if err := lead.AddLearner(ctx, follower.ID, follower.RaftAddress, follower.APIAddress); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

// TestLeadershipGoesToNobodyWhoCannotHaveIt: to hand it to a voter that is named and does not answer is refused at once, and the
// leader goes on.
func TestLeadershipGoesToNobodyWhoCannotHaveIt(t *testing.T) {
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	leader := c.leader()
	dead, well := (leader+1)%3, (leader+2)%3
	c.nodes[dead].Kill()
	c.nodes[dead] = nil
	lead := c.nodes[leader]
	_, err := lead.TransferLeadership(t.Context(), c.configs[dead].ID)
	if unfit, ok := errors.AsType[*raftnode.MemberError](err); !ok || !strings.Contains(unfit.Message, "does not answer at "+c.configs[dead].RaftAddress) {
		t.Errorf("to one that is dead: %v", err)
	}
	if _, err := lead.TransferLeadership(t.Context(), c.configs[leader].ID); err == nil {
		t.Error("to itself")
	}
	if c.leader() != leader {
		t.Error("leadership moved")
	}
	c.propose(rate("another", 10))
	if to, err := lead.TransferLeadership(t.Context(), c.configs[well].ID); err != nil || to != c.configs[well].ID {
		t.Errorf("to one that is well: %q, %v", to, err)
	}
}

// TestAMemberWhoseAddressChanged: it is told so, and the others tell it too.
func TestAMemberWhoseAddressChanged(t *testing.T) {
	var log lines
	c := newCluster(t, 3, func(conf *raftnode.Config) {
		conf.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: &log})
	})
	leader := c.leader()
	moved := (leader + 1) % 3
	c.stop(moved)
	was := c.configs[moved].RaftAddress
	c.configs[moved].RaftAddress = freeAddress(t)
	c.start(moved)
	eventually(t, "it knows", func() bool {
		for _, check := range c.nodes[moved].Checks() {
			if check.Name == "leader" && !check.OK {
				return strings.Contains(check.Message, "the members know this node at "+was) && strings.Contains(check.Message, "member replace")
			}
		}
		return false
	})
	eventually(t, "the others tell it", func() bool { return strings.Contains(log.String(), "a member calls from another address") })
	c.stop(moved)
	c.configs[moved].RaftAddress = was
	c.start(moved)
	eventually(t, "with its address back it follows", func() bool { return c.nodes[moved].Status().Leader != "" })
}
