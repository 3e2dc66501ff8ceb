package rpc

import (
	"encoding/json"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestEnums_OfLogAndAPIAgree: enumerations are converted by number, so each number must mean the same on both sides.
func TestEnums_OfLogAndAPIAgree(t *testing.T) {
	for name, c := range map[string]struct{ log, api protoreflect.EnumDescriptor }{
		"reasons": {logpb.Reason(0).Descriptor(), quotav1.Reason(0).Descriptor()},
		"causes":  {logpb.Cause(0).Descriptor(), quotav1.Cause(0).Descriptor()},
		"phases":  {logpb.TaskPhase(0).Descriptor(), quotav1.TaskPhase(0).Descriptor()},
		"ends":    {logpb.TaskOutcome(0).Descriptor(), quotav1.TaskOutcome(0).Descriptor()},
		"sides":   {logpb.Side(0).Descriptor(), quotav1.Side(0).Descriptor()},
	} {
		for i := range c.log.Values().Len() {
			word := c.log.Values().Get(i)
			if other := c.api.Values().ByNumber(word.Number()); other == nil || other.Name() != word.Name() {
				t.Errorf("%s: %s is %v in the API", name, word.Name(), other)
			}
		}
	}
	events := map[effect.EventKind]quotav1.EventKind{
		effect.EventGranted: quotav1.EventKind_EVENT_KIND_GRANTED, effect.EventRefused: quotav1.EventKind_EVENT_KIND_REFUSED,
		effect.EventWaiting: quotav1.EventKind_EVENT_KIND_WAITING, effect.EventWaitEnded: quotav1.EventKind_EVENT_KIND_WAIT_ENDED,
		effect.EventReleased: quotav1.EventKind_EVENT_KIND_RELEASED, effect.EventExpired: quotav1.EventKind_EVENT_KIND_EXPIRED,
		effect.EventRevoked: quotav1.EventKind_EVENT_KIND_REVOKED, effect.EventCooldown: quotav1.EventKind_EVENT_KIND_COOLDOWN,
		effect.EventWindowClosed: quotav1.EventKind_EVENT_KIND_WINDOW_CLOSED,
		effect.EventResetLearned: quotav1.EventKind_EVENT_KIND_RESET_LEARNED,
		effect.EventCapped:       quotav1.EventKind_EVENT_KIND_CAPPED, effect.EventOverrun: quotav1.EventKind_EVENT_KIND_OVERRUN,
		effect.EventQuotaApplied: quotav1.EventKind_EVENT_KIND_QUOTA_APPLIED,
		effect.EventQuotaDeleted: quotav1.EventKind_EVENT_KIND_QUOTA_DELETED,
		effect.EventForecast:     quotav1.EventKind_EVENT_KIND_FORECAST, effect.EventOverride: quotav1.EventKind_EVENT_KIND_OVERRIDE,
		effect.EventReopened: quotav1.EventKind_EVENT_KIND_REOPENED, effect.EventBreaker: quotav1.EventKind_EVENT_KIND_BREAKER,
		effect.EventTaskBegun: quotav1.EventKind_EVENT_KIND_TASK_BEGUN, effect.EventTaskEnded: quotav1.EventKind_EVENT_KIND_TASK_ENDED,
		effect.EventTaskShelved: quotav1.EventKind_EVENT_KIND_TASK_SHELVED, effect.EventTaskRetried: quotav1.EventKind_EVENT_KIND_TASK_RETRIED,
		effect.EventBackPressure: quotav1.EventKind_EVENT_KIND_BACK_PRESSURE, effect.EventSequential: quotav1.EventKind_EVENT_KIND_SEQUENTIAL,
		effect.EventBaton: quotav1.EventKind_EVENT_KIND_BATON, effect.EventParallel: quotav1.EventKind_EVENT_KIND_PARALLEL,
		effect.EventReopenedByOperator: quotav1.EventKind_EVENT_KIND_REOPENED_BY_OPERATOR,
	}
	for inside, outside := range events {
		if int32(inside) != int32(outside) {
			t.Errorf("event %d is %s in the API", inside, outside)
		}
	}
	if len(events) != len(quotav1.EventKind_name)-1 {
		t.Errorf("%d events, the API has %d", len(events), len(quotav1.EventKind_name)-1)
	}
}

// TestCodes_CoverEachError: reasons from 100 on are errors and travel with a code; refusals are answers and have none.
func TestCodes_CoverEachError(t *testing.T) {
	for number, name := range quotav1.Reason_name {
		if _, coded := codes[quotav1.Reason(number)]; coded != (number >= 100) {
			t.Errorf("%s (%d) has a code: %v", name, number, coded)
		}
	}
}

// TestNoLeader_NamesKnownLeader: an error whose hint is to ask the leader must name the leader.
func TestNoLeader_NamesKnownLeader(t *testing.T) {
	ready := notAcceptedError(&raftnode.NotAcceptedError{Cause: raftnode.NotReady, Leader: "n1"})
	if info := infoOf(ready); !strings.Contains(ready.Message(), "not ready") || strings.Contains(info.Hint, "the leader") {
		t.Errorf("a leader that is not ready: %v, hint %q", ready, info.Hint)
	}
	for leader, want := range map[string]string{"": "no leader is known", "n2": "this node does not lead"} {
		err := notAcceptedError(&raftnode.NotAcceptedError{Cause: raftnode.NotLeader, Leader: leader})
		info := infoOf(err)
		if err.Message() != want || info.Reason != quotav1.Reason_REASON_NO_LEADER || !info.NotAccepted ||
			strings.Contains(info.Hint, "the leader") != (leader != "") {
			t.Errorf("leader %q: %v, hint %q", leader, err, info.Hint)
		}
	}
}

// TestRules_CoverEachRequest: each type of request has a rule in the table.
func TestRules_CoverEachRequest(t *testing.T) {
	requests := map[protoreflect.Name]bool{"RestoreRequest": true} // chunks of a backup, which the state machine checks
	for _, file := range []protoreflect.FileDescriptor{
		quotav1.File_quota_v1_quota_proto, quotav1.File_quota_v1_admin_proto, quotav1.File_quota_v1_task_proto,
	} {
		methods := file.Services().Get(0).Methods()
		for i := range methods.Len() {
			name := methods.Get(i).Input().Name()
			if _, known := rules[name]; !known && !requests[name] {
				t.Errorf("%s has no rule", name)
			}
			requests[name] = true
		}
	}
	for name := range rules {
		if !requests[name] {
			t.Errorf("a rule for %s, which nobody sends", name)
		}
	}
}

// FuzzDoor: any JSON is accepted or refused with a typed error. Nothing panics, and an accepted request becomes a command of the log.
func FuzzDoor(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"holder":"a","items":[{"quota":"q","amount":1}],"ttl":"30s","wait":"1s","class":"CLASS_CRITICAL"}`,
		`{"lease":"1","fence":1,"op":"1","actual":[{"quota":"q","amount":0}]}`,
		`{"quotas":[{"name":"q","window":{"limit":1,"every":"hour"},"headroom":0.5}]}`,
		`{"workflows":[{"name":"w","steps":[{"holder":"a"},{"holder":"b","after":["a"]},null]},null],"replaceWorkflows":true}`,
		`{"commands":[{"reserve":{}},{"report":{"signals":[null]}},{}]}`,
		`{"lease":1,"fence":1,"signals":[{"quota":"q","cause":"CAUSE_OK","resetAfter":"-1s","limit":-1}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, command := range []*quotav1.Command{
			{Kind: &quotav1.Command_Reserve{Reserve: decoded[quotav1.ReserveRequest](data)}},
			{Kind: &quotav1.Command_Consume{Consume: decoded[quotav1.ConsumeRequest](data)}},
			{Kind: &quotav1.Command_Settle{Settle: decoded[quotav1.SettleRequest](data)}},
			{Kind: &quotav1.Command_Release{Release: decoded[quotav1.ReleaseRequest](data)}},
			{Kind: &quotav1.Command_Renew{Renew: decoded[quotav1.RenewRequest](data)}},
			{Kind: &quotav1.Command_Withdraw{Withdraw: decoded[quotav1.WithdrawRequest](data)}},
			{Kind: &quotav1.Command_Report{Report: decoded[quotav1.ReportRequest](data)}},
		} {
			carried, err := batchCommand(command, anybody, 0)
			if (carried == nil) == (err == nil) {
				t.Fatalf("%v and %v", carried, err)
			}
			if err != nil && (infoOf(err) == nil || connect.CodeOf(err) != connect.CodeInvalidArgument) {
				t.Fatalf("%v", err)
			}
		}
		applied := decoded[quotav1.ApplyQuotasRequest](data)
		if validate(applied) == nil {
			for _, q := range applied.Quotas {
				if logQuota(q) == nil {
					t.Fatal(json.RawMessage(data))
				}
			}
			for _, w := range applied.Workflows {
				if def := logWorkflow(w); len(def.Steps) != len(w.Steps) {
					t.Fatal(json.RawMessage(data))
				}
			}
		}
	})
}

// decoded reads a message as the JSON codec does; one that it cannot read is empty except for its mark.
func decoded[T any, M interface {
	*T
	protoreflect.ProtoMessage
}](data []byte) M {
	message := M(new(T))
	_ = jsonCodec{}.Unmarshal(data, message)
	return message
}
