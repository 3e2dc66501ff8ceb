package model

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// ownLine is a command of a token of reach *, in an entry of a version, and its outcome.
type ownLine struct {
	version uint32
	caller  string
	session uint64
	seq     uint64
	key     string
	kind    *logpb.Command
	lie     *logpb.Result
	broken  string
}

// TestSessions_BelongToTheirCallers: the model and the state machine have the same rule at each level, and the model finds a deviation.
func TestSessions_BelongToTheirCallers(t *testing.T) {
	opens := &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "x"}}}
	closes := &logpb.Command{Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}}
	asks := &logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: 1 << 50}}}
	other := &logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: 1 << 51}}}
	failure := func(reason logpb.Reason) *logpb.Result {
		return &logpb.Result{Kind: &logpb.Result_Failure{Failure: &logpb.Failure{Reason: reason}}}
	}
	unknown, reused := failure(logpb.Reason_REASON_UNKNOWN_SESSION), failure(logpb.Reason_REASON_SEQ_REUSED)
	done := &logpb.Result{Kind: &logpb.Result_Done{Done: &logpb.Done{}}}
	const before, since = levelOwnSessions - 1, levelOwnSessions
	for name, story := range map[string][]ownLine{
		"before, callers of one reach share": {
			{version: before, caller: "a", kind: opens},
			{version: before, caller: "a", session: 1, seq: 1, kind: asks},
			{version: before, caller: "b", session: 1, seq: 1, kind: asks},
			{version: before, caller: "a", key: "k", kind: asks},
			{version: before, caller: "b", key: "k", kind: other},
			{version: before, caller: "b", session: 1, kind: closes},
		},
		"since, none uses another's": {
			{version: since, caller: "a", kind: opens},
			{version: since, caller: "b", session: 1, seq: 1, kind: asks},
			{version: since, caller: "b", session: 1, kind: closes},
			{version: since, caller: "a", session: 1, seq: 1, kind: asks},
			{version: since, caller: "a", key: "k", kind: asks},
			{version: since, caller: "b", key: "k", kind: other},
			{version: since, caller: "a", key: "k", kind: other},
			{version: since, caller: "a", session: 1, kind: closes},
		},
		"what was made before is its caller's": {
			{version: before, caller: "a", kind: opens},
			{version: before, caller: "a", key: "k", kind: asks},
			{version: since, caller: "b", session: 1, seq: 1, kind: asks},
			{version: since, caller: "b", key: "k", kind: other},
			{version: since, caller: "a", key: "k", kind: asks},
			{version: since, caller: "a", key: "k", kind: other},
			{version: since, caller: "a", session: 1, seq: 1, kind: asks},
		},
		"another's request is carried out": {
			{version: since, caller: "a", kind: opens},
			{version: since, caller: "b", session: 1, seq: 1, kind: asks, lie: failure(logpb.Reason_REASON_UNKNOWN_TICKET), broken: "session"},
		},
		"another closes it": {
			{version: since, caller: "a", kind: opens}, {version: since, caller: "b", session: 1, kind: closes, lie: done, broken: "session"},
		},
		"its opener is refused": {
			{version: before, caller: "a", kind: opens},
			{version: since, caller: "a", session: 1, seq: 1, kind: asks, lie: unknown, broken: "session"},
		},
		"another's key": {
			{version: before, caller: "a", key: "k", kind: asks},
			{version: since, caller: "b", key: "k", kind: other, lie: reused, broken: "false-refusal"},
		},
		"its own key differs": {
			{version: before, caller: "a", key: "k", kind: asks},
			{version: since, caller: "a", key: "k", kind: other, lie: failure(logpb.Reason_REASON_UNKNOWN_TICKET), broken: "once"},
		},
	} {
		machine, judge := fsm.New(), New()
		for i, line := range story {
			command := proto.CloneOf(line.kind)
			command.By, command.Caller = "*", "token:"+line.caller
			command.Session, command.Seq, command.IdempotencyKey = line.session, line.seq, line.key
			entry := &logpb.Entry{Version: line.version, StampNs: int64(i+1) * mil, Commands: []*logpb.Command{command}}
			payload, err := proto.Marshal(entry)
			if err != nil {
				t.Fatal(err)
			}
			applied := machine.Apply(uint64(i+1), 1, payload)
			if line.lie != nil {
				applied.Results[0] = line.lie
			}
			violations := judge.Entry(entry, &applied)
			switch {
			case line.broken == "" && len(violations) > 0:
				t.Errorf("%s, line %d: %+v", name, i, violations)
			case line.broken != "" && (len(violations) == 0 || violations[0].Name != line.broken):
				t.Errorf("%s, line %d: want a violation of %q, got %+v", name, i, line.broken, violations)
			}
		}
	}
}
