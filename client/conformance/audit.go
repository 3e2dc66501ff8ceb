package main

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// number identifies a request in a session.
type number struct{ session, seq uint64 }

// audit checks the rules of every case: a number belongs to one command, and no answer is requested again that was acknowledged without
// having arrived.
func audit(all []sighting) error {
	commands := map[number]*quotav1.Command{}
	arrived := map[number]bool{}
	marks := map[uint64]uint64{}
	// early are numbers below their session's mark that had no answer when the mark passed them.
	early := map[number]bool{}
	for _, s := range all {
		id := idOf(s.command)
		if id.GetSession() == 0 {
			continue
		}
		n := number{id.GetSession(), id.GetSeq()}
		if n.seq == 0 {
			return fmt.Errorf("a request of session %d has no seq: numbers count from 1", n.session)
		}
		if first := commands[n]; first == nil {
			commands[n] = s.command
		} else if !proto.Equal(plain(first), plain(s.command)) {
			return fmt.Errorf("number %d of session %d was used for two requests: %v and %v", n.seq, n.session, plain(first), plain(s.command))
		}
		if early[n] {
			return fmt.Errorf("number %d of session %d was sent again after acked_below %d, and no answer to it had arrived before",
				n.seq, n.session, marks[n.session])
		}
		if mark := id.GetAckedBelow(); mark > marks[n.session] {
			for other := range commands {
				if other.session == n.session && other.seq < mark && !arrived[other] {
					early[other] = true
				}
			}
			marks[n.session] = mark
		}
		if s.delivered && s.result.GetReserve().GetWaiting() == nil {
			arrived[n] = true
		}
	}
	return nil
}

// plain returns a command without the fields that may differ in a repeat.
func plain(c *quotav1.Command) *quotav1.Command {
	c = proto.CloneOf(c)
	if id := idOf(c); id != nil {
		id.AckedBelow = 0
	}
	if r := c.GetReserve(); r != nil {
		r.NoBlock = false
	}
	return c
}
