package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/raftnode"
)

// mostNodes is the largest size of a cluster.
const mostNodes = 6

// hostOf is the host of a node: n2:1 runs there first, then n2:1.1, with an empty disk.
func hostOf(id string) string {
	host, _, _ := strings.Cut(id, ".")
	return host
}

// operator changes the membership during faults. It repeats a change until the change is acknowledged: a canceled attempt may take effect
// or not.
type operator struct {
	*client
	// voters and learners are the members after all acknowledged changes.
	voters, learners []string
	// lives counts the replaced disks of each host; hosts counts the hosts.
	lives map[string]int
	hosts int
	// patience ends when the current change should have been acknowledged long ago.
	patience <-chan struct{}
}

func (w *world) newOperator(seed uint64, patience <-chan struct{}) *operator {
	return &operator{
		client: w.newClient(seed, "operator"), voters: w.all(), lives: map[string]int{}, hosts: w.plan.nodes, patience: patience,
	}
}

// work makes one change after the other, until its context ends or a change is never acknowledged.
func (o *operator) work(ctx context.Context) {
	for {
		time.Sleep(max(time.Until(o.w.restsUntil()), time.Duration(100+o.rand.IntN(2500))*time.Millisecond))
		if ctx.Err() != nil || !o.act() {
			return
		}
	}
}

// act makes one change. It says whether the change was acknowledged.
func (o *operator) act() bool {
	switch n := o.rand.IntN(10); {
	case n < 2:
		o.handOver()
	case n < 5:
		return o.replace(o.voters[o.rand.IntN(len(o.voters))])
	case n < 7 && len(o.voters)+len(o.learners) < mostNodes:
		return o.grow(o.rand.IntN(3) > 0)
	case n < 8 && len(o.learners) > 0:
		return o.promote(o.learners[0])
	case len(o.voters) > 3:
		return o.remove(o.voters[o.rand.IntN(len(o.voters))])
	case len(o.learners) > 0:
		return o.remove(o.learners[0])
	}
	return true
}

// persist requests a change from the current leader until it is acknowledged.
func (o *operator) persist(what, id string, change func(context.Context, *raftnode.Node) error) bool {
	o.w.say("%s %s begins", what, id)
	for {
		if node := o.w.node(o.w.leader()); node != nil && o.ask(node, change) {
			o.w.say("%s %s is done", what, id)
			o.w.changed()
			return true
		}
		select {
		case <-time.After(time.Duration(20+o.rand.IntN(100)) * time.Millisecond):
		case <-o.patience:
			o.w.stuck("%s %s was not acknowledged within %v of the last fault", what, id, patience)
			return false
		}
	}
}

// ask requests a change once, and waits a while for the answer. Without an answer the change may still take effect.
func (o *operator) ask(node *raftnode.Node, change func(context.Context, *raftnode.Node) error) bool {
	answered := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		answered <- change(ctx, node)
	}()
	select {
	case err := <-answered:
		return err == nil
	case <-time.After(time.Duration(1+o.rand.IntN(500)) * time.Millisecond):
		return false
	}
}

// handOver transfers leadership to a random voter, if possible.
func (o *operator) handOver() {
	if node := o.w.node(o.w.leader()); node != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, _ = node.TransferLeadership(ctx, o.voters[o.rand.IntN(len(o.voters))])
	}
}

// grow adds a learner on a new host and, with votes, promotes it.
func (o *operator) grow(votes bool) bool {
	id := address(o.hosts)
	o.hosts++
	return o.add(id) && (!votes || o.promote(id))
}

func (o *operator) add(id string) bool {
	o.w.enlist(id)
	done := o.persist("add", id, func(ctx context.Context, leader *raftnode.Node) error {
		return leader.AddLearner(ctx, id, hostOf(id), hostOf(id))
	})
	o.learners = append(o.learners, id)
	return done
}

func (o *operator) promote(id string) bool {
	done := o.persist("promote", id, func(ctx context.Context, leader *raftnode.Node) error { return leader.Promote(ctx, id) })
	o.learners = without(o.learners, id)
	o.voters = append(o.voters, id)
	return done
}

// remove removes a node, which must notice and end by itself.
func (o *operator) remove(id string) bool {
	done := o.expel(id)
	o.w.retire(id)
	return done
}

