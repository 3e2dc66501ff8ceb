// Package plan judges a fleet before it is deployed: on paper, and by runs in virtual time, alone and through quotad. It
// also compares runs with the expectations of a file.
package plan

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Paper is the analysis of a fleet without a run.
type Paper struct {
	// Feasible: every agent can be served, and scheduled work fits in the long run.
	Feasible bool `json:"feasible"`
	// Unservable are agents whose calls can never be granted; Starved are classes to which higher ones leave nothing.
	Unservable []sim.Unservable `json:"unservable,omitempty"`
	Starved    []Starved        `json:"starved,omitempty"`
	Quotas     []PaperQuota     `json:"quotas"`
}

// Starved is a class of agents to which the higher classes leave nothing of a quota.
type Starved struct {
	Class  string   `json:"class"`
	Quota  string   `json:"quota"`
	Agents []string `json:"agents"`
}

// Verdict is the comparison of demand and limit.
type Verdict string

// The verdicts.
const (
	// Fits: the highest demand of one period is within the usable amount.
	Fits Verdict = "fits"
	// Queues: bursts wait, and the queue empties again.
	Queues Verdict = "queues"
	// Saturated: callers that make one call after the other use the whole limit.
	Saturated Verdict = "saturated"
	// Overloaded: scheduled work permanently exceeds the usable amount.
	Overloaded Verdict = "overloaded"
)

// PaperQuota compares the demand with one limit. Amounts are per period; those of slots are at once.
type PaperQuota struct {
	Quota  string        `json:"quota"`
	Rule   string        `json:"rule"`
	Usable int64         `json:"usable"`
	Period time.Duration `json:"period"`
	// Mean is the long-run demand, Peak the highest demand of one period: all bursts together.
	Mean    float64 `json:"mean"`
	Peak    int64   `json:"peak"`
	Verdict Verdict `json:"verdict"`
	// Binds: of all quotas, this one is closest to its limit.
	Binds   bool         `json:"binds"`
	Classes []PaperClass `json:"classes"`

	// largest is the maximum that one call draws.
	largest    int64
	definition *quotav1.Quota
}

// PaperClass is one class's demand on a quota.
type PaperClass struct {
	Class string `json:"class"`
	// Share is the policy's guarantee, as a fraction of usable; Mean and Peak are as above. Gets is the part of Mean that
	// the order of classes leaves it.
	Share float64 `json:"share"`
	Mean  float64 `json:"mean"`
	Peak  int64   `json:"peak"`
	Gets  float64 `json:"gets"`
	// WorstWait is an estimate of the longest wait of a call, when all bursts coincide; 0: none; -1: unbounded or unknown.
	WorstWait time.Duration `json:"worstWait"`
	// Ages: ageing serves calls that wait for long, although the order of classes leaves nothing.
	Ages bool `json:"ages,omitempty"`

	agents []string
	// scheduled is the part of Mean that does not adapt to the amount granted.
	scheduled float64
}

