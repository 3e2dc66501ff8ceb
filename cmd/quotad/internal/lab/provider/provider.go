// Package provider is an API provider in virtual time. It enforces its limits with its own count of the calls of all users
// of the key. It shares nothing with the state machine that it is used to judge.
//
// Times are nanoseconds since the run began. A Provider belongs to one goroutine.
package provider

import (
	"fmt"
	"strings"
	"time"
)

// Amount is an amount of a limit, which is named by its index.
type Amount struct {
	Limit int
	N     int64
}

// Answer is the provider's answer to a call that has just arrived.
type Answer struct {
	// Refused: the call was not served.
	Refused bool
	// Outage: an outage refused it, not a limit.
	Outage bool
	// Says is the output of a tool that hits the outage; empty: unknown. Means is its meaning according to the file. Until
	// is the end of the outage, if Says names it.
	Says, Means string
	Until       int64
	// Limit is the index of the limit that refused it. Exhausted says that the limit is used up until its reset.
	Limit     int
	Exhausted bool
	// RetryAfter is the time until a retry, in whole seconds; 0: the provider does not say.
	RetryAfter time.Duration
	// Counts are the headers' counts of the windows that the call drew on, and of rates that report theirs.
	Counts []Count
}

// Count is the remaining amount of a window and the time of its reset; the time is 0 for a rate.
type Count struct {
	Limit   int
	Left    int64
	ResetAt int64
}

// Outage is a period in which every call on a limit is refused.
type Outage struct {
	Limit    int
	From, To int64
	// Says is the output of a tool that hits it, with {left} for the remaining time in whole seconds.
	Says, Means string
}

// Provider is the provider of one fleet.
type Provider struct {
	meters  []*Meter
	outages []Outage
	silent  bool
}

// New returns a provider. silent: its refusals do not say when to retry.
func New(meters []*Meter, outages []Outage, silent bool) *Provider {
	return &Provider{meters: meters, outages: outages, silent: silent}
}

// Meters returns the meters of the limits, by index.
func (p *Provider) Meters() []*Meter { return p.meters }

// Arrive judges and counts a call on its arrival. A refused call counts against no limit. A served call that draws on slots
// must be followed by Done.
func (p *Provider) Arrive(now int64, amounts []Amount) Answer {
	for _, a := range amounts {
		p.meters[a.Limit].arrived(now, a.N)
	}
	for _, a := range amounts {
		for _, o := range p.outages {
			if o.Limit == a.Limit && now >= o.From && now < o.To {
				p.meters[a.Limit].outage++
				return p.out(&o, now)
			}
		}
	}
	for _, a := range amounts {
		m := p.meters[a.Limit]
		if wait := m.wait(now, a.N); wait > 0 {
			m.refused++
			return Answer{
				Refused: true, Limit: a.Limit, Exhausted: m.rule.Kind.window(), RetryAfter: p.tell(wait), Counts: p.counts(now, amounts),
			}
		}
	}
	for _, a := range amounts {
		p.meters[a.Limit].admit(now, a.N)
	}
	return Answer{Counts: p.counts(now, amounts)}
}

// out returns the answer to a call in an outage.
func (p *Provider) out(o *Outage, now int64) Answer {
	a := Answer{Refused: true, Outage: true, Limit: o.Limit, RetryAfter: p.tell(o.To - now), Says: o.Says, Means: o.Means}
	if strings.Contains(o.Says, "{left}") {
		a.Says, a.Until = strings.ReplaceAll(o.Says, "{left}", wholeSeconds(o.To-now).String()), o.To
	}
	return a
}

// counts returns the counts in the headers of an answer.
func (p *Provider) counts(now int64, amounts []Amount) (all []Count) {
	for _, a := range amounts {
		switch m := p.meters[a.Limit]; {
		case m.rule.Kind.window():
			w := m.windowAt(now)
			all = append(all, Count{Limit: a.Limit, Left: max(m.rule.Limit-w.Admitted, 0), ResetAt: w.To})
		case m.rule.Tells:
			all = append(all, Count{Limit: a.Limit, Left: m.left(now)})
		}
	}
	return all
}

// Done ends a served call.
func (p *Provider) Done(now int64, amounts []Amount) {
	for _, a := range amounts {
		p.meters[a.Limit].done(now, a.N)
	}
}

// tell rounds a time up to the whole seconds of a Retry-After.
func (p *Provider) tell(wait int64) time.Duration {
	if p.silent {
		return 0
	}
	return wholeSeconds(wait)
}

func wholeSeconds(wait int64) time.Duration {
	return (time.Duration(wait) + time.Second - 1).Truncate(time.Second)
}

// Kind is the way in which a limit counts.
type Kind int

// The kinds.
const (
	// Calendar windows begin at multiples of their length, hours, days and months of UTC.
	Calendar Kind = 0
	// Anchored windows begin with the first call after the end of the last window, and end at a whole second.
	Anchored Kind = 1
	// Sliding limits hold in any period, wherever it begins.
	Sliding Kind = 2
	// Slots limit the number of calls in service at once.
	Slots Kind = 3
)

func (k Kind) window() bool { return k == Calendar || k == Anchored }

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case Calendar:
		return "calendar window"
	case Anchored:
		return "anchored window"
	case Sliding:
		return "rate"
	case Slots:
		return "slots"
	}
	return fmt.Sprintf("kind %d", int(k))
}
