// Package fleet describes a fleet of agents that share quotas: what each agent calls, how often, in which class, and what
// the run must show. A description is a file (fleet.yaml); package sim runs it in virtual time, and package plan judges it.
//
// It knows the file's grammar and nothing about running a fleet.
package fleet

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Forever is the patience of a call that is repeated until it succeeds.
const Forever = time.Duration(math.MaxInt64)

// Fleet is the content of a fleet.yaml.
type Fleet struct {
	// Title names it in one line.
	Title string
	// Quotas are the quotas in quotad, as in a quotas.yaml.
	Quotas []*quotav1.Quota
	// Workflows are the workflows in quotad; their steps are agents.
	Workflows []*quotav1.Workflow
	// Begins is the time of day at which the run begins; For is its length.
	Begins time.Time
	For    time.Duration
	// Network is the one-way delay between a caller and the provider.
	Network Span
	Cluster Cluster
	// Provider lists the provider's deviations from the quotas.
	Provider Provider
	// Alone is the behaviour of callers without quotad.
	Alone  Alone
	Agents []*Agent
	// Expect is what the run must show; nil: nothing.
	Expect *Expect
}

// Cluster is the behaviour of quotad's cluster.
type Cluster struct {
	// Commit is the time from an entry's stamp until it is applied; Hop is the delay of a request to the leader.
	Commit, Hop Span
	// Kills are the moments at which the leader is killed; Failover is the time without a leader afterwards.
	Kills    []time.Duration
	Failover Span
}

// Provider is the provider's deviations from the quotas.
type Provider struct {
	// Limits replace the rules of quotas, by quota.
	Limits map[string]Limit
	// Outages are periods in which the provider refuses every call, whatever its limits allow.
	Outages []Outage
	// Silent: refusals do not say when to retry.
	Silent bool
}

// Limit replaces parts of a quota's rule at the provider.
type Limit struct {
	// Limit replaces the limit if it is at least 0.
	Limit int64
	// NoBurst: the provider has no burst limit; the quota's burst is the fleet's own.
	NoBurst bool
	// Others is the use of a rate by other users of the same key, as a fraction of the provider's limit; 0: none. The
	// answers of such a provider report the remaining amount.
	Others float64
}

// Outage refuses all calls on a quota for a while, like a limit that nobody announced.
type Outage struct {
	Quota   string
	At, For time.Duration
	// Says is the output of a tool that is refused, with {left} for the outage's remaining time; it ends an attempt of a
	// task with a retry budget. Empty: only the call is refused.
	Says string
	// Means is the expected classification of an attempt that it ends; empty: nothing is expected.
	Means Outcome
}

// Alone is how a caller without quotad reacts to a refusal: as the usual clients do.
type Alone struct {
	// Retries is the maximum number of retries of one call.
	Retries int
	// First and Most bound the backoff, which doubles; Jitter is the largest fraction by which chance shortens it.
	First, Most time.Duration
	Jitter      float64
	// Obeys: a Retry-After of at most a minute replaces the backoff.
	Obeys bool
	// Pause is the time until a call starts again after its last retry, if its patience is forever.
	Pause time.Duration
	// Again is the delay until a task with a retry budget starts again, after its tool ended with a code other than 0.
	// Without quotad no failures are counted.
	Again Span
}

// Agent is one agent, or Count agents of the same kind.
type Agent struct {
	Name   string
	Count  int
	Class  quotav1.Class
	Weight int
	// Uses are the amounts that one call draws, in the order of the quotas.
	Uses []Use

	// Start is the earliest begin of the first task. Every is the interval of tasks, Cron their schedule; with neither,
	// each task follows the one before. Jitter delays each task by up to that time. Tasks is the total number; 0:
	// unlimited.
	Start  Span
	Every  time.Duration
	Cron   Cron
	Jitter time.Duration
	Tasks  int
	// Overlap is the maximum number of concurrent tasks; a task that is due beyond it is missed.
	Overlap int
	// Follows are the agents whose work it continues: its nth task begins when each of them has finished its nth.
	Follows []string
	// Retry gives each task a retry budget; nil: each task is attempted once.
	Retry *Retry

	// Calls is the number of calls of a task, Parallel the number of concurrent ones; Think is the pause after each.
	Calls, Parallel int
	Think           Span
	// Latency is the provider's processing time of a call.
	Latency Span
	// Patience is how long a call waits before it is cancelled.
	Patience time.Duration

	// Hold is the number of calls to reserve ahead and consume one by one, with leases of length HoldTTL; 0: each call
	// asks.
	Hold    int
	HoldTTL time.Duration
	// Batch takes calls from a batch that is consumed ahead.
	Batch bool

	// Crashes are the agent's crashes, Cuts its losses of the connection to the cluster. With a Count, only the first agent
	// has them.
	Crashes, Cuts []Absence
}