func (o *operator) expel(id string) bool {
	done := o.persist("remove", id, func(ctx context.Context, leader *raftnode.Node) error {
		err := leader.Remove(ctx, id, false)
		if unfit, ok := errors.AsType[*raftnode.MemberError](err); ok && unfit.Absent {
			return nil // by an earlier attempt with an unknown outcome
		}
		return err
	})
	o.voters, o.learners = without(o.voters, id), without(o.learners, id)
	return done
}

// replace replaces a voter whose disk is lost by the next one on its host. It loses no disk while a voter lacks the last change: see
// TestPromote_VoterLackingItBlocksElection.
func (o *operator) replace(id string) bool {
	if eventually(5*time.Second, o.informed) != nil {
		return true
	}
	o.w.lose(id)
	host := hostOf(id)
	o.lives[host]++
	next := fmt.Sprintf("%s.%d", host, o.lives[host])
	return o.expel(id) && o.add(next) && o.promote(next)
}

// informed says whether all voters run and know all voters.
func (o *operator) informed() bool {
	for _, id := range o.voters {
		node := o.w.node(id)
		if node == nil {
			return false
		}
		known := 0
		for _, m := range node.Status().Members {
			if m.Voter && slices.Contains(o.voters, m.ID) {
				known++
			}
		}
		if known < len(o.voters) {
			return false
		}
	}
	return true
}

func without(ids []string, id string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(other string) bool { return other == id })
}

// enlist starts a node that waits to be added; from now on it belongs to the cluster.
func (w *world) enlist(id string) {
	w.mu.Lock()
	w.ids = append(w.ids, id)
	w.mu.Unlock()
	w.again(id)
}

// lose ends a node, with its disk, permanently.
func (w *world) lose(id string) {
	w.mu.Lock()
	w.ids = without(w.ids, id)
	w.mu.Unlock()
	w.starts <- struct{}{} // a start in progress completes, or finds that the node no longer belongs to the cluster
	w.kill(id)
	<-w.starts
}

// retire takes a removed node out of the cluster. It runs until it notices its removal.
func (w *world) retire(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids = without(w.ids, id)
	w.retired = append(w.retired, id)
}

// disband takes all nodes out of the cluster, so that none is started again, and returns all nodes that ever ran.
func (w *world) disband() []string {
	w.starts <- struct{}{}
	defer func() { <-w.starts }()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids = nil
	return slices.Sorted(maps.Keys(w.nodes))
}

// changed counts a change of membership.
func (w *world) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out.Changed++
}

// all are the nodes that belong to the cluster.
func (w *world) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ids)
}

// end is the end of a node that ended by itself.
type end struct {
	id  string
	err error
}

// attend waits until a node ends. A node that ends by itself is started again, as by a supervisor of processes, while it belongs to the
// cluster.
func (w *world) attend(id string, node *raftnode.Node) {
	<-node.Done()
	w.starts <- struct{}{}
	ended := w.node(id) == node
	if ended {
		w.say("%s ended by itself: %v", id, node.Err())
		w.mu.Lock()
		w.ends = append(w.ends, end{id, node.Err()})
		w.mu.Unlock()
		w.kill(id)
	}
	<-w.starts
	if ended {
		time.Sleep(time.Second)
		w.again(id)
	}
}

// gone says whether all removed nodes have ended.
func (w *world) gone() bool {
	return !slices.ContainsFunc(w.retired, func(id string) bool { return w.node(id) != nil })
}

// noteMembers records the members as each node reports them, the acknowledged ones, and the nodes that ended without having been removed. A
// node whose transfer of leadership hangs ends on purpose, so that others can continue.
func (w *world) noteMembers(o *operator) {
	for _, id := range o.voters {
		w.result.Members = append(w.result.Members, check.Member{ID: id, Votes: true})
	}
	for _, id := range o.learners {
		w.result.Members = append(w.result.Members, check.Member{ID: id})
	}
	w.result.Watched = map[string][]check.Member{}
	for _, id := range w.all() {
		if node := w.node(id); node != nil {
			for _, m := range node.Status().Members {
				w.result.Watched[id] = append(w.result.Watched[id], check.Member{ID: m.ID, Votes: m.Voter})
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.ends {
		removed := errors.Is(e.err, raftnode.ErrRemoved) && slices.Contains(w.retired, e.id)
		if !removed && !errors.Is(e.err, raftnode.ErrTransferStuck) {
			w.result.Ended = append(w.result.Ended, fmt.Sprintf("%s: %v", e.id, e.err))
		}
	}
}
