package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/raftnode"
)

// watcher follows the events at any node, and resumes where its last stream ended, or a little before.
type watcher struct {
	w    *world
	name string
	rand *rand.Rand
	// stream counts its streams, next is the index at which it resumes; 0: from now on.
	stream int
	next   uint64
}

func (w *world) newWatcher(seed uint64, number int) *watcher {
	name := fmt.Sprintf("watcher-%d", number)
	drawn := fnv.New64a()
	_, _ = drawn.Write([]byte(name))
	return &watcher{w: w, name: name, rand: rand.New(rand.NewPCG(seed, drawn.Sum64()))} //nolint:gosec // no secret
}

// watch follows stream after stream until its context ends.
func (v *watcher) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if node := v.w.node(v.w.any(v.rand)); node != nil {
			v.follow(ctx, node)
		}
		time.Sleep(time.Duration(10+v.rand.IntN(300)) * time.Millisecond)
	}
}

// follow reads one stream: to its end, or to a random number of messages.
func (v *watcher) follow(ctx context.Context, node *raftnode.Node) {
	from := v.next
	if back := v.rand.Uint64N(40); from > back && v.rand.IntN(3) == 0 {
		from -= back // earlier events are sent again
	}
	subscription, err := node.Watch(from)
	if err == nil {
		defer subscription.Close()
		v.stream++
	}
	enough, slow := v.rand.IntN(400), v.rand.IntN(4) == 0
	for watched := 0; err == nil && watched < enough; watched++ {
		var seen check.SimulatedSeen
		var at raftnode.Position
		at, seen.Events, err = subscription.Next(ctx)
		if err != nil {
			break
		}
		seen.Watcher, seen.Stream, seen.From, seen.Index = v.name, v.stream, from, at.Index
		v.next = at.Index + 1
		v.w.saw(seen)
		if slow && !v.w.settling.Load() {
			time.Sleep(time.Duration(v.rand.IntN(100)) * time.Millisecond)
		}
	}
	if _, gone := errors.AsType[*raftnode.CompactedError](err); gone {
		v.next = 0
	}
}

// saw records a message of a stream.
func (w *world) saw(seen check.SimulatedSeen) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result.Seen = append(w.result.Seen, seen)
	w.watched[seen.Watcher] = max(w.watched[seen.Watcher], seen.Index)
}

// allWatched says whether every watcher has seen all events up to an index.
func (w *world) allWatched(index uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for number := range w.plan.watchers {
		if w.watched[fmt.Sprintf("watcher-%d", number)] < index {
			return false
		}
	}
	return true
}
