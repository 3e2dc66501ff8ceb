package plan

import (
	"math"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/rpc/quotav1"
)

// demands computes the agents' demand, provided that no agent ever waits, is refused or dies. It caches its results.
type demands struct {
	fleet  *fleet.Fleet
	quotas map[string]*quotav1.Quota
	agents map[string]*fleet.Agent
	work   map[*fleet.Agent]*work
	// moments caches the moments of crontabs, by their text.
	moments map[string]moments
}

// draws is the demand of all agents of a description on a quota in one period: the long-run mean, and the maximum. For
// slots, which have no period, it is the amount in use at once.
type draws struct {
	mean, peak float64
	// call is the maximum that one call draws.
	call float64
	// scheduled: the demand does not adapt to the amount granted.
	scheduled bool
}

// work is when one agent of a description makes its calls.
type work struct {
	// tasks is the number of tasks that it begins in the whole run.
	tasks float64
	// scheduled: tasks begin by the clock, its own or that of the agents it follows, and it can keep up with that.
	scheduled bool
	// workers is the maximum number of concurrent calls.
	workers float64
	// call is the mean duration of a call, at the provider and in the network. round is the shortest time between the
	// starts of two calls of a worker.
	call, round float64
}

// moments are the first moments of a crontab, as durations since the run began. looked is the part of the run that they
// cover.
type moments struct {
	at       []time.Duration
	searched time.Duration
}

func newDemands(f *fleet.Fleet) *demands {
	d := &demands{
		fleet: f, quotas: map[string]*quotav1.Quota{}, agents: map[string]*fleet.Agent{}, work: map[*fleet.Agent]*work{},
		moments: map[string]moments{},
	}
	for _, q := range f.Quotas {
		d.quotas[q.Name] = q
	}
	for _, kind := range f.Agents {
		d.agents[kind.Name] = kind
	}
	return d
}

// of returns the demand of a description's agents on a quota.
func (d *demands) of(kind *fleet.Agent, q *quotav1.Quota) draws {
	mean, high, most := d.amounts(kind, q)
	if most == 0 {
		return draws{}
	}
	w, period, length, count := d.workOf(kind), periodOf(q), float64(d.fleet.For), float64(kind.Count)
	calls := w.tasks * float64(kind.Calls)
	if period == 0 {
		return draws{mean: count * mean * calls / length * w.call, peak: count * high * w.workers, call: most, scheduled: w.scheduled}
	}
	return draws{
		mean: count * mean * calls / length * float64(period), peak: count * high * d.callsIn(kind, period), call: most,
		scheduled: w.scheduled,
	}
}

// amounts returns the amounts of a limit that calls draw, directly and through descendants. mean is the mean that finally
// counts, high the maximum at any time, and most the maximum of one call. Calls on a pool draw on all members alike, as
// long as none is closed.
func (d *demands) amounts(kind *fleet.Agent, q *quotav1.Quota) (mean, high, most float64) {
	for _, use := range kind.Uses {
		highest := float64(max(use.Estimate, use.Actual.Most))
		names := []string{use.Quota}
		if members := d.fleet.Members(use.Quota); len(members) > 0 {
			names = names[:0]
			for _, m := range members {
				names = append(names, m.Quota)
			}
		}
		part, drawsOn := 1/float64(len(names)), false
		for _, name := range names {
			counted := use.Mean()
			if d.quotas[name].Settle == quotav1.SettleMode_SETTLE_MODE_MAX {
				counted = use.Kept()
			}
			for drawn := d.quotas[name]; drawn != nil; drawn = d.quotas[drawn.Parent] {
				if drawn == q {
					mean, high, drawsOn = mean+part*counted, high+part*highest, true
				}
			}
		}
		if drawsOn {
			most += highest
		}
	}
	return mean, high, most
}

// workOf computes when an agent of a description works.
func (d *demands) workOf(kind *fleet.Agent) *work {
	if known, ok := d.work[kind]; ok {
		return known
	}
	network, length := d.fleet.Network, float64(d.fleet.For)
	w := &work{
		workers: float64(kind.Overlap * min(kind.Parallel, kind.Calls)),
		call:    float64(kind.Latency.Mid() + 2*network.Mid()),
		round:   math.Max(float64(kind.Latency.Least+2*network.Least+kind.Think.Least), 1),
	}
	// An agent cannot make more calls than one after the other in each worker.
	able := length / math.Max(w.call+float64(kind.Think.Mid()), 1) * w.workers / float64(kind.Calls)
	begun, byClock := d.begun(kind)
	w.tasks, w.scheduled = math.Min(able, begun), byClock && begun <= able
	if kind.Tasks > 0 {
		w.tasks = math.Min(w.tasks, float64(kind.Tasks))
	}
	d.work[kind] = w
	return w
}

// begun returns how many tasks an agent is to begin in the whole run, and whether the clock decides that. The number is
// infinite for an agent that begins each task after the last one.
func (d *demands) begun(kind *fleet.Agent) (tasks float64, byClock bool) {
	length := d.fleet.For
	switch {
	case kind.Every > 0:
		return float64((length-1)/kind.Every + 1), true
	case kind.Scheduled():
		m := d.momentsOf(kind.Cron)
		return float64(len(m.at)) * float64(length) / math.Max(float64(m.searched), 1), true
	}
	tasks = math.Inf(1)
	for _, name := range kind.Follows {
		before := d.workOf(d.agents[name])
		tasks, byClock = math.Min(tasks, before.tasks), byClock || before.scheduled
	}
	return tasks, byClock
}

// mostMoments bounds the moments of a crontab that are computed; the rest of a run is assumed to be like its beginning.
const mostMoments = 10_000

func (d *demands) momentsOf(c fleet.Cron) moments {
	known, ok := d.moments[c.String()]
	if !ok {
		known.at, known.searched = c.Within(d.fleet.Begins, d.fleet.For, mostMoments)
		d.moments[c.String()] = known
	}
	return known
}

// callsIn returns the maximum number of calls that an agent makes in any interval of a length.
func (d *demands) callsIn(kind *fleet.Agent, length time.Duration) float64 {
	w := d.workOf(kind)
	calls := (math.Floor(float64(length)/w.round) + 1) * w.workers
	if kind.Scheduled() {
		// A task that began earlier may have calls left, and each may be late.
		rounds := math.Ceil(float64(kind.Calls) / float64(min(kind.Parallel, kind.Calls)))
		lasts := rounds * float64(kind.Latency.Most+2*d.fleet.Network.Most+kind.Think.Most)
		calls = math.Min(calls, d.begunIn(kind, float64(length+kind.Jitter)+lasts)*float64(kind.Calls))
	}
	if kind.Tasks > 0 {
		calls = math.Min(calls, float64(kind.Tasks)*float64(kind.Calls))
	}
	return calls
}

// begunIn returns the maximum number of tasks that begin by the clock in any interval of a length.
func (d *demands) begunIn(kind *fleet.Agent, length float64) float64 {
	if kind.Every > 0 {
		return math.Floor(length/float64(kind.Every)) + 1
	}
	most, first, all := 0, 0, d.momentsOf(kind.Cron).at
	for i, at := range all {
		for float64(at-all[first]) > length {
			first++
		}
		most = max(most, i-first+1)
	}
	return float64(most)
}

// whole returns an amount as an integer, at most 2^62.
func whole(amount float64) int64 {
	const most = 1 << 62
	return int64(math.Min(amount, most))
}
