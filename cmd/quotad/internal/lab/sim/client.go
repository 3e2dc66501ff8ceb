package sim

import (
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// client is one agent process's session with the cluster: its requests are numbered, and sent again under their numbers
// until they are answered.
type client struct {
	cluster *cluster
	holder  string
	session uint64
	opening bool
	// parked are requests that wait for the session.
	parked []*request
	next   uint64
	// open are the numbers without an answer, ascending.
	open []uint64
	// cut: the client cannot reach the cluster; stuck are the requests that wait until it can.
	cut   bool
	stuck []*request
	// gone: the process has died.
	gone bool
}

// do sends a command until it is answered. then is not called if the process dies first.
func (c *client) do(command *logpb.Command, then func(answer)) {
	r := &request{from: c, command: command, answer: then}
	if c.session == 0 {
		c.parked = append(c.parked, r)
		c.openSession()
		return
	}
	c.number(r)
}

// number numbers a request and sends it.
func (c *client) number(r *request) {
	c.next++
	r.seq = c.next
	c.open = append(c.open, r.seq)
	r.command.Session, r.command.Seq, r.command.AckedBelow = c.session, r.seq, c.open[0]
	c.cluster.send(r)
}

// openSession opens a session for the parked requests.
func (c *client) openSession() {
	if c.opening {
		return
	}
	c.opening = true
	open := &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: c.holder}}}
	c.cluster.send(&request{from: c, command: open, answer: func(a answer) {
		c.opening, c.session, c.next, c.open = false, a.result.GetSessionOpened().GetSession(), 0, nil
		parked := c.parked
		c.parked = nil
		for _, r := range parked {
			c.number(r)
		}
	}})
}

// heard processes an answer.
func (c *client) heard(r *request, a answer) {
	if r.seq == 0 {
		r.answer(a)
		return
	}
	if r.command.Session == c.session {
		if i, found := slices.BinarySearch(c.open, r.seq); found {
			c.open = slices.Delete(c.open, i, i+1)
		}
	}
	if a.result.GetFailure().GetReason() == logpb.Reason_REASON_UNKNOWN_SESSION {
		// The session was idle for too long: open a new one, and send the request under a new number.
		if r.command.Session == c.session {
			c.session = 0
		}
		c.do(r.command, r.answer)
		return
	}
	r.answer(a)
}

// heal reconnects the client, and sends again requests whose sending or answer was cut off.
func (c *client) heal() {
	c.cut = false
	stuck := c.stuck
	c.stuck = nil
	for _, r := range stuck {
		c.cluster.send(r)
	}
}