// OnPaper analyses a fleet. It returns an error if its quotas cannot be applied.
func OnPaper(f *fleet.Fleet) (*Paper, error) {
	unservable, err := sim.FindUnservable(f)
	if err != nil {
		return nil, err
	}
	p := &Paper{Unservable: unservable, Feasible: len(unservable) == 0}
	wanted := newDemands(f)
	highest, binding := 0.0, -1
	for i, q := range f.Limits() {
		one := judgeQuota(wanted, q)
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
func judgeQuota(wanted *demands, q *quotav1.Quota) PaperQuota {
	one := PaperQuota{Quota: q.Name, Rule: ruleText(q), Usable: fleet.Usable(q), Period: periodOf(q), definition: q}
	peak, scheduled := 0.0, 0.0
	for _, word := range sim.Classes {
		class, _ := quotafile.ParseClass(word)
		c, most := PaperClass{Class: word, Share: shareOf(q, class)}, 0.0
		for _, kind := range wanted.fleet.Agents {
			draws := wanted.of(kind, q)
			if kind.Class != class || draws.peak == 0 {
				continue
			}
			c.agents = append(c.agents, kind.Name)
			c.Mean += draws.mean
			one.largest = max(one.largest, whole(draws.call))
			most += draws.peak
			if draws.scheduled {
				c.scheduled += draws.mean
			}
			c.Ages = c.Ages || class == quotav1.Class_CLASS_BACKGROUND && q.GetPolicy().GetAgeing() != nil
		}
		c.Peak = whole(most)
		peak += most
		one.Mean += c.Mean
		scheduled += c.scheduled
		one.Classes = append(one.Classes, c)
	}
	one.Peak = whole(peak)
	switch usable := float64(one.Usable); {
	case scheduled > usable:
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

// divide computes each class's part in the order of classes, and its longest wait.
func (one *PaperQuota) divide(q *quotav1.Quota) {
	left, above, backlog := float64(one.Usable), 0.0, 0.0
	for i := range one.Classes {
		c := &one.Classes[i]
		room := left
		if i == 0 && q.GetPolicy().GetShares() != nil {
			room = math.Min(room, capOf(q)*float64(one.Usable))
		}
		c.Gets = math.Min(c.Mean, math.Max(room, 0))
		backlog += float64(c.Peak)
		switch {
		case c.Mean == 0 || one.Peak <= one.Usable && !one.heldUp(q, c):
		case above+c.scheduled > float64(one.Usable) || above >= float64(one.Usable):
			c.WorstWait = -1
		default:
			c.WorstWait = one.worstWait(q, backlog, above)
		}
		left -= c.Gets
		above += c.Mean
	}
}

// heldUp reports whether a class waits although the limit suffices for all: because of a burst bound, a zone, or a share
// for others.
func (one *PaperQuota) heldUp(q *quotav1.Quota, c *PaperClass) bool {
	zones := q.GetPolicy().GetZones()
	switch {
	case q.GetRate().GetBurst() > 0, zones == quotav1.Zones_ZONES_STRICT:
		return true
	case c.Class != sim.Classes[0]:
		return zones != quotav1.Zones_ZONES_UNSPECIFIED || q.GetPolicy().GetShares() != nil
	}
	return q.GetPolicy().GetShares() != nil && float64(c.Peak) > capOf(q)*float64(one.Usable)
}

// worstWait estimates the longest wait of a class, when all bursts coincide. It is the rest of an exhausted period, plus
// the time for the backlog of its own and the higher classes, at the pace that the higher classes' steady demand leaves.
func (one *PaperQuota) worstWait(q *quotav1.Quota, backlog, above float64) time.Duration {
	// Whole calls may leave unused almost one of the largest.
	period, usable := float64(one.Period), float64(max(one.Usable-one.largest+1, 1))
	if period == 0 || above >= usable {
		return -1 // how long a slot is used depends on its callers
	}
	wait := period + math.Max(backlog-usable, 0)/(usable-above)*period
	if q.GetRate().GetBurst() > 0 {
		wait += math.Min(backlog/usable, 1) * period
	}
	return time.Duration(math.Min(wait, float64(math.MaxInt64/2)))
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

// capOf is the fraction of a window that critical calls may use.
func capOf(q *quotav1.Quota) float64 { return cmp.Or(q.GetPolicy().GetShares().GetCap(), 0.9) }

// names describes the obstacles, one line each.
func (p *Paper) names() []string {
	var all []string
	for _, h := range p.Unservable {
		all = append(all, "the agent "+h.Agent+" can never be served: "+h.Reason+" of "+h.Quota+" ("+h.Advice+")")
	}
	for _, s := range p.Starved {
		agents := slices.Clone(s.Agents)
		all = append(all, "nothing of "+s.Quota+" is left for "+s.Class+" work: "+join(agents))
	}
	for _, q := range p.Quotas {
		if q.Verdict == Overloaded {
			all = append(all, "what is scheduled needs more of "+q.Quota+" than the limit allows, permanently")
		}
	}
	return all
}
