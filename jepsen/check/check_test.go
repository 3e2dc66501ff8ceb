package check

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/workload"
	"github.com/quotad/quotad/raftnode/record"
	"github.com/quotad/quotad/rpc/quotav1"
)

// good is a run of three nodes and one client without a flaw: entries 100 ms apart, each with one command. The command before the last
// waits for a slot, and the last frees it.
func good(t *testing.T) *Simulated {
	t.Helper()
	commands := []*logpb.Command{
		{IdempotencyKey: "quotas", Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
			{Name: "q", Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: 100, PerNs: int64(time.Minute)}}},
			{Name: "slot", Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: 1}}},
		}, Holders: []*logpb.HolderRule{{Pattern: "h", Class: 0}}, ReplaceHolders: true}}},
		{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "h"}}},
	}
	for seq := uint64(1); seq <= 20; seq++ {
		ask := &logpb.Reserve{
			Holder: "h", Items: []*logpb.Item{{Quota: "q", Amount: proto.Int64(1)}}, TtlNs: int64(time.Second), Class: new(int32(seq % 3)),
		}
		commands = append(commands, &logpb.Command{Session: 1, Seq: seq, Kind: &logpb.Command_Reserve{Reserve: ask}})
	}
	for seq := uint64(21); seq <= 22; seq++ {
		ask := &logpb.Reserve{Holder: "h", Items: []*logpb.Item{{Quota: "slot"}}, TtlNs: int64(time.Minute), WaitNs: int64(time.Minute)}
		commands = append(commands, &logpb.Command{Session: 1, Seq: seq, Kind: &logpb.Command_Reserve{Reserve: ask}})
	}
	release := &logpb.Release{}
	commands = append(commands, &logpb.Command{Session: 1, Seq: 23, Kind: &logpb.Command_Release{Release: release}})
	begin := &logpb.BeginTask{Task: "t", Holder: "h", TtlNs: int64(time.Minute)}
	end := &logpb.EndTask{Task: "t", Outcome: logpb.TaskOutcome_TASK_OUTCOME_DONE}
	commands = append(commands, &logpb.Command{Session: 1, Seq: 24, Kind: &logpb.Command_BeginTask{BeginTask: begin}},
		&logpb.Command{Session: 1, Seq: 25, Kind: &logpb.Command_EndTask{EndTask: end}})
	s := &Simulated{Applied: map[string][]*record.Line{}}
	machine := fsm.New()
	for i, command := range commands {
		index, at := uint64(i+1), int64(i+1)*int64(100*time.Millisecond)
		payload, err := proto.Marshal(&logpb.Entry{Version: fsm.EntryVersion, StampNs: at, Commands: []*logpb.Command{command}})
		if err != nil {
			t.Fatal(err)
		}
		applied := machine.Apply(index, 1, payload)
		for _, node := range []string{"n1", "n2", "n3"} {
			s.Applied[node] = append(s.Applied[node], &record.Line{Index: index, Term: 1, Payload: payload, Outcome: record.Digest(&applied)})
		}
		s.Calls = append(s.Calls, SimulatedCall{
			Client: "c", Node: "n1", Sent: at - 1_000_000, Returned: at + 1_000_000, Command: command, Result: applied.Results[0],
			Term: 1, Index: index, Now: at,
		})
		if granted := applied.Results[0].GetGranted(); granted != nil {
			release.Lease, release.Fence = granted.Lease, granted.Fence
		}
		if begun := applied.Results[0].GetTaskBegun(); begun != nil {
			end.Fence = begun.Fence
		}
		if len(applied.Events) > 0 {
			s.Seen = append(s.Seen, SimulatedSeen{Watcher: "w", Stream: 1, From: 1, Index: index, Events: slices.Clone(applied.Events)})
		}
		for _, event := range applied.Events {
			if event.Ticket != 0 && event.Result != nil { // the waiting request ends now
				waited := &s.Calls[i-1]
				waited.Result, waited.Index, waited.Now, waited.Returned = event.Result, index, at, at+2_000_000
			}
		}
	}
	view, _ := machine.State().Quota("slot", machine.State().Clock())
	s.Calls = append(s.Calls, SimulatedCall{
		Client: "c", Node: "n1", Sent: int64(time.Minute), Returned: int64(time.Minute) + 1, Term: 1, Index: uint64(len(commands)),
		Now: view.Held,
		Shown: &quotav1.GetQuotaResponse{Quota: &quotav1.QuotaStatus{
			Definition: &quotav1.Quota{Name: "slot"}, Usable: view.Usable, Held: view.Held, Leases: view.Leases, Waiting: view.Waiting,
			Consumed: view.Consumed, Available: view.Available,
		}},
	})
	ledger, whole := machine.State().Hash()
	s.Members, s.Watched = []Member{{"n3", false}, {"n1", true}, {"n2", true}}, map[string][]Member{}
	for _, node := range []string{"n1", "n2", "n3"} {
		s.Watched[node] = []Member{{"n1", true}, {"n2", true}, {"n3", false}}
		s.Final = append(s.Final, history.Final{
			Node: node, Index: uint64(len(commands)), Ledger: fmt.Sprintf("%x", ledger), Whole: fmt.Sprintf("%x", whole),
		})
	}
	return s
}

