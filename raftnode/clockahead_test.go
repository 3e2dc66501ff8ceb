package raftnode_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
)

// setClocks sets the wall clocks of all nodes off by an offset.
func (c *cluster) setClocks(offset time.Duration) {
	c.t.Helper()
	for _, n := range c.nodes {
		if err := n.SetFault(&offset, nil, nil, 0); err != nil {
			c.t.Fatal(err)
		}
	}
}

// daily returns a command for a quota with a window of a day.
func daily(name string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{{
		Name: name, Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 1000, Every: logpb.Every_EVERY_DAY}},
	}}}}}
}

// TestViews_RecoverOnNodes: 3 s of wrong clocks on all nodes are corrected by 3 s of right ones. Calendar windows end on time, on the node
// that led meanwhile and after a restart of all nodes.
func TestViews_RecoverOnNodes(t *testing.T) {
	c := newCluster(t, 3)
	const wrong = 3 * time.Second
	c.setClocks(wrong)
	c.propose(daily("d"))
	ahead := func() (early, window time.Duration) {
		t.Helper()
		eventually(t, "an answer", func() bool {
			c.propose(reserve("d", 1)) // carries a sample
			return c.nodes[c.leader()].Read(t.Context(), raftnode.Linearizable, func(s *fsm.State, at fsm.Clock, _ raftnode.Position) {
				now := time.Now()
				early = time.Duration(s.Clock().WallEarly - now.UnixNano())
				view, _ := s.Quota("d", at)
				left := now.Truncate(24 * time.Hour).Add(24*time.Hour - time.Second).Sub(now)
				window = left - time.Duration(view.WindowLeft)
			}) == nil
		})
		return early, window
	}
	eventually(t, "wrong clocks carry the views ahead", func() bool {
		early, _ := ahead()
		return early > wrong/2
	})
	c.setClocks(0)
	back := func(when string) {
		t.Helper()
		eventually(t, "views are back "+when, func() bool {
			early, window := ahead()
			return early <= 0 && early > -wrong/3 && window > -wrong/3 && window < wrong/3
		})
		for range 20 {
			if early, _ := ahead(); early > 0 {
				t.Fatalf("%s the earlier view is %v ahead again", when, early)
			}
		}
	}
	back("with right clocks")
	for i := range c.nodes {
		c.stop(i)
	}
	for i := range c.nodes {
		c.start(i)
	}
	back("after a restart")
}

// failing returns the message of a failing check; "" if it passes.
func failing(n *raftnode.Node, name string) string {
	for _, c := range n.Status().Checks {
		if c.Name == name && !c.OK {
			return c.Message
		}
	}
	return ""
}

