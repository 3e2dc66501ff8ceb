package nemesis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/cluster"
)

// choose returns the targets of a fault.
type choose func(ctx context.Context, e *Env, r *rand.Rand) ([]*cluster.Node, error)

func theLeader(ctx context.Context, e *Env, _ *rand.Rand) ([]*cluster.Node, error) {
	leader, _, err := e.leader(ctx)
	return []*cluster.Node{leader}, err
}

func aFollower(ctx context.Context, e *Env, r *rand.Rand) ([]*cluster.Node, error) {
	follower, err := e.follower(ctx, r)
	return []*cluster.Node{follower}, err
}

func aMajority(ctx context.Context, e *Env, _ *rand.Rand) ([]*cluster.Node, error) {
	leader, others, err := e.leader(ctx)
	if err != nil {
		return nil, err
	}
	voters := len(others) + 1
	return append([]*cluster.Node{leader}, others[:voters/2]...), nil
}

func all(_ context.Context, e *Env, _ *rand.Rand) ([]*cluster.Node, error) {
	var nodes []*cluster.Node
	for _, node := range e.Cluster.Nodes() {
		if !node.Retired() {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// kill kills nodes with SIGKILL and starts them again.
func kill(name string, whom choose, unavailable bool) Fault {
	return Fault{Name: name, Unavailable: unavailable, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		nodes, err := whom(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		killed := 0
		for _, node := range nodes {
			if node.Kill() {
				killed++
			}
		}
		h := hit{targets: names(nodes...), seen: fmt.Sprintf("%d processes gone", killed)}
		hold(ctx)
		for _, node := range nodes {
			if !node.Running() {
				if err := node.Start(); err != nil {
					return h, err
				}
			}
		}
		if killed == 0 {
			return h, errNotSeen
		}
		return h, nil
	}}
}

// crashLoop kills a node again and again, each time before it has fully started.
func crashLoop() Fault {
	return Fault{Name: "crash-loop", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		node, err := e.follower(ctx, r)
		if err != nil {
			return hit{}, err
		}
		times := 0
		loop, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for loop.Err() == nil {
				node.Kill()
				times++
				if node.Start() != nil {
					return
				}
				select {
				case <-loop.Done():
				case <-time.After(time.Duration(200+r.IntN(1500)) * time.Millisecond):
				}
			}
		}()
		hold(ctx)
		stop()
		<-done
		return hit{targets: names(node), seen: fmt.Sprintf("killed %d times", times)}, nil
	}}
}

// storm kills each leader as soon as it leads.
func storm() Fault {
	return Fault{Name: "kill-storm", Unavailable: true, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		loop, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		killed := map[string]int{}
		go func() {
			for loop.Err() == nil {
				leader, _, err := e.leader(loop)
				if err != nil {
					continue
				}
				if leader.Kill() {
					killed[leader.ID]++
				}
				wait(loop, time.Duration(r.IntN(600))*time.Millisecond)
				if err := leader.Start(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		hold(ctx)
		stop()
		err := <-done
		h := hit{targets: slices.Sorted(maps.Keys(killed)), seen: fmt.Sprintf("killed %v", killed)}
		if err == nil && len(killed) == 0 {
			err = errNotSeen
		}
		return h, err
	}}
}

// starve lets the leader's process run for only a part of each tenth of a second.
func starve() Fault {
	return Fault{Name: "starve-leader", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, err := theLeader(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		share := time.Duration(5+r.IntN(30)) * time.Millisecond
		loop, stop := context.WithCancel(ctx)
		done := make(chan int, 1)
		go func() {
			times := 0
			for ; loop.Err() == nil && nodes[0].Pause() == nil; times++ {
				wait(loop, 100*time.Millisecond-share)
				if nodes[0].Resume() != nil {
					break // another fault killed it
				}
				wait(loop, share)
			}
			done <- times
		}()
		hold(ctx)
		stop()
		times := <-done
		_ = nodes[0].Resume() // another fault may have killed it meanwhile
		h := hit{targets: names(nodes...), seen: fmt.Sprintf("ran %v of 100 ms, %d times", share, times)}
		if times == 0 {
			return h, errNotSeen
		}
		return h, nil
	}}
}

// wait waits for a time, at most until ctx ends.
func wait(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

// pause stops nodes with SIGSTOP and continues them.
func pause(name string, whom choose, unavailable bool) Fault {
	return Fault{Name: name, Unavailable: unavailable, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		nodes, err := whom(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		var states strings.Builder
		for _, node := range nodes {
			if err := node.Pause(); err != nil {
				return hit{targets: names(nodes...)}, err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // the kernel stops all threads within a few ms
		}
		for _, node := range nodes {
			states.WriteString(node.State())
		}
		hold(ctx)
		for _, node := range nodes {
			_ = node.Resume() // another fault may have killed it meanwhile
		}
		h := hit{targets: names(nodes...), seen: "states " + states.String()}
		for _, state := range states.String() {
			if state != 'T' {
				return h, errNotSeen
			}
		}
		return h, nil
	}}
}

// errSlowStop says that a node did not end in order.
var errSlowStop = errors.New("it did not stop within 15 s")

// stop stops a node in order and starts it again: an orderly restart.
func stop(name string, whom choose) Fault {
	return Fault{Name: name, do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, err := whom(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		h := hit{targets: names(nodes...)}
		for _, node := range nodes {
			if !node.Stop() {
				return h, fmt.Errorf("%s: %w", node.ID, errSlowStop)
			}
		}
		h.seen = "stopped in order"
		hold(ctx)
		for _, node := range nodes {
			if err := node.Start(); err != nil {
				return h, err
			}
		}
		return h, nil
	}}
}

// rolling restarts every node in turn, each when the one before is ready.
func rolling() Fault {
	return Fault{Name: "rolling-restart", do: func(ctx context.Context, e *Env, _ *rand.Rand, _ func(context.Context)) (hit, error) {
		nodes, _ := all(ctx, e, nil)
		h := hit{targets: names(nodes...)}
		for _, node := range nodes {
			if !node.Stop() {
				return h, fmt.Errorf("%s: %w", node.ID, errSlowStop)
			}
			if err := node.Start(); err != nil {
				return h, err
			}
			if err := node.AwaitReady(context.WithoutCancel(ctx), 30*time.Second); err != nil {
				return h, err
			}
		}
		h.seen = "all restarted"
		return h, nil
	}}
}

// crashPoints are the points in the code at which a node can kill itself.
var crashPoints = []string{
	"before-apply", "after-apply", "before-store", "after-store", "in-delete-range", "before-witness", "after-vote", "in-restore",
	"in-snapshot", "before-answer",
}

// crashAt makes a node kill itself at a point in the code.
func crashAt() Fault {
	return Fault{Name: "crash-point", Ends: true, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		nodes, err := theLeader(ctx, e, r)
		if err == nil && r.IntN(2) == 0 {
			nodes, err = aFollower(ctx, e, r)
		}
		if err != nil {
			return hit{}, err
		}
		point := crashPoints[r.IntN(len(crashPoints))]
		if err := nodes[0].CrashAt(ctx, point, int32(1+r.IntN(20))); err != nil {
			return hit{targets: names(nodes...)}, err
		}
		before := len(e.Cluster.Exits())
		hold(ctx)
		h := hit{targets: append(names(nodes...), point), seen: fmt.Sprintf("%d exits", len(e.Cluster.Exits())-before)}
		if nodes[0].Running() {
			_ = nodes[0].CrashAt(context.WithoutCancel(ctx), "", 0) // the node may never have passed the point
		}
		return h, nil
	}}
}

// pauseWorker stops a worker with SIGSTOP: its holders wake after their leases.
func pauseWorker() Fault {
	return Fault{Name: "pause-clients", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		worker := e.Sleepers[r.IntN(len(e.Sleepers))]
		if err := worker.Pause(); err != nil {
			return hit{}, err
		}
		hold(ctx)
		return hit{targets: []string{worker.Host()}, seen: "stopped"}, worker.Resume()
	}}
}

// transfer transfers leadership while calls continue.
func transfer() Fault {
	return Fault{Name: "transfer", do: func(ctx context.Context, e *Env, r *rand.Rand, _ func(context.Context)) (hit, error) {
		leader, others, err := e.leader(ctx)
		if err != nil {
			return hit{}, err
		}
		to := others[r.IntN(len(others))]
		err = leader.Transfer(ctx, to.ID)
		return hit{targets: []string{leader.ID, to.ID}, seen: "transferred"}, err
	}}
}
