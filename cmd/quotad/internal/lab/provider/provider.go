// Package provider is an API provider in virtual time: it enforces its limits and counts by itself, the calls of
// everybody who has the key. It shares nothing with the state machine that it is used to judge.
//
// Moments are nanoseconds since the run began. A Provider belongs to one goroutine.
package provider

import (
	"fmt"
	"strings"
	"time"
)

// Amount is so much of a limit, by the limit's index.
type Amount struct {
	Limit int
	N     int64
}

// Answer is how the provider answers a call that has just arrived.
type Answer struct {
	// Refused: the call was not served.
	Refused bool
	// Outage: it was refused for an outage, not for a limit.
	Outage bool
	// Says is what a tool prints that meets the outage, empty: nothing is known of that; Means is what the file says of
	// it. Until is when the outage ends, where what is said names that.
	Says, Means string
	Until       int64
	// Limit is the index of the limit that refused it, Exhausted says that it is used up until its reset.
	Limit     int
	Exhausted bool
	// RetryAfter is the time to come back in whole seconds; 0: the provider does not say.
	RetryAfter time.Duration
	// Counts are what its headers say of the windows that the call drew on, and of rates that tell.
	Counts []Count
}

// Count is what is left of a window, and the moment at which it resets; of a rate 0.
type Count struct {
	Limit   int
	Left    int64
	ResetAt int64
}

// Outage is a time in which every call on a limit is refused.
type Outage struct {
	Limit    int
	From, To int64
	// Says is what a tool prints that meets it, with {left} for what is left of it in whole seconds.
	Says, Means string
}

// Provider is the provider of one fleet.
type Provider struct {
	meters  []*Meter
	outages []Outage
	silent  bool
}

// New returns a provider. silent: its refusals name no time to come back.
func New(meters []*Meter, outages []Outage, silent bool) *Provider {
	return &Provider{meters: meters, outages: outages, silent: silent}
}

// Meters returns what counts, by index.
func (p *Provider) Meters() []*Meter { return p.meters }

// Arrive takes a call in. What is refused is not counted against a limit. A call that was served and draws on slots must
// be followed by Done.
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

// counts returns what the headers of an answer say.
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

// Done ends a call that was served.
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

// Kind is how a limit is counted.
type Kind int

// The kinds.
const (
	// Calendar windows begin at multiples of their length, hours, days and months of UTC.
	Calendar Kind = 0
	// Anchored windows begin with the first call after the last one's end, and end at a whole second.
	Anchored Kind = 1
	// Sliding limits hold in any period, wherever it begins.
	Sliding Kind = 2
	// Slots limit how many calls are served at once.
	Slots Kind = 3
)

func (k Kind) window() bool { return k == Calendar || k == Anchored }

// String returns the kind's word.
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
