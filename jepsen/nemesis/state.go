package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// jump shifts the wall clock of one node, forward or back, by seconds to hours.
func jump() Fault {
	return Fault{Name: "clock-jump", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, _ := all(ctx, e, r)
		node := nodes[r.IntN(len(nodes))]
		size := []time.Duration{3 * time.Second, time.Minute, time.Hour, 25 * time.Hour}[r.IntN(4)]
		if r.IntN(2) == 0 {
			size = -size
		}
		if err := node.SetClock(ctx, size, 1_000_000); err != nil {
			return hit{targets: names(node)}, err
		}
		hold(ctx)
		_ = node.SetClock(context.WithoutCancel(ctx), 0, 1_000_000) // one that was restarted meanwhile has a correct clock
		return hit{targets: names(node), seen: fmt.Sprintf("by %v", size)}, nil
	}}
}

// strobe shifts the wall clock of the leader back and forth.
func strobe() Fault {
	return Fault{Name: "clock-strobe", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		leader, _, err := e.leader(ctx)
		if err != nil {
			return hit{}, err
		}
		loop, stop := context.WithCancel(ctx)
		done := make(chan int, 1)
		go func() {
			times := 0
			for ; loop.Err() == nil; times++ {
				_ = leader.SetClock(loop, time.Duration(r.Int64N(int64(20*time.Second)))-10*time.Second, 1_000_000)
				select {
				case <-loop.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
			done <- times
		}()
		hold(ctx)
		stop()
		times := <-done
		_ = leader.SetClock(context.WithoutCancel(ctx), 0, 1_000_000)
		return hit{targets: names(leader), seen: fmt.Sprintf("%d jumps", times)}, nil
	}}
}

// drift runs one node's clock slightly wrong, within the bound of the promises.
func drift() Fault {
	return Fault{Name: "clock-drift", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, _ := all(ctx, e, r)
		node := nodes[r.IntN(len(nodes))]
		ppm := int64(1_000_000 - 8_000 + r.IntN(16_001))
		if err := node.SetClock(ctx, 0, ppm); err != nil {
			return hit{targets: names(node)}, err
		}
		hold(ctx)
		_ = node.SetClock(context.WithoutCancel(ctx), 0, 1_000_000)
		return hit{targets: names(node), seen: fmt.Sprintf("%+d ppm", ppm-1_000_000)}, nil
	}}
}

// wrongRate runs the leader's monotonic clock so wrong that its guard must end it.
func wrongRate() Fault {
	return Fault{Name: "clock-rate", Ends: true, do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, err := theLeader(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		ppm := int64(1_050_000 + r.IntN(50_000))
		if r.IntN(2) == 0 {
			ppm = 2_000_000 - ppm
		}
		h := hit{targets: names(nodes...)}
		before, began := len(e.Cluster.Exits()), history.Now()
		if err := nodes[0].SetClock(ctx, 0, ppm); err != nil {
			return h, err
		}
		hold(ctx)
		for _, exit := range e.Cluster.Exits()[before:] {
			if exit.Node == nodes[0].ID {
				h.seen = fmt.Sprintf("%+d ppm, ended after %v", ppm-1_000_000, time.Duration(exit.At-began).Round(time.Second))
				return h, nil
			}
		}
		_ = nodes[0].SetClock(context.WithoutCancel(ctx), 0, 1_000_000)
		return h, errNotSeen
	}}
}

// comeBackWithin is how long a node may still report that the cluster's view of the time of day is ahead, beyond the time that it was
// ahead. It covers the delay of a sample and of the status on a busy machine.
const comeBackWithin = 15 * time.Second

// A far step of the clocks never disappears by itself: farAhead is beyond every window. resetWithin is how long an operator's reset may
// take under the workload.
const (
	farAhead    = 365 * 24 * time.Hour
	resetWithin = 15 * time.Second
)

// aheadOnce sets all clocks ahead for a moment, like a wrong step of time, and then right again. The cluster's view of the time of day must
// recover: by itself after a step of some seconds, and by an operator's reset after a year.
func aheadOnce() Fault {
	return Fault{Name: "clock-ahead-once", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, _ := all(ctx, e, r)
		ahead := time.Duration(4+r.IntN(5)) * time.Second
		far := r.IntN(2) == 0
		if far {
			ahead = farAhead
		}
		h := hit{targets: names(nodes...), seen: fmt.Sprintf("by %v", ahead)}
		set := func(ctx context.Context, offset time.Duration) (err error) {
			for _, node := range nodes {
				err = errors.Join(err, node.SetClock(ctx, offset, 1_000_000))
			}
			return err
		}
		err := set(ctx, ahead)
		wait(ctx, 3*time.Second) // a leader compares clocks each second, and stamps an entry with the result
		hold(ctx)
		ctx = context.WithoutCancel(ctx)
		err = errors.Join(err, set(ctx, 0)) // one that was restarted meanwhile has a correct clock
		if !far {
			if err != nil {
				return h, err
			}
			return h, e.awaitViews(ctx, nodes, ahead, nil)
		}
		reset := func(ctx context.Context) error {
			answer, err := e.resetClock(ctx, nodes)
			h.seen += fmt.Sprintf(", reset: %v ahead, %d windows", answer.GetAhead().AsDuration().Round(time.Second), answer.GetWindows())
			return err
		}
		viewsErr := e.awaitViews(ctx, nodes, comeBackWithin, reset) // a year must not stay, whatever else failed
		if _, broken := errors.AsType[brokenError](viewsErr); broken || err == nil {
			return h, viewsErr
		}
		return h, err
	}}
}

