package cluster

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Retired says that the node was removed from the cluster for good.
func (n *Node) Retired() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.retired
}

// AwaitReady waits until the node is ready to serve.
func (n *Node) AwaitReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return n.awaitReady(ctx)
}

// Transfer transfers leadership from this node to another.
func (n *Node) Transfer(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := n.admin.TransferLeadership(ctx, &quotav1.TransferLeadershipRequest{Id: to})
	return err
}

// Replace replaces a node that lost its disk by a node of the next name. It removes the old one, starts a node with an empty disk on the
// same host, and waits until that node is promoted. The old node must not run and its data must be gone.
func (c *Cluster) Replace(ctx context.Context, old *Node) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := c.asLeader(ctx, func(leader *Node) error {
		_, err := leader.admin.RemoveMember(ctx, &quotav1.RemoveMemberRequest{Id: old.ID})
		if err != nil && c.lacks(ctx, leader, old.ID) {
			return nil // an earlier attempt, whose outcome was unknown, removed it
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("remove %s: %w", old.ID, err)
	}
	old.mu.Lock()
	old.retired = true
	old.mu.Unlock()
	node := c.add(nextName(old.ID), old.host, "--join=true")
	if err := node.Start(); err != nil {
		return nil, err
	}
	err = c.asLeader(ctx, func(leader *Node) error {
		_, err := leader.admin.AddMember(ctx, &quotav1.AddMemberRequest{Id: node.ID, RaftAddress: node.Raft, ApiAddress: node.API})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("add %s: %w", node.ID, err)
	}
	err = c.asLeader(ctx, func(leader *Node) error {
		_, err := leader.admin.PromoteMember(ctx, &quotav1.PromoteMemberRequest{Id: node.ID})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("promote %s: %w", node.ID, err)
	}
	return node, node.awaitReady(ctx)
}

// lacks says whether a leader reports that a node is no member.
func (c *Cluster) lacks(ctx context.Context, leader *Node, id string) bool {
	status, err := leader.Status(ctx)
	return err == nil && !slices.ContainsFunc(status.Members, func(m *quotav1.Member) bool { return m.Id == id })
}

// restored matches a leader's log line about a restored backup, with the index of the restore.
var restored = regexp.MustCompile(`restored user snapshot: index=(\d+)`)

// Restored returns the indices at which nodes restored backups, in ascending order, from the nodes' logs.
func (c *Cluster) Restored() ([]uint64, error) {
	var indices []uint64
	for _, node := range c.Nodes() {
		text, err := os.ReadFile(c.config.History.Log(node.ID))
		if err != nil {
			return nil, err
		}
		for _, match := range restored.FindAllSubmatch(text, -1) {
			index, err := strconv.ParseUint(string(match[1]), 10, 64)
			if err != nil {
				return nil, err
			}
			indices = append(indices, index)
		}
	}
	slices.Sort(indices)
	return indices, nil
}

// asLeader repeats a call at the current leader until it succeeds.
func (c *Cluster) asLeader(ctx context.Context, do func(*Node) error) error {
	for {
		leader, err := c.Leader(ctx)
		if err == nil {
			err = do(leader)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// nextName is the name of a node's replacement: n2, then n2.1, n2.2, ...
func nextName(id string) string {
	base, life, _ := strings.Cut(id, ".")
	number, _ := strconv.Atoi(life) // no number: its first life
	return fmt.Sprintf("%s.%d", base, number+1)
}
