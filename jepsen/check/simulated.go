package check

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/raftnode/record"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Simulated is a run that happened in one process: nodes without an API, clients that propose commands.
type Simulated struct {
	// Applied are the entries that each node applied, over all its lives.
	Applied map[string][]*record.Line
	// Calls are the clients' calls.
	Calls []SimulatedCall
	// Seen are the events of watch streams, each stream in its order.
	Seen []SimulatedSeen
	// Members are the members after all acknowledged changes, Told the members as each of them reports them at the end.
	Members []Member
	Watched map[string][]Member
	// Ended are nodes that ended by themselves without having been removed, with the reason.
	Ended []string
	// Final are the states of the nodes at the end.
	Final []history.Final
	// Healed is when the last fault ended.
	Healed int64
	// Restores are the restores of backups.
	Restores []*history.Restore
}

// SimulatedCall is one attempt of a client at a node.
type SimulatedCall struct {
	Client, Node   string
	Sent, Returned int64
	// Command is the proposed command; nil for a read. Shown is the API's answer to a read, without its Meta.
	Command *logpb.Command
	Shown   proto.Message
	// Result, Term, Index and Now are the answer, for a wait that of its end; Index is 0 if there is none.
	Result      *logpb.Result
	Term, Index uint64
	Now         int64
	// NotAccepted says that the command was certainly not accepted; otherwise, without an answer, its outcome is unknown.
	NotAccepted bool
}

// SimulatedSeen is what a stream reported about one index. Without events it reports that everything up to the index was sent.
type SimulatedSeen struct {
	// Watcher owns the stream, Stream counts its streams, From is the requested first index.
	Watcher string
	Stream  int
	From    uint64
	Index   uint64
	Events  []effect.Event
}

// Member is a node of a cluster.
type Member struct {
	ID    string
	Votes bool
}

// members checks that each member reports exactly the acknowledged changes of membership, and that only removed nodes ended.
func (r *run) members() {
	byID := func(a, b Member) int { return cmp.Compare(a.ID, b.ID) }
	v := r.verdict("members", "A change of membership that was acknowledged stays; only who was removed ends.")
	want := slices.SortedFunc(slices.Values(r.simulated.Members), byID)
	for _, member := range want {
		v.Checked++
		if replied := slices.SortedFunc(slices.Values(r.simulated.Watched[member.ID]), byID); !slices.Equal(replied, want) {
			v.violate("%s tells of the members %v, acknowledged are %v", member.ID, replied, want)
		}
	}
	for _, end := range r.simulated.Ended {
		v.violate("ended by itself: %s", end)
	}
}

// RunSimulated judges a simulated run by the checkers that need no API.
func RunSimulated(s *Simulated) *Result {
	facts := &history.Facts{Mix: "simulated", Healed: s.Healed, Final: s.Final}
	for node := range s.Applied {
		facts.Nodes = append(facts.Nodes, node)
	}
	sort.Strings(facts.Nodes)
	r := &run{facts: facts, simulated: s, restores: s.Restores, verdicts: map[string]*Verdict{}}
	for i := range s.Calls {
		r.calls = append(r.calls, s.Calls[i].call())
	}
	sort.SliceStable(r.calls, func(i, j int) bool { return r.calls[i].Sent < r.calls[j].Sent })
	r.stats.Calls = len(r.calls)
	r.agreement()
	replayed := r.replay()
	r.answers(replayed)
	r.reads(replayed)
	r.uninvited(replayed)
	r.unanswered(replayed)
	r.realTime()
	r.leaders()
	r.clusterTime()
	r.tasks()
	r.watches(replayed)
	r.finalStates(replayed)
	r.members()
	r.recovery(r.verdict("service", "After the last fault every class is granted something within 10 s."))
	r.countSimulated(replayed)
	for _, v := range r.order {
		v.done()
	}
	return &Result{Facts: facts, Verdicts: r.order, Stats: r.stats}
}

// call converts a simulated call to the checkers' form.
func (s *SimulatedCall) call() *call {
	c := &call{Call: &history.Call{Client: s.Client, Target: s.Node, Sent: s.Sent, Returned: s.Returned}}
	var p part
	if s.Command == nil {
		c.Procedure = s.show(c)
	} else {
		c.Procedure, c.request = "Propose", simulatedRequest(s.Command)
		p.asked = logAsked(s.Command)
		p.id, p.identified = logID(s.Command)
	}
	if s.Index == 0 {
		c.Error = &history.Error{Text: "no answer", NotAccepted: s.NotAccepted}
		if s.NotAccepted {
			c.Error.Reason = int32(quotav1.Reason_REASON_NO_LEADER)
		}
	} else {
		p.meta = s.meta()
		if s.Result != nil {
			p.replied, p.left = logAnswer(s.Result, s.Now)
			c.response = simulatedResponse(s.Command, s.Result, s.Now)
		}
		if failure := s.Result.GetFailure(); failure != nil {
			c.Error = &history.Error{Text: failure.Message, Reason: int32(failure.Reason)}
		}
	}
	c.parts = []part{p}
	return c.timed()
}

func (s *SimulatedCall) meta() *quotav1.Meta {
	return &quotav1.Meta{Term: s.Term, Index: s.Index, ClusterTime: durationpb.New(time.Duration(s.Now)), Node: s.Node}
}

// show sets the response of a read, and returns the procedure of the API.
func (s *SimulatedCall) show(c *call) string {
	switch shown := s.Shown.(type) {
	case *quotav1.GetQuotaResponse:
		shown.Meta, c.response = s.meta(), shown
		return "GetQuota"
	case *quotav1.ListTasksResponse:
		shown.Meta, c.request, c.response = s.meta(), &quotav1.ListTasksRequest{}, shown
		return "ListTasks"
	case *quotav1.GetWorkflowResponse:
		shown.Meta, c.response = s.meta(), shown
		return "GetWorkflow"
	}
	return "GetQuota"
}

// countSimulated counts what the run covered.
func (r *run) countSimulated(rep *replayed) {
	r.stats.Judged = rep.judge
	r.stats.Expired, r.stats.Stale = rep.judge.Expired, rep.judge.DeadFences
	for _, c := range r.calls {
		switch {
		case c.highest() != 0:
			r.stats.Answered++
		case !c.Error.NotAccepted:
			r.stats.Unknown++
		}
	}
}
