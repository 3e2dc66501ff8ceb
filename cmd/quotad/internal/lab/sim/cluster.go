package sim

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// The same as a node's defaults.
const (
	entriesInFlight = 2
	tick            = int64(time.Second)
	// clockError is the distance of the views of Unix time from the true time, on both sides.
	clockError = int64(2 * time.Millisecond)
	// reconnect bounds the time in which a client finds a new leader.
	reconnect = int64(100 * time.Millisecond)
)

// cluster is quotad in virtual time: one leader stamps entries, and the state machine applies them after a commit. Commands
// that arrive while entries are in flight go into the next one, as in a node.
type cluster struct {
	*schedule
	setting fleet.Cluster
	dice    dice
	machine *fsm.Machine
	begins  int64
	// hear receives every event.
	hear func(effect.Event)

	index, term uint64
	// commands and entries are the numbers of applied ones.
	commands, entries int64
	// base and since determine stamps: the state's time when the leader began, and the time of that.
	base, since int64
	leading     bool
	queue       []*request
	flight      []*entry
	lastApply   int64
	// waiting are the Reserves in the state's queue, by ticket.
	waiting map[uint64]*request
	// lost are unanswered requests whose leader is gone; clients send them again under their numbers.
	lost []*request
	// tickAt is when the cluster next checks for due timers; 0: never.
	tickAt int64
}

// entry is a log entry in flight.
type entry struct {
	data     []byte
	requests []*request
	// gone: its leader was killed.
	gone bool
}

// request is a command in flight.
type request struct {
	from    *client
	command *logpb.Command
	seq     uint64
	// up is the time that it took to reach the leader.
	up     int64
	answer func(answer)
}

// answer is a command's result.
type answer struct {
	result *logpb.Result
	// clock is the leader's time when it answered. from is the client's time from which durations in the answer count.
	clock fsm.Clock
	from  int64
	// at is the time of the run at which the command was applied or refused.
	at int64
}

func newCluster(s *schedule, setting fleet.Cluster, begins time.Time, d dice) *cluster {
	return &cluster{
		schedule: s, setting: setting, dice: d, machine: fsm.New(), begins: begins.UnixNano(), leading: true, term: 1,
		waiting: map[uint64]*request{}, hear: func(effect.Event) {},
	}
}

// present is the present time as the leader sees it.
func (c *cluster) present() fsm.Clock {
	return fsm.Clock{Now: c.base + c.now - c.since, WallEarly: c.begins + c.now - clockError, WallLate: c.begins + c.now + clockError}
}

// send sends a request to the leader.
func (c *cluster) send(r *request) {
	r.up = c.dice.span(c.setting.Hop)
	c.in(r.up, func() { c.arrive(r) })
}

func (c *cluster) arrive(r *request) {
	switch {
	case r.from.cut:
		r.from.stuck = append(r.from.stuck, r)
	case !c.leading:
		c.lost = append(c.lost, r)
	default:
		c.queue = append(c.queue, r)
		c.propose()
	}
}

// propose makes entries from the queued requests.
func (c *cluster) propose() {
	for c.leading && len(c.queue) > 0 && len(c.flight) < entriesInFlight {
		requests := c.queue
		c.queue = nil
		c.write(requests)
	}
}

// write stamps and encodes an entry, and schedules its application.
func (c *cluster) write(requests []*request) {
	now := c.present()
	stamped := &logpb.Entry{
		Version: fsm.EntryVersion, StampNs: now.Now, WallEarlyNs: now.WallEarly, WallLateNs: now.WallLate,
		Commands: make([]*logpb.Command, len(requests)),
	}
	for i, r := range requests {
		stamped.Commands[i] = r.command
	}
	data, err := proto.Marshal(stamped)
	if err != nil {
		panic("sim: an entry cannot be encoded: " + err.Error())
	}
	e := &entry{data: data, requests: requests}
	c.flight = append(c.flight, e)
	c.lastApply = max(c.lastApply, c.now+c.dice.span(c.setting.Commit))
	c.at(c.lastApply, func() {
		if e.gone {
			return
		}
		c.flight = c.flight[1:]
		c.apply(e)
		c.propose()
		c.observe()
	})
}

// applied applies an entry and returns the results and events.
func (c *cluster) applied(e *entry) fsm.Applied {
	c.index++
	c.entries++
	c.commands += int64(len(e.requests))
	return c.machine.Apply(c.index, c.term, e.data)
}

