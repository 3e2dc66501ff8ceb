package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// breakThings injects one fault after the other, for the length of the plan.
func (w *world) breakThings() {
	type fault struct {
		name   string
		weight int
		do     func()
	}
	p := w.plan
	faults := []fault{
		{"crash-leader", p.crash, func() { w.crash(w.leader()) }},
		{"crash-one", p.crash, func() { w.crash(w.any(w.rand)) }},
		{"crash-all", p.all, w.crashAll},
		{"cut-leader", p.cut, func() { w.isolate(w.leader(), true, true) }},
		{"cut-one", p.cut, func() { w.isolate(w.any(w.rand), true, true) }},
		{"deaf-leader", p.cut, func() { w.isolate(w.leader(), true, false) }},
		{"mute-leader", p.cut, func() { w.isolate(w.leader(), false, true) }},
		{"flap", p.flap, w.flap},
		{"slow", p.slow, w.slow},
		{"reset", p.reset, func() { w.mesh.reset(hostOf(w.any(w.rand)), "") }},
		{"clock", p.clock, w.clockJump},
		{"transfer", p.transfer, w.transfer},
		{"quiet", 2, func() { w.pause(200, 1500) }},
	}
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	half := time.Now().Add(p.length / 2)
	for end := time.Now().Add(p.length); time.Now().Before(end); {
		if p.rests && time.Now().After(half) {
			p.rests = false
			w.rest()
			end = time.Now().Add(p.length / 2)
		}
		at := w.rand.IntN(total)
		for _, f := range faults {
			if at -= f.weight; at < 0 {
				w.say("%s begins, the leader is %q", f.name, w.leader())
				w.out.Faults[f.name]++
				f.do()
				break
			}
		}
		w.pause(50, 1000)
	}
}

// taskWait is a little longer than the wait of a task after its first failure.
const taskWait = 5*time.Minute + 10*time.Second

// rest lets time pass without requests.
func (w *world) rest() {
	w.mu.Lock()
	w.resting = time.Now().Add(taskWait)
	w.mu.Unlock()
	w.say("all rest for %v", taskWait)
	time.Sleep(taskWait)
}

func (w *world) restsUntil() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resting
}

func (w *world) pause(least, most int) {
	time.Sleep(time.Duration(least+w.rand.IntN(most-least)) * time.Millisecond)
}

// any draws a node of the cluster.
func (w *world) any(r *rand.Rand) string {
	all := w.all()
	return all[r.IntN(len(all))]
}

// crash kills a node and starts it again a little later.
func (w *world) crash(id string) {
	w.starts <- struct{}{} // no node is started while it is killed
	killed := id != "" && w.kill(id)
	<-w.starts
	if !killed {
		return
	}
	w.pause(20, 2500)
	w.again(id)
}

// again starts a node, unless it runs or no longer belongs to the cluster.
func (w *world) again(id string) {
	w.starts <- struct{}{}
	defer func() { <-w.starts }()
	if w.node(id) != nil || !slices.Contains(w.all(), id) {
		return
	}
	if err := w.start(id); err != nil {
		w.say("%s does not start: %v", id, err)
		w.stuck("%v", err)
	}
}

func (w *world) crashAll() {
	all := w.all()
	w.starts <- struct{}{}
	w.kill(all...)
	<-w.starts
	w.pause(20, 500)
	for _, id := range all {
		w.again(id)
	}
}

// isolate cuts the links to a node, from it, or both, for a while.
func (w *world) isolate(id string, hears, says bool) {
	if id == "" {
		return
	}
	w.cut(id, hears, says)
	w.pause(100, 3000)
	if w.rand.IntN(3) == 0 {
		w.crash(id) // most defects need two faults close together
	}
	w.mesh.heal()
}

// cut cuts the links to a node, from it, or both.
func (w *world) cut(id string, hears, says bool) {
	if hears {
		w.mesh.sever(link{to: hostOf(id)})
	}
	if says {
		w.mesh.sever(link{from: hostOf(id)})
	}
}

// flap cuts and heals the leader's links about as fast as elections take.
func (w *world) flap() {
	id := w.leader()
	for range 2 + w.rand.IntN(5) {
		if id != "" {
			w.cut(id, true, true)
		}
		time.Sleep(time.Duration(w.rand.Int64N(int64(3 * w.plan.heartbeat))))
		w.mesh.heal()
		time.Sleep(time.Duration(w.rand.Int64N(int64(2 * w.plan.heartbeat))))
	}
}

// slow makes all links slow for a while.
func (w *world) slow() {
	w.mesh.setLatency(time.Duration(w.rand.Int64N(int64(w.plan.heartbeat))), w.plan.heartbeat/2)
	w.pause(300, 2500)
	w.mesh.setLatency(200*time.Microsecond, 200*time.Microsecond)
}

// clockJump shifts a node's wall clock; its monotonic clock runs correctly.
func (w *world) clockJump() {
	if node := w.node(w.any(w.rand)); node != nil {
		offset := time.Duration(w.rand.Int64N(int64(2*time.Hour))) - time.Hour
		_ = node.SetFault(&offset, nil, nil, 0)
	}
}

func (w *world) transfer() {
	if node := w.node(w.leader()); node != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, _ = node.TransferLeadership(ctx, "")
	}
}

// heal heals all links and starts all stopped nodes.
func (w *world) heal() {
	w.mesh.heal()
	w.mesh.setLatency(200*time.Microsecond, 200*time.Microsecond)
	for _, id := range w.all() {
		w.again(id)
	}
	w.result.Healed = w.now()
	w.say("healed")
}
