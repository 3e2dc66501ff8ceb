package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/cluster"
)

// Builds are the builds that a run mixes.
type Builds struct {
	// New is the build under test, Previous the one before it, of the same feature level.
	New, Previous string
	// Unfit is a build that applies other versions of log entries.
	Unfit string
}

func newBuild(b *Builds) string      { return b.New }
func previousBuild(b *Builds) string { return b.Previous }

// Upgrade is the mix that changes builds: it needs a previous and an unfit build.
const Upgrade = "upgrade"

// unfitFault is the fault that asks to add a build that does not fit.
const unfitFault = "unfit-build"

// upgrade gives nodes another build one at a time, as an operator does: only the followers, or all that still have the other one.
func upgrade(name string, followers bool, to func(*Builds) string) Fault {
	return Fault{Name: name, do: func(ctx context.Context, e *Env, _ *rand.Rand, _ func(context.Context)) (hit, error) {
		binary := to(&e.Builds)
		leader, others, err := e.leader(ctx)
		if err != nil {
			return hit{}, err
		}
		nodes := slices.Clone(others)
		if !followers {
			nodes = append(nodes, leader)
		}
		nodes = slices.DeleteFunc(nodes, func(n *cluster.Node) bool { return n.Binary() == binary })
		h := hit{targets: names(nodes...)}
		level, err := e.levels(ctx)
		if err != nil {
			return h, err
		}
		for _, node := range nodes {
			if err := e.exchange(ctx, node, binary); err != nil {
				return h, fmt.Errorf("%s: %w", node.ID, err)
			}
		}
		if len(nodes) == 0 {
			return h, errNotSeen
		}
		after, err := e.levels(ctx)
		if err == nil && after != level {
			err = brokenError(fmt.Sprintf("the feature level was %d before and %d after, though both builds have the same", level, after))
		}
		h.seen = fmt.Sprintf("%d of %d nodes run it now, at feature level %d", e.running(binary), len(others)+1, after)
		return h, err
	}}
}

// exchange stops a node in order and starts it with another build. A leader transfers leadership first.
func (e *Env) exchange(ctx context.Context, node *cluster.Node, binary string) error {
	leader, others, err := e.leader(ctx)
	if err != nil {
		return err
	}
	if leader == node {
		if err := node.Transfer(ctx, others[0].ID); err != nil {
			return err
		}
	}
	if !node.Stop() {
		return errSlowStop
	}
	node.SetBinary(binary)
	if err := node.Start(); err != nil {
		return err
	}
	return node.AwaitReady(context.WithoutCancel(ctx), 30*time.Second)
}

// running counts the nodes that run a build.
func (e *Env) running(binary string) int {
	count := 0
	for _, node := range e.Cluster.Nodes() {
		if node.Running() && node.Binary() == binary {
			count++
		}
	}
	return count
}

// levels returns the cluster's feature level as reported by its leader.
func (e *Env) levels(ctx context.Context) (uint32, error) {
	var level uint32
	err := within(ctx, 10*time.Second, func(ctx context.Context) error {
		leader, err := e.Cluster.Leader(ctx)
		if err != nil {
			return err
		}
		status, err := leader.Status(ctx)
		level = status.GetLevel()
		return err
	})
	return level, err
}

// unfit starts a build that applies other versions of log entries: on a member's own disk, and as a new member. Neither may take part, and
// both must say why.
func unfit() Fault {
	return Fault{Name: unfitFault, do: func(ctx context.Context, e *Env, r *rand.Rand, _ func(context.Context)) (hit, error) {
		node, err := e.follower(ctx, r)
		if err != nil {
			return hit{}, err
		}
		h := hit{targets: names(node)}
		if !node.Stop() {
			return h, fmt.Errorf("%s: %w", node.ID, errSlowStop)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		onDisk, err := e.unfitOnDisk(ctx, node)
		if startErr := node.Start(); startErr != nil {
			return h, startErr
		}
		// The unfit build must leave nothing that keeps the node's own build from starting.
		if readyErr := node.AwaitReady(ctx, 30*time.Second); err == nil {
			err = readyErr
		}
		if err != nil {
			return h, err
		}
		newcomer, err := e.unfitNewcomer(ctx)
		h.seen = onDisk + "; " + newcomer
		return h, err
	}}
}

// unfitOnDisk starts the unfit build on a member's disk: it must end by itself.
func (e *Env) unfitOnDisk(ctx context.Context, node *cluster.Node) (seen string, err error) {
	visitor, err := node.Impersonate(ctx, e.Builds.Unfit)
	if err != nil {
		return "", err
	}
	code, err := visitor.Await()
	if err != nil {
		return "", err
	}
	if why := refusesDisk(code, visitor.Said()); why != "" {
		return "", brokenError(fmt.Sprintf("an unfit build on the disk of %s %s; it said: %s", node.ID, why, visitor.Said()))
	}
	return fmt.Sprintf("exit %d on the disk of %s", code, node.ID), nil
}

// refusesDisk says what is wrong with the end of a build on a disk that it does not fit; "": nothing.
func refusesDisk(code int, said string) string {
	switch {
	case code < 0:
		return "ran on until it was killed"
	case code == 0:
		return "ended as if all were well"
	case strings.Contains(said, "panic:"):
		return "panicked"
	case !strings.Contains(said, unfitWords) && !strings.Contains(said, newerWords):
		return "did not say that it does not fit"
	}
	return ""
}

// unfitWords are in the log of a build that cannot take part, newerWords in that of one whose snapshot is too new for it.
const (
	unfitWords = "does not fit the cluster"
	newerWords = "newer"
)

// unfitNewcomer starts the unfit build as a node to be added, and asks the leader to add it: the leader must refuse, with the reason.
func (e *Env) unfitNewcomer(ctx context.Context) (seen string, err error) {
	const id = "unfit"
	visitor, err := e.Cluster.Invite(ctx, e.Builds.Unfit, id, filepath.Join(e.Folder, id))
	if err != nil {
		return "", err
	}
	defer func() {
		if killErr := visitor.Kill(); err == nil {
			err = killErr
		}
	}()
	var refusal error
	err = within(ctx, 30*time.Second, func(ctx context.Context) error {
		leader, err := e.Cluster.Leader(ctx)
		if err != nil {
			return err
		}
		refusal = e.Cluster.Admit(ctx, leader, id)
		if said := fmt.Sprint(refusal); refusal == nil || strings.Contains(said, unfitWords) { // one reason covers all that keeps a node out
			return nil
		}
		return refusal // it may listen a moment later
	})
	switch {
	case err != nil:
		return "", brokenError(fmt.Sprintf("an unfit build does not learn that it does not fit: %v; it said: %s", err, visitor.Said()))
	case refusal == nil:
		return "", brokenError("an unfit build was taken in as a member; it said: " + visitor.Said())
	}
	leader, _, err := e.leader(ctx)
	if err != nil {
		return "", err
	}
	status, err := leader.Status(ctx)
	if err != nil {
		return "", err
	}
	for _, member := range status.Members {
		if member.Id == id {
			return "", brokenError("an unfit build was refused, and is a member all the same")
		}
	}
	return "refused as a member", nil
}