// resetClock runs an operator's reset of the clock, and repeats it while members disagree or no node leads. A leader compares clocks each
// second: it may still have the wrong ones, so that nothing is ahead, when another node reports the view as ahead. If the answer to a reset
// was lost, the reset may have taken effect: then no node reports that.
func (e *Env) resetClock(ctx context.Context, nodes []*cluster.Node) (answer *quotav1.ResetClockResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, resetWithin)
	defer cancel()
	for {
		var leader *cluster.Node
		if leader, err = e.Cluster.Leader(ctx); err == nil {
			answer, err = leader.Admin().ResetClock(ctx, &quotav1.ResetClockRequest{})
		}
		switch {
		case err == nil:
			return answer, nil
		case quotav1.Reason(history.ErrorOf(err).Reason) == quotav1.Reason_REASON_CLOCK_NOT_AHEAD && e.viewsOf(ctx, nodes).what == "":
			return nil, nil
		case ctx.Err() != nil:
			return nil, brokenError(fmt.Sprintf("the clock could not be reset within %v: %v", resetWithin, err))
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// awaitViews waits until a node reports that the cluster's view of the time of day is ahead, calls reset if it is set, and then waits until
// no node reports that.
func (e *Env) awaitViews(ctx context.Context, nodes []*cluster.Node, ahead time.Duration, reset func(context.Context) error) error {
	began, seen := time.Now(), false
	for {
		wrong := e.viewsOf(ctx, nodes)
		switch took := time.Since(began); {
		case wrong.ahead && !seen:
			seen = true
			if reset == nil {
				break
			}
			if err := reset(ctx); err != nil {
				return err
			}
			began = time.Now().Add(-ahead) // after a reset there is no time to wait for
		case seen && wrong.what == "":
			return nil
		case seen && took > ahead+comeBackWithin:
			return brokenError(fmt.Sprintf("%v after the clocks were right again %s", took.Round(time.Second), wrong.what))
		case !seen && took > ahead:
			return errNotSeen
		}
		wait(ctx, 50*time.Millisecond)
	}
}

// views is the nodes' status of the time of day: the problem, and whether a view is ahead.
type views struct {
	what  string
	ahead bool
}

func (e *Env) viewsOf(ctx context.Context, nodes []*cluster.Node) (wrong views) {
	for _, node := range nodes {
		status, err := node.Status(ctx)
		if err != nil {
			wrong.what = fmt.Sprintf("%s gives no answer: %v", node.ID, err)
			continue
		}
		for _, check := range status.Checks {
			if !check.Ok && check.Name == "views" {
				wrong = views{what: node.ID + ": " + check.Message, ahead: true}
			}
		}
	}
	return wrong
}

var errNoDisks = errors.New("the nodes' disks are plain ones")

// onDisk breaks a node's disk.
func onDisk(name string, ends bool, whom choose, do func(d Disk, r *rand.Rand)) Fault {
	return Fault{Name: name, Ends: ends, do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		if e.Disk == nil {
			return hit{}, errNoDisks
		}
		nodes, err := whom(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		disk := e.Disk(nodes[0].ID)
		before := disk.Injected()
		do(disk, r)
		hold(ctx)
		disk.Heal()
		injected := disk.Injected() - before
		h := hit{targets: names(nodes...), seen: fmt.Sprintf("%d operations", injected)}
		if injected == 0 {
			return h, errNotSeen
		}
		return h, nil
	}}
}

// powerCut kills nodes and drops the unsynced data of their disks.
func powerCut(name string, whom choose, unavailable bool) Fault {
	return Fault{Name: name, Unavailable: unavailable, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		if e.Disk == nil {
			return hit{}, errNoDisks
		}
		nodes, err := whom(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		for _, node := range nodes {
			node.Kill()
		}
		var lost int64
		torn := r.IntN(2) == 0
		for _, node := range nodes {
			n, cutErr := e.Disk(node.ID).PowerCut(r, torn)
			lost += n
			err = errors.Join(err, cutErr)
		}
		hold(ctx)
		for _, node := range nodes {
			err = errors.Join(err, node.Start())
		}
		return hit{targets: names(nodes...), seen: fmt.Sprintf("%d bytes lost, torn %v", lost, torn)}, err
	}}
}

// wipe replaces a node whose disk is lost: it removes the node and adds one of another name, as in the runbook.
func wipe() Fault {
	return Fault{Name: "replace-node", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		node, err := e.follower(ctx, r)
		if err != nil {
			return hit{}, err
		}
		h := hit{targets: names(node)}
		node.Kill()
		hold(ctx)
		ctx = context.WithoutCancel(ctx) // the runbook knows no half replacement
		if err := os.RemoveAll(e.Data(node.ID)); err != nil {
			return h, err
		}
		next, err := e.Cluster.Replace(ctx, node)
		if err != nil {
			return h, err
		}
		h.targets, h.seen = append(h.targets, next.ID), "promoted"
		return h, nil
	}}
}

// trouble makes the provider refuse calls for its own reasons.
func trouble() Fault {
	return Fault{Name: "provider-trouble", do: func(ctx context.Context, e *Env, _ *rand.Rand, hold func(context.Context)) (hit, error) {
		e.Trouble(true)
		hold(ctx)
		e.Trouble(false)
		return hit{targets: []string{"provider"}, seen: "refused calls"}, nil
	}}
}
