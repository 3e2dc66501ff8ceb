// Package signals reads what an API provider says about its rate limits: response headers, statuses and error bodies.
//
// It is pure: no clock, no network, no state. A [Dialect] turns one response into signals, one for each limit that the
// provider spoke of and, where the response was refused, one that says why. What a provider did not say, or said in a
// form that cannot be read, is unknown: unknown is never zero, and no number is ever made up. Every duration that comes
// out is at least 0 and at most 366 days, and what a caller is asked to wait is at most [MaxWait], or [MaxPlanWait] for the
// window of a plan.
//
// What agent tools say in words is read by [Texts].
//
// To add a provider, write a file with its observe function and one Dialect value, and name it in [Dialects].
package signals

import (
	"net/http"
	"slices"
	"time"
)

// MaxWait is the longest wait that a signal asks for. Longer ones are cut to it and marked Clamped.
const MaxWait = 24 * time.Hour

// MaxPlanWait is the longest wait for a plan's window, the longest of which is a week. Longer ones are cut to it.
const MaxPlanWait = 8 * 24 * time.Hour

// MaxBody is how much of an error body a caller should offer, in bytes. More is not looked at.
const MaxBody = 64 << 10

// maxSpan is the longest time that is believed at all, in either direction.
const maxSpan = 366 * 24 * time.Hour

// Class says what a response means for the caller's limits.
type Class int

// The classes.
const (
	// OK is an ordinary answer: only its counts matter.
	OK Class = 1
	// Throttled is too fast or too many at once. It heals within seconds or minutes.
	Throttled Class = 2
	// Exhausted is used up until the window resets.
	Exhausted Class = 3
	// Overloaded is the provider's own trouble: slow down, but no limit of ours is used up.
	Overloaded Class = 4
	// Billing is not paid for or not in the plan: waiting does not help.
	Billing Class = 5
	// NotALimit is an error that has nothing to do with rate limits.
	NotALimit Class = 6
)

// String returns the class's name.
func (c Class) String() string {
	switch c {
	case OK:
		return "ok"
	case Throttled:
		return "throttled"
	case Exhausted:
		return "exhausted"
	case Overloaded:
		return "overloaded"
	case Billing:
		return "billing"
	case NotALimit:
		return "not-a-limit"
	}
	return "unknown"
}

// Limited reports whether the response was refused because of a limit of the caller's own.
func (c Class) Limited() bool { return c == Throttled || c == Exhausted || c == Billing }

// Scope says what a limit covers.
type Scope int

// The scopes.
const (
	// ScopeUnknown is not said.
	ScopeUnknown Scope = 0
	// ScopeResource is the resource that the signal names.
	ScopeResource Scope = 1
	// ScopeKey is everything that uses the same key.
	ScopeKey Scope = 2
	// ScopeProject is the key's project.
	ScopeProject Scope = 3
	// ScopeOrg is the key's organisation.
	ScopeOrg Scope = 4
	// ScopeProvider is everybody.
	ScopeProvider Scope = 5
	// ScopePlan is a subscription's window.
	ScopePlan Scope = 6
	// ScopeModel is one model.
	ScopeModel Scope = 7
)

// String returns the scope's name.
func (s Scope) String() string {
	switch s {
	case ScopeResource:
		return "resource"
	case ScopeKey:
		return "key"
	case ScopeProject:
		return "project"
	case ScopeOrg:
		return "org"
	case ScopeProvider:
		return "provider"
	case ScopePlan:
		return "plan"
	case ScopeModel:
		return "model"
	case ScopeUnknown:
	}
	return "unknown"
}

// Count is a number that may be unknown. Known numbers are at least 0.
type Count struct {
	N     int64
	Known bool
}

// Span is a duration that may be unknown. Known ones are between 0 and 366 days.
type Span struct {
	D     time.Duration
	Known bool
}

// Signal is what a provider said about one limit.
type Signal struct {
	// Class is what the response means for this limit.
	Class Class
	// Scope is what the limit covers.
	Scope Scope
	// Resource names the limit in the provider's words: core, graphql, requests, tokens. Empty: not said.
	Resource string
	// Limit is the most that the limit allows.
	Limit Count
	// Remaining is what is left of it.
	Remaining Count
	// Used is what was used of it.
	Used Count
	// Requested is what the provider thinks the refused call would have taken.
	Requested Count
	// UsedShare is how much of the limit is used, in millionths, where the provider says that.
	UsedShare Count
	// Window is how long the limit's window or period is.
	Window Span
	// ResetIn is how long until the window ends, from now. 0: it ended, and the counts of the response are stale.
	ResetIn Span
	// ResetResolution is the precision of ResetIn.
	ResetResolution time.Duration
	// RefillIn is how long until the limit is full again, or has more. It is no wait: a call may fit long before.
	RefillIn Span
	// RetryAfter is how long to wait before the next attempt, at most MaxWait, or MaxPlanWait in the scope of a plan.
	RetryAfter Span
	// Clamped: RetryAfter was longer and was cut.
	Clamped bool
	// NoRetry: the provider asked not to try again, or trying again cannot help.
	NoRetry bool
	// Exact: Remaining was a whole, plain number, not one the provider is known to round.
	Exact bool
	// Malformed is how many values of the response could not be read and were left out. It stands on the first signal.
	Malformed int
	// Rule names the rule that classified the response, so that a drift in the provider's words shows in a metric.
	Rule string
}

