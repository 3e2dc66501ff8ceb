package raftnode_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
)

// TestAddLearner_RefusesWhatCannotJoin: a refusal leaves nothing behind: neither the changed address of a member nor a learner that never
// joins.
func TestAddLearner_RefusesWhatCannotJoin(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	other := newCluster(t, 1)
	other.propose(rate("q", 10))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually(t, "all addresses are known", func() bool {
		known := 0
		_ = c.nodes[c.leader()].Read(ctx, raftnode.Linearizable, func(s *fsm.State, _ fsm.Clock, _ raftnode.Position) {
			known = len(s.Members())
		})
		return known == 3
	})
	nobody, foreign := freeAddress(t), other.configs[0]
	c.undisturbed(func(leader int) (err error) {
		lead, follower := c.nodes[leader], c.configs[(leader+1)%3]
		before := lead.Status().LastIndex
		for name, add := range map[string]struct{ id, raft, api, want string }{
			"another API address of a member": {follower.ID, follower.RaftAddress, "127.0.0.1:9", "already in use"},
			"a member's Raft address":         {"n9", follower.RaftAddress, "127.0.0.1:9", "already in use"},
			"a member's API address":          {"n9", nobody, follower.APIAddress, "already in use"},
			"nobody is there":                 {"n9", nobody, "127.0.0.1:9", "no answer at " + nobody},
			"a node of another cluster":       {"n0", foreign.RaftAddress, "127.0.0.1:9", "already in use"},
			"another cluster under a new id":  {"n9", foreign.RaftAddress, "127.0.0.1:9", "cluster ID mismatch"},
		} {
			added := lead.AddLearner(ctx, add.id, add.raft, add.api)
			if unfit, ok := errors.AsType[*raftnode.MemberError](added); !ok || !strings.Contains(unfit.Message, add.want) {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, cmp.Or(added, errors.New("it was added"))))
			}
		}
		if after := lead.Status(); after.LastIndex != before || len(after.Members) != 3 {
			left := fmt.Errorf("something is left behind: index %d, then %d; %d members", before, after.LastIndex, len(after.Members))
			err = errors.Join(err, left)
		}
		return err
	})
	if err := c.atLeader(func(leader int) error {
		follower := c.configs[(leader+1)%3]
		return c.nodes[leader].AddLearner(ctx, follower.ID, follower.RaftAddress, follower.APIAddress)
	}); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

// TestTransferLeadership_RefusesDeadVoter: a transfer to an unresponsive voter is refused at once, and the leader continues.
func TestTransferLeadership_RefusesDeadVoter(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	c.propose(rate("q", 10))
	dead := (c.leader() + 1) % 3
	c.nodes[dead].Kill()
	c.nodes[dead] = nil
	c.undisturbed(func(leader int) error { // the check counts only if leadership does not move
		lead := c.nodes[leader]
		_, err := lead.TransferLeadership(t.Context(), c.configs[dead].ID)
		silent := "no answer at " + c.configs[dead].RaftAddress
		if unfit, ok := errors.AsType[*raftnode.MemberError](err); !ok || !strings.Contains(unfit.Message, silent) {
			return fmt.Errorf("to one that is dead: %w", cmp.Or(err, errors.New("done")))
		}
		if _, err := lead.TransferLeadership(t.Context(), c.configs[leader].ID); err == nil {
			return errors.New("to itself: done")
		}
		return nil
	})
	c.propose(rate("another", 10))
	if err := c.atLeader(func(leader int) error {
		well := c.configs[3-dead-leader].ID
		to, err := c.nodes[leader].TransferLeadership(t.Context(), well)
		if err == nil && to != well {
			err = fmt.Errorf("it went to %q", to)
		}
		return err
	}); err != nil {
		t.Errorf("to one that is well: %v", err)
	}
}

// TestMembers_ChangedAddressIsReported: the member itself and the others report it.
func TestMembers_ChangedAddressIsReported(t *testing.T) {
	t.Parallel() // mostly waiting
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
	eventually(t, "the others tell it", func() bool { return strings.Contains(log.String(), "a member advertises another Raft address") })
	c.stop(moved)
	c.configs[moved].RaftAddress = was
	c.start(moved)
	eventually(t, "with its address back it follows", func() bool { return c.nodes[moved].Status().Leader != "" })
}
