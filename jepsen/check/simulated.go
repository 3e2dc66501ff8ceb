package check

import (
	"sort"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/raftnode/record"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Simulated is a run that happened in one process: nodes without an API, clients that propose commands.
type Simulated struct {
	// Applied is what each node applied, over all its lives.
	Applied map[string][]*record.Line
	// Calls are what clients did.
	Calls []SimulatedCall
	// Final is how the nodes were at the end.
	Final []history.Final
	// Healed is when the last fault ended.
	Healed int64
}

// SimulatedCall is one attempt of a client at a node.
type SimulatedCall struct {
	Client, Node   string
	Sent, Returned int64
	// Command is what was proposed; nil for a read.
	Command *logpb.Command
	// Result, Term, Index and Now are the answer; Index is 0 where there is none.
	Result      *logpb.Result
	Term, Index uint64
	Now         int64
	// NotAccepted says that the command was certainly not accepted; otherwise, without an answer, its outcome is open.
	NotAccepted bool
}

// RunSimulated judges a simulated run by the checkers that need no API.
func RunSimulated(s *Simulated) *Result {
	facts := &history.Facts{Mix: "simulated", Healed: s.Healed, Final: s.Final}
	for node := range s.Applied {
		facts.Nodes = append(facts.Nodes, node)
	}
	sort.Strings(facts.Nodes)
	r := &run{facts: facts, simulated: s, verdicts: map[string]*Verdict{}}
	for i := range s.Calls {
		r.calls = append(r.calls, s.Calls[i].call())
	}
	sort.SliceStable(r.calls, func(i, j int) bool { return r.calls[i].Sent < r.calls[j].Sent })
	r.stats.Calls = len(r.calls)
	r.agreement()
	replayed := r.replay()
	r.answers(replayed)
	r.uninvited(replayed)
	r.unanswered(replayed)
	r.realTime()
	r.leaders()
	r.clusterTime()
	r.finalStates(replayed)
	r.countSimulated(replayed)
	for _, v := range r.order {
		v.done()
	}
	return &Result{Facts: facts, Verdicts: r.order, Stats: r.stats}
}

// call puts a simulated call into the checkers' form.
func (s *SimulatedCall) call() *call {
	c := &call{Call: &history.Call{Client: s.Client, Target: s.Node, Sent: s.Sent, Returned: s.Returned, Procedure: "Propose"}}
	var p part
	if s.Command == nil {
		c.Procedure = "GetQuota"
	} else {
		p.asked = logAsked(s.Command)
		p.id, p.identified = logID(s.Command)
	}
	if s.Index == 0 {
		c.Error = &history.Error{Text: "no answer", NotAccepted: s.NotAccepted}
	} else {
		p.meta = &quotav1.Meta{Term: s.Term, Index: s.Index, ClusterTime: durationpb.New(time.Duration(s.Now)), Node: s.Node}
		if s.Result != nil {
			p.told, p.left = logTold(s.Result, s.Now)
		}
	}
	c.parts = []part{p}
	return c.timed()
}

// countSimulated counts what the run was about.
func (r *run) countSimulated(rep *replayed) {
	r.stats.Judged = rep.judge
	r.stats.Expired, r.stats.Stale = rep.judge.Expired, rep.judge.DeadFences
	for _, c := range r.calls {
		switch {
		case c.Error == nil:
			r.stats.Answered++
		case !c.Error.NotAccepted:
			r.stats.Unknown++
		}
	}
}
