package plan

import (
	"math"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/rpc/quotav1"
)

// demands works out how much agents want, if nobody ever waits, is refused or dies. What it has worked out it remembers.
type demands struct {
	fleet  *fleet.Fleet
	quotas map[string]*quotav1.Quota
	agents map[string]*fleet.Agent
	work   map[*fleet.Agent]*work
	// moments are those of crontabs, by their text.
	moments map[string]moments
}

// draws is how much all agents of a description want of a quota: in one period in the long run, and at most. Of slots, which
// have no period, it is how much is under way at once.
type draws struct {
	mean, peak float64
	// call is what one call draws at most.
	call float64
	// scheduled: it does not adapt to what it gets.
	scheduled bool
}

// work is when one agent of a description makes its calls.
type work struct {
	// tasks is how many it begins in the whole run.
	tasks float64
	// scheduled: tasks begin by the clock, its own or that of who hands them on to it, and it can keep up with that.
	scheduled bool
	// workers is how many calls are under way at once, at most.
	workers float64
	// call is the middle length of one, at the provider and on the way; round is the shortest time from one call of a worker
	// to its next.
	call, round float64
}

// moments are those of a crontab, as lengths of time since the run began, as far as they were looked at.
type moments struct {
	at     []time.Duration
	looked time.Duration
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

// of returns what a description's agents want of a quota.
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

// amounts returns how much of a limit calls draw, through descendants too: each in the middle of what is counted in the end, and at most at
// any time; and the most that one of them draws. Calls of a pool draw on all members alike, as long as none is closed.
func (d *demands) amounts(kind *fleet.Agent, q *quotav1.Quota) (mean, high, most float64) {
	for _, use := range kind.Uses {
		estimate := float64(use.Estimate)
		middle, highest := estimate, estimate
		if use.Actual != (fleet.Range{}) {
			middle = (float64(use.Actual.Least) + float64(use.Actual.Most)) / 2
			highest = math.Max(estimate, float64(use.Actual.Most))
		}
		names := []string{use.Quota}
		if members := d.fleet.Members(use.Quota); len(members) > 0 {
			names = names[:0]
			for _, m := range members {
				names = append(names, m.Quota)
			}
		}
		part, drawsOn := 1/float64(len(names)), false
		for _, name := range names {
			counted := middle
			if use.Actual != (fleet.Range{}) && d.quotas[name].Settle == quotav1.SettleMode_SETTLE_MODE_MAX {
				counted = math.Max(estimate, middle)
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

// workOf works out when an agent of a description works.
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
	// One call after the other: more than that nobody can make.
	able := length / math.Max(w.call+float64(kind.Think.Mid()), 1) * w.workers / float64(kind.Calls)
	begun, byClock := d.begun(kind)
	w.tasks, w.scheduled = math.Min(able, begun), byClock && begun <= able
	if kind.Tasks > 0 {
		w.tasks = math.Min(w.tasks, float64(kind.Tasks))
	}
	d.work[kind] = w
	return w
}

// begun returns how many tasks are there for an agent to begin in the whole run, and whether the clock says so; one that
// begins a task when the last one is over has infinitely many.
func (d *demands) begun(kind *fleet.Agent) (tasks float64, byClock bool) {
	length := d.fleet.For
	switch {
	case kind.Every > 0:
		return float64((length-1)/kind.Every + 1), true
	case kind.Scheduled():
		m := d.momentsOf(kind.Cron)
		return float64(len(m.at)) * float64(length) / math.Max(float64(m.looked), 1), true
	}
	tasks = math.Inf(1)
	for _, name := range kind.Follows {
		before := d.workOf(d.agents[name])
		tasks, byClock = math.Min(tasks, before.tasks), byClock || before.scheduled
	}
	return tasks, byClock
}

// mostMoments bounds how many moments of a crontab are looked at; the rest of a run is taken to be like its beginning.
const mostMoments = 10_000

func (d *demands) momentsOf(c fleet.Cron) moments {
	known, ok := d.moments[c.String()]
	if !ok {
		known.at, known.looked = c.Within(d.fleet.Begins, d.fleet.For, mostMoments)
		d.moments[c.String()] = known
	}
	return known
}

// callsIn returns how many calls an agent makes in any length of time, at most.
func (d *demands) callsIn(kind *fleet.Agent, length time.Duration) float64 {
	w := d.workOf(kind)
	calls := (math.Floor(float64(length)/w.round) + 1) * w.workers
	if kind.Scheduled() {
		// A task that began before may have calls left, and each may be late.
		rounds := math.Ceil(float64(kind.Calls) / float64(min(kind.Parallel, kind.Calls)))
		lasts := rounds * float64(kind.Latency.Most+2*d.fleet.Network.Most+kind.Think.Most)
		calls = math.Min(calls, d.begunIn(kind, float64(length+kind.Jitter)+lasts)*float64(kind.Calls))
	}
	if kind.Tasks > 0 {
		calls = math.Min(calls, float64(kind.Tasks)*float64(kind.Calls))
	}
	return calls
}

// begunIn returns how many tasks begin by the clock in any length of time, at most.
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

// whole returns an amount as a whole number, as far as there are such.
func whole(amount float64) int64 {
	const most = 1 << 62
	return int64(math.Min(amount, most))
}
