package sim

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quotad/quotad/raftnode"
)

// errPowerCut is the error of a write whose node was killed meanwhile.
var errPowerCut = errors.New("the node was killed while it wrote")

// disk is the log disk of one life of a node: each append takes a while, and one in flight when the node is killed is lost.
type disk struct {
	mu   sync.Mutex
	rand *rand.Rand
	// slowest is the longest time of a write.
	slowest time.Duration
	// cut is closed when the node is killed.
	cut chan struct{}
}

func (d *disk) append(write func() error) error {
	timer := time.NewTimer(d.latency())
	defer timer.Stop()
	select {
	case <-d.cut:
	case <-timer.C:
	}
	select {
	case <-d.cut:
		return errPowerCut
	default:
		return write()
	}
}

func (d *disk) latency() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.rand.Int64N(int64(d.slowest) + 1))
}

// drawDisk draws the longest time of a write in a run: none, or a part of a heartbeat's timeout, up to a half, which costs leaders. It uses
// its own stream, so that the seed's other draws stay the same.
func drawDisk(seed uint64, heartbeat time.Duration) time.Duration {
	parts := []time.Duration{0, heartbeat / 20, heartbeat / 5, heartbeat / 2}
	return parts[rand.New(rand.NewPCG(seed, 0x53)).IntN(len(parts))] //nolint:gosec // no secret
}

// newDisk makes the disk of a node's next life.
func (w *world) newDisk(id string) *disk {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := rand.New(rand.NewPCG(w.disks.Uint64(), 0x54)) //nolint:gosec // no secret
	d := &disk{rand: own, slowest: time.Duration(own.Int64N(int64(w.plan.disk) + 1)), cut: make(chan struct{})}
	w.disk[id] = d
	return d
}

// takeDown is take, and drops the writes in flight.
func (w *world) takeDown(id string) *raftnode.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	node := w.takeLocked(id)
	if node != nil {
		close(w.disk[id].cut)
	}
	return node
}