// Dialect is the way one provider speaks. The zero Dialect says nothing.
type Dialect struct {
	name    string
	observe func(*response) []Signal
	// detect finds the dialect of a response; nil: it is this one.
	detect func(*response) Dialect
	// needsBody reports whether an answer without an error may be a refusal by its body; nil: none is.
	needsBody func(http.Header) bool
}

// Name returns the provider's name.
func (d Dialect) Name() string { return d.name }

// NeedsBody reports whether what a response means may depend on its body: that of an error, and of an answer whose
// status does not tell that it was refused.
func (d Dialect) NeedsBody(status int, header http.Header) bool {
	switch {
	case d.observe == nil && d.detect == nil:
		return false
	case status >= http.StatusBadRequest:
		return true
	}
	d = d.resolve(&response{status: status, header: header})
	return d.needsBody != nil && d.needsBody(header)
}

// Observe reads one response that arrived at now. body is the beginning of its body, at most MaxBody bytes of it are
// looked at; it may be empty or cut off anywhere. Counts come first, the verdict on a refused call last. Moments that the
// provider names are compared with the response's own Date, so that the two machines' clocks need not agree; without one,
// with now. ObserveAnswer leaves out what comes of that.
func (d Dialect) Observe(now time.Time, status int, header http.Header, body []byte) []Signal {
	return d.read(&response{now: now, status: status, header: header, body: body})
}

// ObserveAnswer is Observe for callers that report resets and waits: those that the provider named as moments in a response without a Date
// are unknown, since they would be wrong by as much as this machine's clock is.
func (d Dialect) ObserveAnswer(now time.Time, status int, header http.Header, body []byte) []Signal {
	return d.read(&response{now: now, undated: true, status: status, header: header, body: body})
}

// read reads a response.
func (d Dialect) read(r *response) []Signal {
	r.body = r.body[:min(len(r.body), MaxBody)]
	dated := false
	if sent, err := http.ParseTime(r.header.Get("Date")); err == nil {
		r.now, r.undated, dated = sent, false, true
	}
	if d = d.resolve(r); d.observe == nil {
		return nil
	}
	out := d.observe(r)
	for i := range out {
		if r.moments && dated && out[i].ResetIn.Known {
			out[i].ResetResolution += dateResolution
		}
	}
	if r.malformed == 0 {
		return out
	}
	if len(out) == 0 {
		out = []Signal{{Class: OK, Rule: "malformed"}}
	}
	out[0].Malformed = r.malformed
	return out
}

// Verdict returns the signal that says why a call was refused, if it was: the last one that is not OK.
func Verdict(signals []Signal) (Signal, bool) {
	for _, s := range slices.Backward(signals) {
		if s.Class != OK {
			return s, true
		}
	}
	return Signal{}, false
}

// dateResolution is the precision of a Date.
const dateResolution = time.Second

// response is one response and how much of it could not be read.
type response struct {
	// now is the response's own Date where it has one, or else when it arrived. moments: something was compared with it. undated: nothing
	// may be, since the response has no Date and its waits are reported.
	now              time.Time
	undated, moments bool
	status           int
	header           http.Header
	body             []byte
	malformed        int
}

// wait is what the provider asked the caller to wait. said and not known: it named a moment that cannot be told.
type wait struct {
	d           time.Duration
	said, known bool
}

// waitFor returns a wait that is known.
func waitFor(d time.Duration) wait { return wait{d: max(d, 0), said: true, known: true} }

// or returns w, or other where w is unknown.
func (w wait) or(other wait) wait {
	if w.known {
		return w
	}
	return other
}

// on writes the wait into a signal, cut to what its scope allows.
func (w wait) on(s Signal) Signal {
	most := MaxWait
	if s.Scope == ScopePlan {
		most = MaxPlanWait
	}
	s.RetryAfter, s.Clamped = Span{D: min(w.d, most), Known: w.known}, w.d > most
	return s
}