// Holders returns the names of the agents that the description covers.
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

// Scheduled reports whether tasks begin by the clock.
func (a *Agent) Scheduled() bool { return a.Every > 0 || a.Cron.schedule != nil }

// Absence is a period during which an agent is away; For is 0 if it does not return.
type Absence struct{ At, For time.Duration }

// Use is what one call draws on a quota.
type Use struct {
	Quota string
	// Estimate is the reserved amount, Actual the amount that the call really uses; the zero Range: the estimate. With Tokens,
	// Estimate is the largest amount that a call may reserve, and Actual follows from Tokens.
	Estimate int64
	Actual   Range
	// Tokens makes each call reserve what the client's estimator says; nil: it reserves Estimate.
	Tokens *Tokens
}

// Range is a range of integers, both ends included.
type Range struct{ Least, Most int64 }

// Span is a range of durations.
type Span struct{ Least, Most time.Duration }

// Mid returns the middle of a span.
func (s Span) Mid() time.Duration { return s.Least + (s.Most-s.Least)/2 }

// Limits returns the quotas that are a provider's limits, in their order: all except pools.
func (f *Fleet) Limits() (limits []*quotav1.Quota) {
	for _, q := range f.Quotas {
		if q.GetPool() == nil {
			limits = append(limits, q)
		}
	}
	return limits
}

// Draws returns the descriptions whose calls draw on a limit, directly or as the member of a pool; empty: all descriptions.
func (f *Fleet) Draws(limit string) map[string]bool {
	kinds := map[string]bool{}
	for _, a := range f.Agents {
		kinds[a.Name] = limit == "" || slices.ContainsFunc(a.Uses, func(u Use) bool { return f.On(u, limit) })
	}
	return kinds
}

// On reports whether calls of a use draw on a limit: the use names the limit, or a pool that has it as a member.
func (f *Fleet) On(use Use, limit string) bool {
	return use.Quota == limit || slices.ContainsFunc(f.Members(use.Quota), func(m *quotav1.PoolMember) bool { return m.Quota == limit })
}

// Members returns the members of a pool; none if the quota is no pool.
func (f *Fleet) Members(quota string) []*quotav1.PoolMember {
	for _, q := range f.Quotas {
		if q.Name == quota {
			return q.GetPool().GetMembers()
		}
	}
	return nil
}

// Expect is what a run through quotad, and the run alone, must show. In every run, no agent may starve, and the provider
// must refuse nothing unless Refused allows it.
type Expect struct {
	// Binding is the quota that limits the fleet: its use and waits are judged. Empty: the waits for all quotas are judged.
	Binding string
	// Utilisation is the minimum use of the binding quota while demand exceeds it, as a fraction of the ideal; 0: no bound.
	Utilisation float64
	// Classes is the required order of the classes' 99th percentiles of waits for the binding quota.
	Classes ClassOrder
	// LongestWait bounds the longest wait of a call, by class.
	LongestWait map[quotav1.Class]time.Duration
	// P99 bounds the 99th percentile of the waits of an agent's calls, by agent.
	P99 map[string]time.Duration
	// Finish bounds the time to finish all tasks of limited number, as a multiple of the ideal; 0: no bound.
	Finish float64
	// Refused is the maximum fraction of sent calls that a limit may refuse: 0 unless others use the key.
	Refused float64
	// Retries is the maximum number of calls that are sent again; -1: any number.
	Retries int64
	// Outage is the maximum number of calls that outages refuse; -1: any number.
	Outage int64
	// Reclaimed bounds the time for which a dead agent's amounts stay held; 0: no bound.
	Reclaimed time.Duration
	// StaleFences is the minimum number of commands refused for a stale fence.
	StaleFences int64
	// AloneRefused is the minimum number of refusals of the fleet alone: the scenario must show its problem.
	AloneRefused int64
	// Tasks is what tasks with retry budgets must show, Chain what agents that continue each other's work must show; nil:
	// nothing more.
	Tasks *ExpectTasks
	Chain *ExpectChain
}

// ClassOrder is the required order of the waits of classes.
type ClassOrder string

// The orders.
const (
	// AnyOrder requires nothing.
	AnyOrder ClassOrder = "any"
	// Ordered: a higher class waits no longer.
	Ordered ClassOrder = "ordered"
	// Strict: a higher class waits less.
	Strict ClassOrder = "strict"
)