func failed(result *Result) []string {
	var names []string
	for _, v := range result.Verdicts {
		if v.Outcome == Fail {
			names = append(names, v.Checker)
		}
	}
	return names
}

func TestRunSimulated_PassesGoodRun(t *testing.T) {
	result := RunSimulated(good(t))
	for _, v := range result.Verdicts {
		if v.Outcome != Pass {
			t.Errorf("%s: %s %v", v.Checker, v.Outcome, v.Examples)
		}
	}
}

// TestRunSimulated_FindsEachFlaw: after one change to a good run, the checker that guards the changed part fails.
func TestRunSimulated_FindsEachFlaw(t *testing.T) {
	for name, c := range map[string]struct {
		caught string
		spoil  func(s *Simulated)
	}{
		"another entry on one node":      {"agreement", func(s *Simulated) { line(s, "n2", 5).Payload = s.Applied["n2"][6].Payload }},
		"another outcome on one node":    {"agreement", func(s *Simulated) { line(s, "n3", 5).Outcome = "00" }},
		"another term on one node":       {"agreement", func(s *Simulated) { line(s, "n3", 5).Term = 2 }},
		"a term that falls":              {"agreement", func(s *Simulated) { each(s, 9, func(l *record.Line) { l.Term = 2 }) }},
		"an outcome nobody can reach":    {"replay", func(s *Simulated) { each(s, 9, func(l *record.Line) { l.Outcome = "00" }) }},
		"an entry that got lost":         {"answers", func(s *Simulated) { drop(s, 9) }},
		"an answer from elsewhere":       {"answers", func(s *Simulated) { s.Calls[7].Index = 9 }},
		"an answer of another term":      {"answers", func(s *Simulated) { s.Calls[7].Term = 2 }},
		"another's answer":               {"answers", func(s *Simulated) { s.Calls[7].Result = s.Calls[8].Result }},
		"more time left than there is":   {"answers", func(s *Simulated) { later(s.Calls[7].Result) }},
		"a refusal that was carried out": {"refusals", func(s *Simulated) { s.Calls[7].Index, s.Calls[7].NotAccepted = 0, true }},
		"a command that nobody sent":     {"invited", func(s *Simulated) { s.Calls = slices.Delete(s.Calls, 7, 8) }},
		"an effect before its cause": {
			"real-time", func(s *Simulated) { s.Calls[7].Sent += int64(time.Second); s.Calls[7].Returned += int64(time.Second) },
		},
		"another lease for the same request": {"once", func(s *Simulated) { again(s).Result.GetGranted().Lease++ }},
		"the end of another's wait":          {"answers", func(s *Simulated) { s.Calls[waits].Result = s.Calls[waits-1].Result }},
		"the end of a wait before it": {
			"answers", func(s *Simulated) { s.Calls[waits].Index--; s.Calls[waits].Now -= int64(100 * time.Millisecond) },
		},
		"a wait that ends unheard": {
			"answers", func(s *Simulated) { s.Calls[waits].Result = refusedBy(logpb.Reason_REASON_WAIT_EXPIRED) },
		},
		"a read of what is not":  {"reads", func(s *Simulated) { s.Calls[waits+4].Shown = proto.CloneOf(shownHeld) }},
		"two attempts at a time": {"tasks", func(s *Simulated) { s.Calls = append(s.Calls, begunBeside(s.Calls[waits+2])) }},
		"a task that is done begins": {"tasks", func(s *Simulated) {
			beside := begunBeside(s.Calls[waits+2])
			beside.Sent, beside.Returned = s.Calls[waits+3].Returned+1, s.Calls[waits+3].Returned+2
			s.Calls = append(s.Calls, beside)
		}},
		"a stream with a hole":             {"watch", func(s *Simulated) { s.Seen = slices.Delete(s.Seen, 4, 5) }},
		"a class that gets nothing more":   {"service", func(s *Simulated) { s.Healed = s.Calls[21].Sent }},
		"a class that is served late":      {"service", func(s *Simulated) { s.Healed = -int64(12 * time.Second) }},
		"two leaders":                      {"one-leader", func(s *Simulated) { s.Calls[7].Node = "n2" }},
		"time that runs too fast":          {"cluster-time", func(s *Simulated) { hurry(s) }},
		"a node that differs at the end":   {"converged", func(s *Simulated) { s.Final[1].Whole = "00" }},
		"a vote that one does not know of": {"members", func(s *Simulated) { s.Watched["n2"][2].Votes = true }},
		"a member that one does not have":  {"members", func(s *Simulated) { s.Watched["n3"] = s.Watched["n3"][1:] }},
		"a member that is not there":       {"members", func(s *Simulated) { delete(s.Watched, "n3") }},
		"a node that ended":                {"members", func(s *Simulated) { s.Ended = []string{"n2: removed"} }},
		"a node that is silent":            {"converged", func(s *Simulated) { s.Final[1].Error = "away" }},
	} {
		t.Run(name, func(t *testing.T) {
			s := good(t)
			c.spoil(s)
			if names := failed(RunSimulated(s)); !slices.Contains(names, c.caught) {
				t.Errorf("%s did not find it, but %v", c.caught, names)
			}
		})
	}
}