// TestClocks_EveryNodeMeasuresItself: a node whose clock is an hour off reports that, and the others do not.
func TestClocks_EveryNodeMeasuresItself(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3, (*raftnode.Config).SampleOften)
	leader := c.leader()
	for i, offset := range []time.Duration{time.Hour, -time.Hour, time.Hour} {
		wrong := (leader + 2 + i) % 3 // the leader is the second
		if err := c.nodes[wrong].SetFault(&offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the node with the wrong clock says so", func() bool { return failing(c.nodes[wrong], "clock") != "" })
		eventually(t, "the others do not", func() bool {
			for j, n := range c.nodes {
				if j != wrong && failing(n, "clock") != "" {
					return false
				}
			}
			return failing(c.nodes[wrong], "clock") != ""
		})
		offset = 0
		if err := c.nodes[wrong].SetFault(&offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its clock is right again", func() bool { return failing(c.nodes[wrong], "clock") == "" })
	}
}

// TestClocks_OfTwoNodes: each of two nodes reports that the clocks differ.
func TestClocks_OfTwoNodes(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 2, (*raftnode.Config).SampleOften)
	c.leader()
	for wrong := range c.nodes {
		offset := time.Hour
		if err := c.nodes[wrong].SetFault(&offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		for _, n := range c.nodes {
			eventually(t, "both say so", func() bool { return failing(n, "clock") != "" })
		}
		offset = 0
		if err := c.nodes[wrong].SetFault(&offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		for _, n := range c.nodes {
			eventually(t, "both are right", func() bool { return failing(n, "clock") == "" })
		}
	}
}

// TestClocks_WithANodeDown: if a bare majority answers, no clock is outside of the views. Whichever of two nodes has a clock that is an
// hour off, both report that the clocks differ, and the clock is not reset.
func TestClocks_WithANodeDown(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3, (*raftnode.Config).SampleOften)
	down := (c.leader() + 1) % 3
	c.stop(down)
	var left []*raftnode.Node
	for i, n := range c.nodes {
		if i != down {
			left = append(left, n)
			eventually(t, "the killed node's clock is forgotten", func() bool { return n.FreshWalls() == 2 && failing(n, "clock") == "" })
		}
	}
	for _, wrong := range left {
		offset := time.Hour
		if err := wrong.SetFault(&offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		for _, n := range left {
			eventually(t, "both say so", func() bool { return failing(n, "clock") != "" })
		}
		var differ *raftnode.ClocksDifferError
		eventually(t, "no majority agrees", func() bool { return errors.As(c.nodes[c.leader()].CheckClocks(), &differ) })
		if differ.Agree != 1 || differ.Voters != 3 {
			t.Error(differ)
		}
		offset = 0
		if err := wrong.SetFault(&offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		for _, n := range left {
			eventually(t, "both are right", func() bool { return failing(n, "clock") == "" && n.CheckClocks() == nil })
		}
	}
}

// TestViews_EveryNodeReports: while the state's view of the time of day is ahead of all clocks, every node fails a check.
func TestViews_EveryNodeReports(t *testing.T) {
	c := newCluster(t, 3, (*raftnode.Config).SampleOften)
	c.setClocks(8 * time.Second)
	c.propose(daily("d"))
	eventually(t, "a sample of the wrong clocks is in the state", func() bool {
		c.propose(reserve("d", 1))
		ahead := false
		_ = c.nodes[c.leader()].Read(t.Context(), raftnode.Stale, func(s *fsm.State, _ fsm.Clock, _ raftnode.Position) {
			ahead = s.Clock().WallEarly > time.Now().Add(6*time.Second).UnixNano()
		})
		return ahead
	})
	for _, n := range c.nodes {
		if message := failing(n, "views"); message != "" {
			t.Errorf("while all clocks agree: %s", message)
		}
	}
	c.setClocks(0)
	for i, n := range c.nodes {
		eventually(t, "a node tells that the view is ahead", func() bool { return failing(n, "views") != "" })
		t.Logf("node %d: %s", i, failing(n, "views"))
	}
	for _, n := range c.nodes {
		eventually(t, "real time has caught up", func() bool { return failing(n, "views") == "" })
	}
}

// TestResetClock_OnNodes: the clocks of all nodes were a year ahead once. A reset corrects the views on every node, and they stay correct
// under a new leader and after a restart of all nodes.
func TestResetClock_OnNodes(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3, (*raftnode.Config).SampleOften)
	c.propose(daily("d"))
	c.propose(reserve("d", 1))
	const wrong = 365 * 24 * time.Hour
	c.setClocks(wrong)
	ahead := func(n *raftnode.Node) (by time.Duration) {
		_ = n.Read(t.Context(), raftnode.Stale, func(s *fsm.State, _ fsm.Clock, _ raftnode.Position) {
			by = time.Duration(s.Clock().WallEarly - s.Clock().Shift - time.Now().UnixNano())
		})
		return by
	}
	eventually(t, "wrong clocks carry the views ahead", func() bool {
		c.propose(reserve("d", 1))
		return ahead(c.nodes[c.leader()]) > wrong/2
	})
	c.setClocks(0)
	for _, n := range c.nodes {
		eventually(t, "a node tells what to do", func() bool { return strings.Contains(failing(n, "views"), "quotad clock reset") })
	}
	reset := &logpb.Command{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}}
	eventually(t, "the clock is reset", func() bool {
		return c.nodes[c.leader()].CheckClocks() == nil && c.propose(reset).GetClockReset() != nil
	})
	right := func(when string) {
		t.Helper()
		for _, n := range c.nodes {
			eventually(t, "views are right "+when, func() bool {
				c.propose(reserve("d", 1)) // carries a sample
				by := ahead(n)
				return by < time.Second && by > -time.Minute && failing(n, "views") == ""
			})
		}
		eventually(t, "the window ends when it should "+when, func() (at bool) {
			_ = c.nodes[c.leader()].Read(t.Context(), raftnode.Linearizable, func(s *fsm.State, clock fsm.Clock, _ raftnode.Position) {
				now := time.Now()
				view, _ := s.Quota("d", clock)
				end := now.Add(time.Duration(view.WindowLeft)).Add(time.Second)
				off := end.Sub(end.Round(24 * time.Hour))
				at = off > -time.Minute && off < time.Minute
			})
			return at
		})
	}
	right("after the reset")
	for i := range c.nodes {
		c.stop(i)
	}
	for i := range c.nodes {
		c.start(i)
	}
	right("after a restart")
}

// TestResetClock_NeedsAMajority: the clock is not reset unless the clocks of a majority agree.
func TestResetClock_NeedsAMajority(t *testing.T) {
	c := newCluster(t, 3, (*raftnode.Config).SampleOften)
	for i, offset := range []time.Duration{-time.Hour, 0, time.Hour} {
		if err := c.nodes[i].SetFault(&offset, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	var differ *raftnode.ClocksDifferError
	eventually(t, "no two clocks agree", func() bool { return errors.As(c.nodes[c.leader()].CheckClocks(), &differ) })
	if differ.Agree >= 2 || differ.Voters != 3 {
		t.Fatal(differ)
	}
	offset := time.Duration(0)
	if err := c.nodes[0].SetFault(&offset, nil, nil, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two clocks agree", func() bool { return c.nodes[c.leader()].CheckClocks() == nil })
}
