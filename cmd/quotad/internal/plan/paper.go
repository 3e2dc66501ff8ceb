// Package plan judges a fleet before it is deployed: on paper, and by running it in virtual time on its own and through
// quotad. It also holds runs against what a file expects of them.
package plan

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/fleet/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Paper is what can be said of a fleet without running it.
type Paper struct {
	// Feasible: every agent can be served, and what is scheduled fits in the long run.
	Feasible bool `json:"feasible"`
	// Hopeless are agents whose calls can never be granted; Starved are classes that higher ones leave nothing.
	Hopeless []sim.Hopeless `json:"hopeless,omitempty"`
	Starved  []Starved      `json:"starved,omitempty"`
	Quotas   []PaperQuota   `json:"quotas"`
}

// Starved is a class of agents to whom the higher classes leave nothing of a quota.
type Starved struct {
	Class  string   `json:"class"`
	Quota  string   `json:"quota"`
	Agents []string `json:"agents"`
}

// Verdict says how demand and limit compare.
type Verdict string

// The verdicts.
const (
	// Fits: the highest demand of one period is within what is usable.
	Fits Verdict = "fits"
	// Queues: bursts wait, and the queue empties again.
	Queues Verdict = "queues"
	// Saturated: callers that work one call after the other take all there is.
	Saturated Verdict = "saturated"
	// Overloaded: what is scheduled is more than is usable, for ever.
	Overloaded Verdict = "overloaded"
)

// PaperQuota is demand against one limit. Amounts are by period; those of slots are at once.
type PaperQuota struct {
	Quota  string        `json:"quota"`
	Rule   string        `json:"rule"`
	Usable int64         `json:"usable"`
	Period time.Duration `json:"period"`
	// Mean is the demand in the long run, Peak the highest of one period: all bursts together.
	Mean    float64 `json:"mean"`
	Peak    int64   `json:"peak"`
	Verdict Verdict `json:"verdict"`
	// Binds: of all quotas, this one is the nearest to its limit.
	Binds   bool         `json:"binds"`
	Classes []PaperClass `json:"classes"`

	// scheduled is the part of Mean that does not adapt to what it gets.
	scheduled float64
}

// PaperClass is one class's part in a quota.
type PaperClass struct {
	Class string `json:"class"`
	// Share is what the policy guarantees, in parts of usable; Mean and Peak as above; Gets is what the order of classes
	// leaves it of its mean.
	Share float64 `json:"share"`
	Mean  float64 `json:"mean"`
	Peak  int64   `json:"peak"`
	Gets  float64 `json:"gets"`
	// WorstWait is an upper bound of a call's wait when all bursts come at once; -1: there is none.
	WorstWait time.Duration `json:"worstWait"`
	// Ages: who waits long enough is served although the order of classes leaves nothing.
	Ages bool `json:"ages,omitempty"`

	agents []string
}

// OnPaper judges a fleet. An error says that its quotas cannot be applied.
func OnPaper(f *fleet.Fleet) (*Paper, error) {
	hopeless, err := sim.FindHopeless(f)
	if err != nil {
		return nil, err
	}
	p := &Paper{Hopeless: hopeless, Feasible: len(hopeless) == 0}
	highest, binding := 0.0, -1
	for i, q := range f.Quotas {
		one := judgeQuota(f, q)
		p.Quotas = append(p.Quotas, one)
		if load := one.Mean / math.Max(float64(one.Usable), 1); load > highest {
			highest, binding = load, i
		}
		for _, class := range one.Classes {
			if class.Mean > 0 && class.Gets == 0 && !class.Ages {
				p.Starved = append(p.Starved, Starved{Class: class.Class, Quota: q.Name, Agents: class.agents})
			}
		}
		if one.Verdict == Overloaded {
			p.Feasible = false
		}
	}
	if binding >= 0 {
		p.Quotas[binding].Binds = true
	}
	p.Feasible = p.Feasible && len(p.Starved) == 0
	return p, nil
}

// judgeQuota compares demand and limit.
func judgeQuota(f *fleet.Fleet, q *quotav1.Quota) PaperQuota {
	one := PaperQuota{Quota: q.Name, Rule: ruleText(q), Usable: sim.Usable(q), Period: periodOf(q)}
	for _, word := range sim.Classes {
		class, _ := quotafile.ParseClass(word)
		c := PaperClass{Class: word, Share: shareOf(q, class)}
		for _, kind := range f.Agents {
			amount := amountOf(f, kind, q.Name)
			if kind.Class != class || amount == 0 {
				continue
			}
			d := demandOf(f, kind, one.Period)
			c.agents = append(c.agents, kind.Name)
			c.Mean += d.mean * float64(amount)
			c.Peak += d.peak * amount
			if kind.Scheduled() {
				one.scheduled += d.mean * float64(amount)
			}
			c.Ages = c.Ages || class == quotav1.Class_CLASS_BACKGROUND && q.GetPolicy().GetAgeing() != nil
		}
		one.Mean += c.Mean
		one.Peak += c.Peak
		one.Classes = append(one.Classes, c)
	}
	switch usable := float64(one.Usable); {
	case one.scheduled > usable:
		one.Verdict = Overloaded
	case one.Mean > usable:
		one.Verdict = Saturated
	case one.Peak > one.Usable:
		one.Verdict = Queues
	default:
		one.Verdict = Fits
	}
	one.divide(q)
	return one
}