// waits is the index of the waiting call in the good run.
const waits = 23

// again repeats the answer of a call, for the caller to change.
func again(s *Simulated) *SimulatedCall {
	repeated := s.Calls[7]
	repeated.Result = proto.CloneOf(repeated.Result)
	s.Calls = append(s.Calls, repeated)
	return &s.Calls[len(s.Calls)-1]
}

// shownHeld is a read that shows a held slot, which is free at the end.
var shownHeld = &quotav1.GetQuotaResponse{Quota: &quotav1.QuotaStatus{
	Definition: &quotav1.Quota{Name: "slot"}, Usable: 1, Held: 1, Leases: 7,
}}

// begunBeside is a second attempt of a task, concurrent with a first one, under a request of its own.
func begunBeside(first SimulatedCall) SimulatedCall {
	first.Command, first.Result = proto.CloneOf(first.Command), proto.CloneOf(first.Result)
	first.Command.Seq = 99
	first.Result.GetTaskBegun().Fence++
	first.Result.GetTaskBegun().Attempt++
	first.Sent, first.Returned = first.Returned+1, first.Returned+2
	return first
}

func refusedBy(reason logpb.Reason) *logpb.Result {
	return &logpb.Result{Kind: &logpb.Result_Refusal{Refusal: &logpb.Refusal{Reason: reason}}}
}

func line(s *Simulated, node string, index int) *record.Line {
	copied := *s.Applied[node][index]
	s.Applied[node][index] = &copied
	return &copied
}

func each(s *Simulated, index int, change func(*record.Line)) {
	for node := range s.Applied {
		change(line(s, node, index))
	}
}

func drop(s *Simulated, index int) {
	for node := range s.Applied {
		s.Applied[node] = slices.Delete(s.Applied[node], index, index+1)
	}
}

func later(result *logpb.Result) { result.GetGranted().DeadlineNs += int64(time.Second) }

// hurry makes the clients' clocks run at half speed, so that the cluster's is twice as fast.
func hurry(s *Simulated) {
	for i := range s.Calls {
		s.Calls[i].Sent /= 2
		s.Calls[i].Returned /= 2
	}
}

// folderOf makes a run's folder with one file.
func folderOf(t *testing.T, from, name string) history.Dir {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return history.Dir(dir)
}

