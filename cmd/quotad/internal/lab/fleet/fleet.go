// Package fleet describes a fleet of agents that share quotas: who calls what, how often, in which class, and what is
// expected of it. A description is a file (fleet.yaml); package sim runs it in virtual time, package plan judges it.
//
// It knows the file's grammar and nothing of how a fleet is run.
package fleet

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Forever is the patience of a call that is made until it succeeds.
const Forever = time.Duration(math.MaxInt64)

// Fleet is the content of a fleet.yaml.
type Fleet struct {
	// Title names it in one line.
	Title string
	// Quotas are what is stated to quotad, as in a quotas.yaml.
	Quotas []*quotav1.Quota
	// Workflows are what is stated to quotad of who works for whom; their steps are agents.
	Workflows []*quotav1.Workflow
	// Begins is the moment of Unix time at which the run begins, For how long it lasts.
	Begins time.Time
	For    time.Duration
	// Network is how long a call takes to the provider, and an answer back.
	Network Span
	Cluster Cluster
	// Provider has what the provider does otherwise than the quotas say.
	Provider Provider
	// Alone is how callers behave on their own.
	Alone  Alone
	Agents []*Agent
	// Expect is what must hold; nil: nothing is expected.
	Expect *Expect
}

// Cluster is how quotad's cluster behaves.
type Cluster struct {
	// Commit is how long an entry takes from its stamp to its being applied, Hop how long a request to the leader.
	Commit, Hop Span
	// Kills are the moments at which the leader is killed; Failover is how long nobody leads then.
	Kills    []time.Duration
	Failover Span
}

// Provider is how the provider differs from what the quotas state.
type Provider struct {
	// Limits replace what is stated, by quota.
	Limits map[string]Limit
	// Outages are times in which every call is refused, whatever the limits say.
	Outages []Outage
	// Silent: refusals name no time to come back.
	Silent bool
}

// Limit replaces parts of a quota's rule at the provider.
type Limit struct {
	// Limit replaces the limit where it is at least 0.
	Limit int64
	// NoBurst: the provider knows no burst; it is the fleet's own.
	NoBurst bool
	// Others is how much of a rate others use who have the same key, as a part of the provider's limit; 0: nobody. The answers of such a
	// provider say what remains.
	Others float64
}

// Outage refuses all calls on a quota for a while: what a limit does that nobody announced.
type Outage struct {
	Quota   string
	At, For time.Duration
	// Says is what a tool prints that meets it, with {left} for the time that is left of it: an attempt of a task with a
	// retry budget ends with that. Empty: the call alone is refused.
	Says string
	// Means is what an attempt that it ends has to be taken for; empty: nothing is expected.
	Means Outcome
}

// Alone is how a caller without quotad meets a refusal: as the usual clients do.
type Alone struct {
	// Retries is how often one call is sent again.
	Retries int
	// First and Most bound the backoff, which doubles; Jitter is the part of it that chance takes off.
	First, Most time.Duration
	Jitter      float64
	// Obeys: a Retry-After of at most a minute counts instead of the backoff.
	Obeys bool
	// Pause is how long a call rests whose retries are used up, where it is made until it succeeds.
	Pause time.Duration
	// Again is how soon a task with a retry budget is begun again whose tool ended with another code than 0: nobody counts.
	Again Span
}

// Agent is one agent, or Count of the same kind.
type Agent struct {
	Name   string
	Count  int
	Class  quotav1.Class
	Weight int
	// Uses are what one call draws on, in the order of the quotas.
	Uses []Use

	// Start is when the first task begins at the earliest. Every is how often one begins, Cron when; with neither, one
	// follows the other. Jitter delays each by up to so much. Tasks is how many there are in all, 0: no end.
	Start  Span
	Every  time.Duration
	Cron   Cron
	Jitter time.Duration
	Tasks  int
	// Overlap is how many tasks may be under way at once; one that is due beyond them is missed.
	Overlap int
	// Follows are the agents that hand their work on to it: its nth task begins when each of them has finished its nth.
	Follows []string
	// Retry keeps each task to a retry budget; nil: a task is worked on once.
	Retry *Retry

	// Calls is how many calls a task makes, Parallel of them at once; Think is the rest after each.
	Calls, Parallel int
	Think           Span
	// Latency is how long the provider works on a call.
	Latency Span
	// Patience is how long a call waits until it is given up.
	Patience time.Duration

	// Hold reserves so many calls ahead and consumes them one by one, with leases of this length; 0: each call asks.
	Hold    int
	HoldTTL time.Duration
	// Batch takes calls from a batch that is consumed ahead.
	Batch bool

	// Crashes are when it dies; Cuts when it cannot reach the cluster. They are of the first of several.
	Crashes, Cuts []Absence
}