// divide says what the order of classes leaves to each, and how long a call waits at worst.
func (one *PaperQuota) divide(q *quotav1.Quota) {
	left, above, peakAbove := float64(one.Usable), 0.0, int64(0)
	for i := range one.Classes {
		c := &one.Classes[i]
		room := left
		if i == 0 && q.GetPolicy().GetShares() != nil {
			room = math.Min(room, capOf(q)*float64(one.Usable))
		}
		c.Gets = math.Min(c.Mean, math.Max(room, 0))
		c.WorstWait = one.worstWait(q, peakAbove+c.Peak, above)
		left -= c.Gets
		above += c.Mean
		peakAbove += c.Peak
	}
}

// worstWait bounds the wait of a class when all bursts come at once: a period that was used up just before, then the
// backlog of its own and the higher classes, at the pace that the higher classes' steady demand leaves.
func (one *PaperQuota) worstWait(q *quotav1.Quota, backlog int64, above float64) time.Duration {
	period := float64(one.Period)
	if one.Peak <= one.Usable && q.GetRate().GetBurst() == 0 || backlog == 0 {
		return 0
	}
	pace := float64(one.Usable) - above
	if pace <= 0 || period == 0 {
		return -1
	}
	wait := period + math.Max(float64(backlog-one.Usable), 0)/pace*period
	if q.GetRate().GetBurst() > 0 {
		wait += math.Min(float64(backlog)/float64(one.Usable), 1) * period
	}
	return time.Duration(math.Min(wait, float64(math.MaxInt64/2)))
}

// demand is how many calls an agent of a description, times how many there are, makes in a period.
type demand struct {
	mean float64
	peak int64
}

// demandOf works out how many calls a description makes in one period: in the long run, and at most. With slots, which
// have no period, it is how many are under way at once.
func demandOf(f *fleet.Fleet, kind *fleet.Agent, period time.Duration) demand {
	count, length := float64(kind.Count), float64(f.For)
	call := float64(kind.Latency.Mid() + 2*f.Network.Mid())
	total := math.Inf(1)
	if kind.Tasks > 0 {
		total = float64(kind.Tasks) * float64(kind.Calls)
	}
	workers := float64(kind.Overlap * min(kind.Parallel, kind.Calls))
	inRow := length / math.Max(call+float64(kind.Think.Mid()), 1) * workers
	wanted := inRow
	if kind.Scheduled() {
		wanted = float64(begunIn(f, kind, f.For)) * float64(kind.Calls)
	}
	wanted = math.Min(wanted, total)
	if period == 0 {
		return demand{mean: count * math.Min(wanted/length*call, workers), peak: int64(count * workers)}
	}
	shortest := math.Max(float64(kind.Latency.Least+2*f.Network.Least+kind.Think.Least), 1)
	peak := (math.Floor(float64(period)/shortest) + 1) * workers
	if kind.Scheduled() {
		peak = math.Min(peak, float64(begunIn(f, kind, period))*float64(kind.Calls))
	}
	return demand{mean: count * wanted / length * float64(period), peak: int64(count * math.Min(peak, total))}
}

// mostCounted bounds how many moments of a crontab are counted.
const mostCounted = 100_000

// begunIn returns how many tasks begin within a length of time, at most.
func begunIn(f *fleet.Fleet, kind *fleet.Agent, length time.Duration) int64 {
	if kind.Every > 0 {
		return int64((length-1)/kind.Every) + 1
	}
	first, ok := kind.Cron.Next(f.Begins.Add(-time.Nanosecond))
	if !ok {
		return 0
	}
	return int64(kind.Cron.Within(first, length, mostCounted))
}

// amountOf returns how much of a quota one call of an agent draws, through descendants too.
func amountOf(f *fleet.Fleet, kind *fleet.Agent, quota string) (sum int64) {
	parents := map[string]string{}
	for _, q := range f.Quotas {
		parents[q.Name] = q.Parent
	}
	for _, use := range kind.Uses {
		for name := use.Quota; name != ""; name = parents[name] {
			if name == quota {
				sum += use.Estimate
			}
		}
	}
	return sum
}

func periodOf(q *quotav1.Quota) time.Duration {
	if w := q.GetWindow(); w != nil {
		return sim.WindowLength(w.Every)
	}
	return q.GetRate().GetPer().AsDuration()
}

func shareOf(q *quotav1.Quota, class quotav1.Class) float64 {
	shares := q.GetPolicy().GetShares()
	switch class {
	case quotav1.Class_CLASS_CRITICAL:
		return shares.GetCritical()
	case quotav1.Class_CLASS_STANDARD:
		return shares.GetStandard()
	case quotav1.Class_CLASS_BACKGROUND:
		return shares.GetBackground()
	case quotav1.Class_CLASS_UNSPECIFIED:
	}
	return 0
}

// capOf is what critical calls may use of a window.
func capOf(q *quotav1.Quota) float64 { return cmp.Or(q.GetPolicy().GetShares().GetCap(), 0.9) }

// names lists what stands in the way, for one line.
func (p *Paper) names() []string {
	var all []string
	for _, h := range p.Hopeless {
		all = append(all, "the agent "+h.Agent+" can never be served: "+h.Reason+" of "+h.Quota+" ("+h.Advice+")")
	}
	for _, s := range p.Starved {
		agents := slices.Clone(s.Agents)
		all = append(all, "nothing of "+s.Quota+" is left for "+s.Class+" work: "+join(agents))
	}
	for _, q := range p.Quotas {
		if q.Verdict == Overloaded {
			all = append(all, "what is scheduled needs more of "+q.Quota+" than there is, for ever")
		}
	}
	return all
}
