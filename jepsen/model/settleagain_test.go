package model

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestSettle_AgainHasNoEvent: a Settle that repeats an overrun charges nothing and has no event. So a waiter that is granted what the next
// command of the same entry returned is judged behind that command.
func TestSettle_AgainHasNoEvent(t *testing.T) {
	settle := func(lease uint64, change func(*logpb.Settle)) *logpb.Command {
		s := &logpb.Settle{Lease: lease, Fence: lease, Op: 1}
		change(s)
		return &logpb.Command{Kind: &logpb.Command_Settle{Settle: s}}
	}
	overrun := func() *logpb.Command {
		return settle(1, func(s *logpb.Settle) { s.Actual = []*logpb.Item{{Quota: "a", Amount: new(int64(2))}} })
	}
	quotas := &logpb.ApplyQuotas{Quotas: []*logpb.Quota{rate("a", "", 10, minute), rate("q", "", 3, minute)}}
	machine, judge := fsm.New(), New()
	var last fsm.Applied
	for i, commands := range [][]*logpb.Command{
		{{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: quotas}}},
		{reserve("h1", "a", 1, minute, consumes), reserve("h2", "q", 3, minute, consumes)},
		{overrun()},
		{reserve("h3", "q", 3, minute, waits)},
		{overrun(), settle(2, func(s *logpb.Settle) { s.Unspent = []*logpb.Item{{Quota: "q", Amount: new(int64(3))}} })},
	} {
		entry := &logpb.Entry{Version: fsm.EntryVersion, StampNs: sec + int64(i)*ms, Commands: commands}
		payload, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		last = machine.Apply(uint64(i+1), 1, payload)
		for _, v := range judge.Entry(entry, &last) {
			t.Errorf("%+v", v)
		}
	}
	if len(last.Results) != 2 || len(last.Results[0].GetSettled().GetOverrun()) != 1 || judge.Stats().WaitsGranted != 1 {
		t.Errorf("the last entry has %v, and %d waits were granted", last.Results, judge.Stats().WaitsGranted)
	}
}
