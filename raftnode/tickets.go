package raftnode

import (
	"context"
	"errors"

	"github.com/quotad/quotad/fsm/logpb"
)

// maxEnded is the number of ended tickets to remember for callers that ask a little later.
const maxEnded = 65_536

// ending is the final result of a waiting Reserve.
type ending struct {
	result *logpb.Result
	at     Position
}

// tickets passes the final results of waiting Reserves to the calls that await them. Node.mu guards it.
type tickets struct {
	waiting map[uint64][]chan ending
	ended   map[uint64]ending
	order   []uint64
}

func newTickets() *tickets {
	return &tickets{waiting: map[uint64][]chan ending{}, ended: map[uint64]ending{}}
}

func (t *tickets) end(ticket uint64, result *logpb.Result, at Position) {
	e := ending{result: result, at: at}
	for _, ch := range t.waiting[ticket] {
		ch <- e // each channel has room for one
	}
	delete(t.waiting, ticket)
	t.ended[ticket] = e
	t.order = append(t.order, ticket)
	if len(t.order) > maxEnded {
		delete(t.ended, t.order[0])
		t.order = t.order[1:]
	}
}

// failAll tells all waiting calls that this node will not learn their results.
func (t *tickets) failAll() {
	for ticket, all := range t.waiting {
		for _, ch := range all {
			close(ch)
		}
		delete(t.waiting, ticket)
	}
}

func (t *tickets) forget(ticket uint64, ch chan ending) {
	all := t.waiting[ticket]
	for i := range all {
		if all[i] == ch {
			t.waiting[ticket] = append(all[:i:i], all[i+1:]...)
			break
		}
	}
	if len(t.waiting[ticket]) == 0 {
		delete(t.waiting, ticket)
	}
}

// Await waits for the final result of the Reserve that waits under ticket. ErrNoTicket: no Reserve waits under it any more; propose the
// Reserve again under its request id to learn its result. *UnknownError: this node can no longer learn the result.
func (n *Node) Await(ctx context.Context, ticket uint64) (*logpb.Result, Position, error) {
	n.mu.Lock()
	if e, ok := n.tickets.ended[ticket]; ok {
		n.mu.Unlock()
		return e.result, e.at, nil
	}
	if !n.machine.State().Waiting(ticket) {
		n.mu.Unlock()
		return nil, Position{}, ErrNoTicket
	}
	ch := make(chan ending, 1)
	n.tickets.waiting[ticket] = append(n.tickets.waiting[ticket], ch)
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.tickets.forget(ticket, ch)
	}()
	lead := n.leading.Load()
	var lost <-chan struct{}
	if lead != nil {
		lost = lead.lost
	}
	select {
	case e, ok := <-ch:
		if !ok {
			return nil, Position{}, &UnknownError{Err: errors.New("the state was replaced by a restore or a snapshot")}
		}
		return e.result, e.at, nil
	case <-ctx.Done():
		return nil, Position{}, &UnknownError{Err: ctx.Err()}
	case <-lost:
		return nil, Position{}, &UnknownError{Err: errors.New("this node no longer leads")}
	case <-n.done:
		return nil, Position{}, &UnknownError{Err: errors.New("the node stopped")}
	}
}
