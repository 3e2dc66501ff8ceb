package sim

import (
	"context"
	"time"
)

// breakThings breaks one thing after the other, for as long as the plan says.
func (w *world) breakThings() {
	type fault struct {
		name   string
		weight int
		do     func()
	}
	p := w.plan
	faults := []fault{
		{"crash-leader", p.crash, func() { w.crash(w.leader()) }},
		{"crash-one", p.crash, func() { w.crash(w.any()) }},
		{"crash-all", p.all, w.crashAll},
		{"cut-leader", p.cut, func() { w.isolate(w.leader(), true, true) }},
		{"cut-one", p.cut, func() { w.isolate(w.any(), true, true) }},
		{"deaf-leader", p.cut, func() { w.isolate(w.leader(), true, false) }},
		{"mute-leader", p.cut, func() { w.isolate(w.leader(), false, true) }},
		{"flap", p.flap, w.flap},
		{"slow", p.slow, w.slow},
		{"reset", p.reset, func() { w.mesh.reset(w.any(), "") }},
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

// taskWait is a little longer than the first failure of a task keeps it waiting.
const taskWait = 5*time.Minute + 10*time.Second

// rest lets time pass in which only the cluster does something.
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

func (w *world) any() string { return address(w.rand.IntN(w.plan.nodes)) }

// crash kills a node and starts it again a little later.
func (w *world) crash(id string) {
	if id == "" || !w.kill(id) {
		return
	}
	w.pause(20, 2500)
	w.again(id)
}

func (w *world) again(id string) {
	if w.node(id) != nil {
		return
	}
	if err := w.start(id); err != nil {
		w.say("%s does not start: %v", id, err)
		w.out.Stuck = err.Error()
	}
}

func (w *world) crashAll() {
	for i := range w.plan.nodes {
		w.kill(address(i))
	}
	w.pause(20, 500)
	for i := range w.plan.nodes {
		w.again(address(i))
	}
}

// isolate cuts what a node hears, what it says, or both.
func (w *world) isolate(id string, hears, says bool) {
	if id == "" {
		return
	}
	set := func(on bool) {
		for i := range w.plan.nodes {
			if other := address(i); other != id {
				if hears {
					w.mesh.setCut(link{other, id}, on)
				}
				if says {
					w.mesh.setCut(link{id, other}, on)
				}
			}
		}
	}
	set(true)
	w.pause(100, 3000)
	if w.rand.IntN(3) == 0 {
		w.crash(id) // most defects need two faults near each other
	}
	set(false)
}

// flap cuts and mends the leader's links about as fast as elections go.
func (w *world) flap() {
	id := w.leader()
	for range 2 + w.rand.IntN(5) {
		w.isolateFor(id, time.Duration(w.rand.Int64N(int64(3*w.plan.heartbeat))))
		time.Sleep(time.Duration(w.rand.Int64N(int64(2 * w.plan.heartbeat))))
	}
}

func (w *world) isolateFor(id string, length time.Duration) {
	for i := range w.plan.nodes {
		if other := address(i); other != id && id != "" {
			w.mesh.setCut(link{other, id}, true)
			w.mesh.setCut(link{id, other}, true)
		}
	}
	time.Sleep(length)
	w.mendAll()
}

func (w *world) mendAll() {
	for i := range w.plan.nodes {
		for k := range w.plan.nodes {
			w.mesh.setCut(link{address(i), address(k)}, false)
		}
	}
}

// slow makes all links slow for a while.
func (w *world) slow() {
	w.mesh.setLatency(time.Duration(w.rand.Int64N(int64(w.plan.heartbeat))), w.plan.heartbeat/2)
	w.pause(300, 2500)
	w.mesh.setLatency(200*time.Microsecond, 200*time.Microsecond)
}

// clockJump shifts a node's wall clock; its monotonic clock runs true.
func (w *world) clockJump() {
	if node := w.node(w.any()); node != nil {
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

// heal mends all links and starts what does not run.
func (w *world) heal() {
	w.mendAll()
	w.mesh.setLatency(200*time.Microsecond, 200*time.Microsecond)
	for i := range w.plan.nodes {
		w.again(address(i))
	}
	w.result.Healed = w.now()
	w.say("healed")
}
