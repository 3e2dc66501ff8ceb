package raftnode

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestTickets_RememberTheNewestResults: a result is remembered for calls that ask later, until as many others as there is room for have
// ended.
func TestTickets_RememberTheNewestResults(t *testing.T) {
	tickets, first := newTickets(), &logpb.Result{}
	tickets.end(1, first, Position{Index: 1})
	for ticket := range uint64(maxEnded - 1) {
		tickets.end(ticket+2, nil, Position{})
	}
	if got := tickets.ended[1]; got.result != first || got.at.Index != 1 {
		t.Errorf("the first one, with %d remembered: %+v", len(tickets.ended), got)
	}
	for ticket := range uint64(10) {
		tickets.end(maxEnded+1+ticket, nil, Position{})
	}
	if _, kept := tickets.ended[10]; kept || len(tickets.ended) != maxEnded || len(tickets.order) != maxEnded {
		t.Errorf("%d are remembered, in an order of %d", len(tickets.ended), len(tickets.order))
	}
	if _, kept := tickets.ended[11]; !kept {
		t.Error("one that there is room for is forgotten")
	}
}