// Holders returns the names of the agents that the description stands for.
func (a *Agent) Holders() []string {
	if a.Count == 1 {
		return []string{a.Name}
	}
	names := make([]string, a.Count)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", a.Name, i+1)
	}
	return names
}

// Scheduled tells whether tasks begin by the clock.
func (a *Agent) Scheduled() bool { return a.Every > 0 || a.Cron.schedule != nil }

// Absence is a time during which an agent is away; For is 0 where it does not come back.
type Absence struct{ At, For time.Duration }

// Use is what one call draws on a quota.
type Use struct {
	Quota string
	// Estimate is what is reserved, Actual what the call really uses; the zero Range: as much as estimated.
	Estimate int64
	Actual   Range
}

// Range is a range of whole numbers, both ends included.
type Range struct{ Least, Most int64 }

// Span is a range of lengths of time.
type Span struct{ Least, Most time.Duration }

// Mid returns the middle of a span.
func (s Span) Mid() time.Duration { return s.Least + (s.Most-s.Least)/2 }

// Limits returns those of the quotas that are a provider's limits, in their order: all but pools.
func (f *Fleet) Limits() (limits []*quotav1.Quota) {
	for _, q := range f.Quotas {
		if q.GetPool() == nil {
			limits = append(limits, q)
		}
	}
	return limits
}

// Draws returns the descriptions whose calls draw on a limit, be it as the member of a pool; empty: all.
func (f *Fleet) Draws(limit string) map[string]bool {
	kinds := map[string]bool{}
	for _, a := range f.Agents {
		kinds[a.Name] = limit == "" || slices.ContainsFunc(a.Uses, func(u Use) bool { return f.On(u, limit) })
	}
	return kinds
}

// On reports whether calls of a use draw on a limit: it names the limit, or a pool of which that is a member.
func (f *Fleet) On(use Use, limit string) bool {
	return use.Quota == limit || slices.ContainsFunc(f.Members(use.Quota), func(m *quotav1.PoolMember) bool { return m.Quota == limit })
}

// Members returns the members of a pool; none where the quota is no pool.
func (f *Fleet) Members(quota string) []*quotav1.PoolMember {
	for _, q := range f.Quotas {
		if q.Name == quota {
			return q.GetPool().GetMembers()
		}
	}
	return nil
}

// Expect is what must hold of a run through quotad, and what the run alone has to show. That the provider refuses nothing,
// unless Refused says otherwise, and that nobody starves is always expected.
type Expect struct {
	// Binding is the quota that holds the fleet up: whose use and waits are looked at. Empty: of waits all are.
	Binding string
	// Utilisation is the least use of the binding quota while demand exceeds it, as a part of the ideal; 0: no bound.
	Utilisation float64
	// Classes is what must hold of the classes' 99th percentiles of waits for the binding quota.
	Classes ClassOrder
	// LongestWait bounds the longest wait of a call, by class.
	LongestWait map[quotav1.Class]time.Duration
	// P99 bounds the 99th percentile of the waits of an agent's calls.
	P99 map[string]time.Duration
	// Finish bounds the time to finish all tasks that are counted, as a multiple of the ideal; 0: no bound.
	Finish float64
	// Refused is how many of the calls that were sent a limit may refuse, as a part of them: 0 unless others use the key.
	Refused float64
	// Retries is the most calls that may be sent again; -1: any number.
	Retries int64
	// Outage is the most calls that outages may refuse; -1: any number.
	Outage int64
	// Reclaimed bounds how long what a dead agent held stays held; 0: no bound.
	Reclaimed time.Duration
	// StaleFences is the least number of commands that must have been refused for a dead fence.
	StaleFences int64
	// AloneRefused is the least number of refusals that the fleet meets alone: what happened must be seen to happen.
	AloneRefused int64
	// Tasks is what must hold of tasks with retry budgets, Chain of agents that hand work on; nil: nothing more.
	Tasks *ExpectTasks
	Chain *ExpectChain
}

// ClassOrder says how the waits of classes must compare.
type ClassOrder string

// The orders.
const (
	// AnyOrder demands nothing.
	AnyOrder ClassOrder = "any"
	// Ordered: a higher class waits no longer.
	Ordered ClassOrder = "ordered"
	// Strict: a higher class waits less.
	Strict ClassOrder = "strict"
)