func newRun(dir history.Dir) *run {
	return &run{dir: dir, facts: &history.Facts{}, verdicts: map[string]*Verdict{}}
}

// TestProvider_FailsLateAllowances: the provider's log of a run whose client sent calls although their allowances had arrived too late (mix
// default, seed 3): 306 in five seconds.
func TestProvider_FailsLateAllowances(t *testing.T) {
	r := newRun(folderOf(t, "testdata/late-allowances/spends.jsonl", "spends.jsonl"))
	r.provider(r.spends())
	if v := r.verdict("provider-rate", ""); v.Outcome != Fail || v.Count != 6 || r.stats.ProviderPeak != 306 {
		t.Errorf("%+v, peak %d", v, r.stats.ProviderPeak)
	}
}

func TestProvider_CountsSlots(t *testing.T) {
	for name, c := range map[string]struct {
		calls int
		want  Outcome
	}{"as many as there are": {workload.ProviderSlots, ""}, "one more": {workload.ProviderSlots + 1, Fail}} {
		dir := history.Dir(t.TempDir())
		spends, err := history.Create[history.Spend](dir.Spends())
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.calls {
			spends.Write(&history.Spend{Quota: "provider/slots", Began: int64(i), Ended: 100})
		}
		spends.Write(&history.Spend{Quota: "provider/slots", Began: 100, Ended: 200}) // begins as the others end
		if err := spends.Close(); err != nil {
			t.Fatal(err)
		}
		r := newRun(dir)
		r.slots(r.spends())
		if v := r.verdict("provider-slots", ""); v.Outcome != c.want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestWatch_Streams: which gaps a stream may have, and which not.
func TestWatch_Streams(t *testing.T) {
	event := func(lease uint64) effect.Event { return effect.Event{Kind: effect.EventExpired, Lease: lease} }
	rep := &replayed{happened: map[uint64][]effect.Event{3: {event(1)}, 5: {event(2), event(3)}, 9: {event(4)}}}
	replied := func(index uint64, leases ...uint64) *quotav1.WatchResponse {
		message := &quotav1.WatchResponse{Meta: &quotav1.Meta{Index: index}}
		for _, lease := range leases {
			e := event(lease)
			message.Events = append(message.Events, &quotav1.Event{Kind: quotav1.EventKind(e.Kind), Lease: e.Lease})
		}
		return message
	}
	partly := func(index uint64, leases ...uint64) *quotav1.WatchResponse {
		message := replied(index, leases...)
		message.More = true
		return message
	}
	for name, c := range map[string]struct {
		from     uint64
		messages []*quotav1.WatchResponse
		want     Outcome
	}{
		"all":                  {1, []*quotav1.WatchResponse{replied(3, 1), replied(5, 2, 3), replied(7), replied(9, 4)}, ""},
		"from now on":          {0, []*quotav1.WatchResponse{replied(5, 2, 3), replied(9, 4)}, ""},
		"a hole":               {1, []*quotav1.WatchResponse{replied(3, 1), replied(9, 4)}, Fail},
		"a hole at first":      {2, []*quotav1.WatchResponse{replied(5, 2, 3)}, Fail},
		"hidden by a mark":     {1, []*quotav1.WatchResponse{replied(3, 1), replied(7), replied(9, 4)}, Fail},
		"twice":                {1, []*quotav1.WatchResponse{replied(3, 1), replied(3, 1)}, Fail},
		"backwards":            {1, []*quotav1.WatchResponse{replied(3, 1), replied(5, 2, 3), replied(3, 1)}, Fail},
		"half of an index":     {1, []*quotav1.WatchResponse{replied(3, 1), replied(5, 2)}, Fail},
		"another order":        {1, []*quotav1.WatchResponse{replied(3, 1), replied(5, 3, 2)}, Fail},
		"another lease":        {1, []*quotav1.WatchResponse{replied(3, 7)}, Fail},
		"in parts":             {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2), replied(5, 3), replied(9, 4)}, ""},
		"a part, cut off":      {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2)}, ""},
		"from now on, a part":  {0, []*quotav1.WatchResponse{partly(5, 2), replied(5, 3)}, ""},
		"a part twice":         {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2), partly(5, 2)}, Fail},
		"no second part":       {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2), replied(9, 4)}, Fail},
		"a mark for a part":    {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2), replied(5)}, Fail},
		"more than there is":   {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2, 3)}, Fail},
		"too much in a part":   {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2, 3, 4, 5)}, Fail},
		"an empty part":        {1, []*quotav1.WatchResponse{replied(3, 1), partly(5), replied(5, 2, 3)}, Fail},
		"after the whole":      {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2), replied(5, 3), replied(5, 3)}, Fail},
		"a part of the past":   {1, []*quotav1.WatchResponse{replied(3, 1), replied(5, 2, 3), partly(3, 1)}, Fail},
		"a part of the same":   {1, []*quotav1.WatchResponse{replied(3, 1), replied(5, 2, 3), partly(5, 2)}, Fail},
		"a part after a hole":  {1, []*quotav1.WatchResponse{replied(3, 1), partly(9, 4)}, Fail},
		"a part of another":    {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 7)}, Fail},
		"the end of another":   {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2), replied(5, 7)}, Fail},
		"less than there were": {1, []*quotav1.WatchResponse{replied(3, 1), partly(5, 2), replied(7)}, Fail},
	} {
		f := &follower{v: &Verdict{}, rep: rep, indices: []uint64{3, 5, 9}, from: c.from}
		for _, message := range c.messages {
			f.next(message)
		}
		if f.v.Outcome != c.want {
			t.Errorf("%s: %+v", name, f.v)
		}
	}
}