// apply applies an entry and answers its requests.
func (c *cluster) apply(e *entry) {
	applied := c.applied(e)
	for i, r := range e.requests {
		if waiting := applied.Results[i].GetWaiting(); waiting != nil {
			c.waiting[waiting.Ticket] = r
			continue
		}
		c.reply(r, applied.Results[i])
	}
	for i := range applied.Events {
		ended := &applied.Events[i]
		c.hear(*ended)
		if ended.Ticket == 0 || ended.Result == nil {
			continue
		}
		if r, ok := c.waiting[ended.Ticket]; ok {
			delete(c.waiting, ended.Ticket)
			c.reply(r, ended.Result)
		}
	}
}

// reply returns a result to the client. A client that is cut off does not receive it, and sends the request again later.
func (c *cluster) reply(r *request, result *logpb.Result) {
	if r.from.gone {
		return
	}
	a := answer{result: result, clock: c.present(), from: c.now - r.up, at: c.now}
	c.in(c.dice.span(c.setting.Hop), func() {
		switch {
		case r.from.gone:
		case r.from.cut:
			r.from.stuck = append(r.from.stuck, r)
		default:
			r.from.heard(r, a)
		}
	})
}

// observe schedules the next check for due timers: when the first timer is due, and every tick while anything is pending.
func (c *cluster) observe() {
	if !c.leading {
		return
	}
	due, pending := c.machine.State().NextDue()
	if !pending {
		return
	}
	next := min(due, c.machine.State().Clock().Now+tick)
	at := c.now + max(next-c.present().Now, int64(time.Millisecond))
	if c.tickAt > c.now && c.tickAt <= at {
		return
	}
	c.tickAt = at
	c.at(at, func() { c.ticked(at) })
}

// ticked writes an entry without commands if a timer is due, unless entries are in flight: they carry the time.
func (c *cluster) ticked(at int64) {
	if at != c.tickAt || !c.leading {
		return
	}
	c.tickAt = 0
	due, pending := c.machine.State().NextDue()
	if !pending {
		return
	}
	if now := c.present().Now; min(due, c.machine.State().Clock().Now+tick) <= now && len(c.flight) < entriesInFlight {
		c.write(nil)
		return
	}
	c.observe()
}

// kill ends the leader. The first of the entries in flight may survive it, without an answer. A new leader follows after a
// while, and its clock continues at the state's time.
func (c *cluster) kill() {
	if !c.leading {
		return
	}
	c.leading = false
	var survivors []*entry
	for _, e := range c.flight {
		e.gone = true
		c.lost = append(c.lost, e.requests...)
	}
	for _, e := range c.flight {
		if c.dice.IntN(2) == 0 {
			break
		}
		survivors = append(survivors, e)
	}
	c.lost = append(c.lost, c.queue...)
	c.flight, c.queue = nil, nil
	for _, ticket := range slices.Sorted(maps.Keys(c.waiting)) {
		c.lost = append(c.lost, c.waiting[ticket])
	}
	clear(c.waiting)
	c.in(c.dice.span(c.setting.Failover), func() { c.lead(survivors) })
}

// lead starts a new leader.
func (c *cluster) lead(survivors []*entry) {
	c.term++
	for _, e := range survivors {
		e.requests = nil
		c.applyUnheard(e)
	}
	c.restore()
	c.base, c.since, c.leading, c.tickAt = c.machine.State().Clock().Now, c.now, true, 0
	again := c.lost
	c.lost = nil
	for _, r := range again {
		if !r.from.gone {
			c.in(c.dice.below(reconnect), func() { c.send(r) })
		}
	}
	c.observe()
}

// restore continues with the state of a snapshot: the new leader may be a node that was restarted.
func (c *cluster) restore() {
	var snapshot bytes.Buffer
	err := c.machine.State().WriteSnapshot(&snapshot)
	if err != nil {
		panic("sim: a snapshot cannot be written: " + err.Error())
	}
	if c.machine, err = fsm.Restore(&snapshot); err != nil {
		panic("sim: a snapshot cannot be restored: " + err.Error())
	}
}

// applyUnheard applies an entry whose callers have lost their leader.
func (c *cluster) applyUnheard(e *entry) {
	for _, happened := range c.applied(e).Events {
		c.hear(happened)
	}
}
