package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Spec is an attack on some nodes by a separate process, in JSON.
type Spec struct {
	Nodes []Node `json:"nodes"`
	// Token is the secret of the calls, Bundle the file of the CAs that sign for the API; empty: clear text.
	Token  string `json:"token"`
	Bundle string `json:"bundle,omitempty"`
	// LocalIP is the address to call from; empty: any.
	LocalIP string `json:"local_ip,omitempty"`
	Crowd
	// First, if set, comes before the rest: a node that is busy lets a caller that does much wait, and few streams would open.
	First *Crowd `json:"first,omitempty"`
}

// Crowd is what an attack holds at once, over all nodes.
type Crowd struct {
	Silent   int `json:"silent"`   // connections on which nothing is sent
	Streams  int `json:"streams"`  // streams of events
	Watchers int `json:"watchers"` // streams of health
}

// Crowding is the longest time for which an attack holds its First crowd.
const Crowding = 20 * time.Second

// Node is an attacked node.
type Node struct {
	Name string `json:"name"`
	API  string `json:"api"`
	Raft string `json:"raft"`
	// Ops is the port for operators.
	Ops string `json:"ops"`
}

// Report is the outcome of an attack.
type Report struct {
	// Calls counts ended calls, Refused those of them that a budget refused. Reasons counts the errors by reason, or by code without one.
	Calls   int64            `json:"calls"`
	Refused int64            `json:"refused"`
	Reasons map[string]int64 `json:"reasons"`
	// Budgets counts the refusals that name a budget, by its name.
	Budgets map[string]int64 `json:"budgets"`
	// Anonymous counts the connections to the port between nodes.
	Anonymous int64 `json:"strangers"`
	// Crowd is the most that was open (connections) or requested (streams) at once: of the First crowd, if there was one.
	Crowd
	// Files is the number of files that the machine lets the process open.
	Files uint64 `json:"files"`
	// Ops is the outcome of the attack on the ports for operators; nil: there was none. The other counts leave it out.
	Ops *Report `json:"ops,omitempty"`
}

// Run reads a Spec from in, attacks until in ends, and writes a Report to out.
func Run(in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var spec Spec
	if err := decoder.Decode(&spec); err != nil {
		return fmt.Errorf("the attack's spec: %w", err)
	}
	files, err := asAnonymous()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, io.MultiReader(decoder.Buffered(), in))
		stop()
	}()
	report := spec.attack(ctx)
	report.Files = files
	return json.NewEncoder(out).Encode(report)
}

// attack lets the First crowd in until each node has refused more, and then runs the whole attack until ctx ends.
func (s *Spec) attack(ctx context.Context) *Report {
	if s.First == nil {
		return s.at(s.Crowd, func(a *Caller) { a.Attack(ctx) })
	}
	sum := s.at(*s.First, func(a *Caller) { a.crowd(ctx) })
	most := sum.Crowd
	sum.add(s.at(s.Crowd, func(a *Caller) { a.Attack(ctx) }))
	sum.Crowd = most
	return sum
}

// at runs a caller at each node, which holds its part of a crowd, and returns what they report together.
func (s *Spec) at(crowd Crowd, run func(*Caller)) *Report {
	dialer := &net.Dialer{}
	if s.LocalIP != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(s.LocalIP)}
	}
	callers := make([]*Caller, len(s.Nodes))
	var attacks sync.WaitGroup
	for i, node := range s.Nodes {
		callers[i] = &Caller{
			Name: node.Name, Address: node.API, Raft: node.Raft, Ops: node.Ops, Token: s.Token, Dial: dialer.DialContext, Bundle: s.Bundle,
			Silent: crowd.Silent / len(s.Nodes), Streams: crowd.Streams / len(s.Nodes), Watchers: crowd.Watchers / len(s.Nodes),
		}
		attacks.Go(func() { run(callers[i]) })
	}
	attacks.Wait()
	sum := newReport()
	for _, caller := range callers {
		sum.add(caller.report())
	}
	return sum
}

// crowd opens connections and streams until the node has refused more of each of the Crowded budgets, at most for Crowding.
func (a *Caller) crowd(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, Crowding)
	defer stop()
	go func() {
		for ctx.Err() == nil && slices.ContainsFunc(Crowded(), func(budget string) bool { return !a.wasRefused(budget) }) {
			pause(ctx, 50*time.Millisecond)
		}
		stop()
	}()
	a.Only = []string{"watch", "health", "silent"}
	a.Attack(ctx)
}

func (r *Report) add(other *Report) {
	r.Calls, r.Refused, r.Anonymous = r.Calls+other.Calls, r.Refused+other.Refused, r.Anonymous+other.Anonymous
	r.Silent, r.Streams, r.Watchers = r.Silent+other.Silent, r.Streams+other.Streams, r.Watchers+other.Watchers
	for reason, count := range other.Reasons {
		r.Reasons[reason] += count
	}
	for budget, count := range other.Budgets {
		r.Budgets[budget] += count
	}
	if other.Ops == nil {
		return
	}
	if r.Ops == nil {
		r.Ops = newReport()
	}
	r.Ops.add(other.Ops)
}

func newReport() *Report { return &Report{Reasons: map[string]int64{}, Budgets: map[string]int64{}} }

// niceness is the priority of the process: it stands for another machine, and must not take this one's processors from the nodes.
const niceness = 10

// asAnonymous lowers the process's priority and raises its limit of open files as far as the machine allows.
func asAnonymous() (files uint64, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	more := unix.Rlimit{Cur: wantFiles, Max: max(wantFiles, limit.Max)}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &more) == nil { // only a superuser may
		limit = more
	}
	return limit.Cur, errors.Join(unix.Setpriority(unix.PRIO_PROCESS, 0, niceness))
}

// wantFiles is enough for the largest attack.
const wantFiles = 40_000

// report is the outcome of the caller's attack.
func (a *Caller) report() *Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ops *Report
	if a.ops != nil {
		ops = a.ops.report()
	}
	return &Report{
		Ops:   ops,
		Calls: a.calls.Load(), Refused: a.refused.Load(), Reasons: maps.Clone(a.reasons), Budgets: maps.Clone(a.budgets),
		Anonymous: a.anonymousCalls.Load(),
		Crowd:     Crowd{Silent: int(a.mostSilent.Load()), Streams: int(a.mostStreams.Load()), Watchers: int(a.mostWatchers.Load())},
	}
}