// TestLinear_Histories: possible and impossible histories of a few slots, with expiry and unknown outcomes.
func TestLinear_Histories(t *testing.T) {
	const ms = int64(time.Millisecond)
	ttl := int64(workload.LinearTTL)
	reserve := func(call int64, replied string, lease uint64) porcupine.Operation {
		return porcupine.Operation{
			Input: linearAsked{what: "reserve", call: call, ret: call + ms, least: workload.LinearTTL * 99 / 100}, Call: call, Return: call + ms,
			Output: linearAnswer{what: replied, lease: lease},
		}
	}
	release := func(call int64, lease uint64, replied string) porcupine.Operation {
		return porcupine.Operation{
			Input: linearAsked{what: "release", lease: lease, call: call, ret: call + ms}, Call: call, Return: call + ms,
			Output: linearAnswer{what: replied},
		}
	}
	read := func(call, free int64) porcupine.Operation {
		return porcupine.Operation{
			Input: linearAsked{what: "look", call: call, ret: call + ms}, Call: call, Return: call + ms,
			Output: linearAnswer{what: "sees", free: free},
		}
	}
	three := []porcupine.Operation{reserve(0, "granted", 1), reserve(2*ms, "granted", 2), reserve(4*ms, "granted", 3)}
	for name, c := range map[string]struct {
		more []porcupine.Operation
		want bool
	}{
		"full":                       {[]porcupine.Operation{reserve(6*ms, "refused", 0), read(8*ms, 0)}, true},
		"a fourth":                   {[]porcupine.Operation{reserve(6*ms, "granted", 4)}, false},
		"released":                   {[]porcupine.Operation{release(6*ms, 2, "released"), read(8*ms, 1), reserve(10*ms, "granted", 4)}, true},
		"released twice":             {[]porcupine.Operation{release(6*ms, 2, "released"), release(8*ms, 2, "released")}, false},
		"a stale read":               {[]porcupine.Operation{release(6*ms, 2, "released"), read(8*ms, 0)}, false},
		"refused though one is free": {[]porcupine.Operation{release(6*ms, 2, "released"), reserve(8*ms, "refused", 0)}, false},
		"one ended by itself":        {[]porcupine.Operation{reserve(ttl+10*ms, "granted", 4)}, true},
		"one ended too early":        {[]porcupine.Operation{reserve(ttl/2, "granted", 4)}, false},
		"dead, its slot in grace":    {[]porcupine.Operation{release(ttl+10*ms, 1, "stale"), read(ttl+12*ms, 0)}, true},
		"dead too early":             {[]porcupine.Operation{release(ttl/2, 1, "stale")}, false},
		"alive without an end":       {[]porcupine.Operation{read(int64(2*time.Minute), 0)}, false},
		"an open outcome": {[]porcupine.Operation{{
			Input: linearAsked{what: "release", lease: 1, call: 6 * ms, ret: 1 << 62}, Call: 6 * ms, Return: 1 << 62,
			Output: linearAnswer{what: "unknown"},
		}, read(8*ms, 1)}, true},
	} {
		if got := porcupine.CheckOperations(linearModel().ToModel(), slices.Concat(three, c.more)); got != c.want {
			t.Errorf("%s: linearizable %v", name, got)
		}
	}
}

