package raftnode

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestQueue_KnowsEveryKind lists the treatment of each kind of command. A new kind fails the test until two decisions are made: whether an
// operator's goes before the callers' lines, and whether a node with a low disk refuses it.
func TestQueue_KnowsEveryKind(t *testing.T) {
	type whose struct{ first, takes, grows bool }
	operators, taking, opens, holders := whose{first: true}, whose{takes: true, grows: true}, whose{grows: true}, whose{}
	table := map[protoreflect.Name]whose{
		"reserve": taking, "begin_task": taking, "open_session": opens,
		"consume": holders, "settle": holders, "release": holders, "renew": holders, "withdraw": holders, "report": holders,
		"close_session": holders, "renew_task": holders, "end_task": holders,
		"apply_quotas": operators, "delete_quota": operators, "delete_workflow": operators, "revoke_lease": operators,
		"reopen_quota": operators, "reset_clock": operators, "set_override": operators, "set_limits": operators,
		"retry_task": operators, "forget_task": operators,
		"put_member": operators, "delete_member": operators, "found": operators, "raise_epoch": operators,
	}
	kinds := (*logpb.Command)(nil).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		command := &logpb.Command{Operator: true}
		command.ProtoReflect().Mutable(kinds.Get(i))
		want, known := table[kinds.Get(i).Name()]
		commands := []*logpb.Command{command}
		got := whose{first: goesFirst(commands), takes: takes(commands), grows: grows(commands)}
		if !known || got != want {
			t.Errorf("%s: %+v, and the table says %+v (%t)", kinds.Get(i).Name(), got, want, known)
		}
		if command.Operator = false; goesFirst(commands) {
			t.Errorf("%s of a holder goes before the lines", kinds.Get(i).Name())
		}
	}
	if len(table) != kinds.Len() {
		t.Errorf("%d kinds, and the table has %d", kinds.Len(), len(table))
	}
}