func TestService_FindsOutage(t *testing.T) {
	second := int64(time.Second)
	answered := func(at int64, class quotav1.Class) *call {
		return &call{
			Call:     &history.Call{Procedure: "Reserve", Sent: at, Returned: at + 1},
			response: &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Lease{Lease: &quotav1.Lease{Class: class}}},
		}
	}
	all := func(at int64) []*call {
		return []*call{
			answered(at, quotav1.Class_CLASS_CRITICAL), answered(at+1, quotav1.Class_CLASS_STANDARD), answered(at+2, quotav1.Class_CLASS_BACKGROUND),
		}
	}
	for name, c := range map[string]struct {
		calls  []*call
		faults []*history.Fault
		want   Outcome
	}{
		"served": {
			slices.Concat(all(0), all(11*second), all(14*second)),
			[]*history.Fault{{Kind: "kill-all", Unavailable: true, Began: second, Ended: 9 * second}},
			"",
		},
		"a hole": {slices.Concat(all(0), all(11*second)), []*history.Fault{{Kind: "kill-leader", Began: second, Ended: 9 * second}}, Fail},
		"two of three away at a time": {slices.Concat(all(0), all(8*second), all(11*second), all(14*second)), []*history.Fault{
			{Kind: "kill-leader", Targets: []string{"n1"}, Began: second, Ended: 6 * second},
			{Kind: "partition-follower", Targets: []string{"n2>n1", "n1>n2", "n2>n3", "n3>n2"}, Began: 2 * second, Ended: 7 * second},
		}, ""},
		"two of three away one after the other": {slices.Concat(all(0), all(8*second), all(11*second), all(14*second)), []*history.Fault{
			{Kind: "stalled-sync", Targets: []string{"n1"}, Began: second, Ended: 3 * second},
			{Kind: "failing-sync-follower", Targets: []string{"n2"}, Began: 4*second + second/2, Ended: 9 * second},
		}, Fail},
		"one away, a link cut": {slices.Concat(all(0), all(8*second), all(11*second), all(14*second)), []*history.Fault{
			{Kind: "kill-leader", Targets: []string{"n1"}, Began: second, Ended: 7 * second},
			{Kind: "partition-ring", Targets: []string{"n2>n3", "n3>n2"}, Began: second, Ended: 7 * second},
		}, Fail},
		"late after healing": {slices.Concat(all(4*second), all(9*second), all(13*second), all(17*second), all(21*second))[:7], nil, Fail},
	} {
		r := newRun("")
		r.facts.Healed, r.facts.Nodes = 10*second, []string{"n1", "n2", "n3"}
		r.calls, r.faults = c.calls, c.faults
		r.liveness()
		if v := r.verdict("service", ""); v.Outcome != c.want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestResources_FindLeaks: the checker finds a process that keeps goroutines, descriptors or memory after the workload.
func TestResources_FindLeaks(t *testing.T) {
	fresh := []history.Usage{
		{Node: "n1", Goroutines: 30, Descriptors: 25, Heap: 8 << 20}, {Node: "n2", Goroutines: 28, Descriptors: 24, Heap: 7 << 20},
	}
	for name, c := range map[string]struct {
		usage history.Usage
		want  Outcome
	}{
		"as before":   {history.Usage{Node: "n2", Goroutines: 33, Descriptors: 30, Heap: 32 << 20}, Pass},
		"goroutines":  {history.Usage{Node: "n2", Goroutines: 44, Descriptors: 25, Heap: 8 << 20}, Fail},
		"descriptors": {history.Usage{Node: "n2", Goroutines: 30, Descriptors: 40, Heap: 8 << 20}, Fail},
		"memory":      {history.Usage{Node: "n2", Goroutines: 30, Descriptors: 25, Heap: 1 << 30}, Fail},
		"nothing":     {history.Usage{}, Fail},
	} {
		r := newRun("")
		r.facts = &history.Facts{Fresh: fresh, Final: []history.Final{{Node: "n1", Usage: fresh[0]}, {Node: "n2", Usage: c.usage}}}
		r.resources()
		v := r.verdicts["resources"]
		v.done()
		if v.Outcome != c.want {
			t.Errorf("%s: %s %v", name, v.Outcome, v.Examples)
		}
	}
}

// TestSecrets_FindsTokenInLog: the checker finds the token in a node's log; it does not judge a run without a token.
func TestSecrets_FindsTokenInLog(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	judge := func() Outcome {
		r := newRun(history.Dir(dir))
		r.secrets()
		v := r.verdicts["secrets"]
		v.done()
		return v.Outcome
	}
	write("logs/n1.log", "all is well")
	if got := judge(); got != Inconclusive {
		t.Errorf("without a secret: %s", got)
	}
	write("canary/secret", "qtd_canary_3Qm5ZqJ9yWn0Yw8b2u7d")
	if got := judge(); got != Pass {
		t.Errorf("kept: %s", got)
	}
	write("logs/n1.log", "who is qtd_canary_3Qm5ZqJ9yWn0Yw8b2u7d?")
	if got := judge(); got != Fail {
		t.Errorf("logged: %s", got)
	}
}

// TestSteady_FindsUncausedFaults: the checker finds an election without a cause, and an unknown outcome. A call that a client canceled
// after another node's answer does not count.
func TestSteady_FindsUncausedFaults(t *testing.T) {
	ended := func(request string, sent, returned int64, err *history.Error) *call {
		return &call{Call: &history.Call{Client: "c", Procedure: "Batch", Request: []byte(request), Sent: sent, Returned: returned, Error: err}}
	}
	canceled := &history.Error{Text: "context canceled", Canceled: true}
	slow := ended("a", 10, 40, canceled)
	const end = 2 * afterthought
	for name, c := range map[string]struct {
		terms int
		calls []*call
		want  Outcome
	}{
		"steady":                      {1, nil, Pass},
		"an election":                 {2, nil, Fail},
		"a lost answer":               {1, []*call{ended("a", 10, 99, &history.Error{Text: "timeout"})}, Fail},
		"cut off at the end":          {1, []*call{ended("a", 10, end+1, canceled)}, Pass},
		"given up for another answer": {1, []*call{slow, ended("a", 30, 40, nil)}, Pass},
		"given up for a refusal": {
			1, []*call{slow, ended("a", 30, 40, &history.Error{Reason: int32(quotav1.Reason_REASON_STALE_FENCE)})}, Pass,
		},
		"never connected, and given up": {1, []*call{
			ended("a", 10, 40, &history.Error{Text: "operation was canceled", Canceled: true, NotSent: true}), ended("a", 30, 40, nil),
		}, Pass},
		"given up for nothing":           {1, []*call{slow}, Fail},
		"given up before the answer":     {1, []*call{slow, ended("a", 30, 41, nil)}, Fail},
		"given up as the answer came":    {1, []*call{ended("a", 10, 40, canceled), ended("a", 5, 9, nil)}, Pass},
		"given up long after the answer": {1, []*call{ended("a", 10, 10+afterthought, canceled), ended("a", 5, 9, nil)}, Fail},
		"given up for another request's": {1, []*call{slow, ended("b", 30, 40, nil)}, Fail},
		"given up for nobody's answer": {1, []*call{
			slow, ended("a", 30, 40, &history.Error{Reason: int32(quotav1.Reason_REASON_NO_LEADER), NotAccepted: true}),
		}, Fail},
		"out of time next to an answer": {1, []*call{ended("a", 10, 40, &history.Error{Text: "deadline"}), ended("a", 30, 40, nil)}, Fail},
	} {
		r := newRun("")
		r.facts = &history.Facts{Mix: quiet, Ended: end}
		r.calls, r.stats.Terms, r.stats.Answered = c.calls, c.terms, 5000
		r.exercised(&replayed{})
		v := r.verdicts["steady"]
		v.done()
		if v.Outcome != c.want {
			t.Errorf("%s: %s %v", name, v.Outcome, v.Examples)
		}
	}
}
