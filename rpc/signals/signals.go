// Package signals reads what an API provider says about its rate limits: response headers, statuses and error bodies.
//
// It is pure: no clock, no network, no state. A [Dialect] turns one response into signals: one for each limit that the provider named
// and, for a refused response, one that says why. What a provider did not say, or said in an unreadable form, is unknown. Unknown is
// never zero, and no number is invented. Every returned duration is at least 0 and at most 366 days. A wait is at most [MaxWait], or
// [MaxPlanWait] for the window of a plan.
//
// [Texts] reads the messages of agent tools.
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

// MaxBody is how much of an error body a caller should offer, in bytes. More is ignored.
const MaxBody = 64 << 10

// maxSpan is the longest time that is credible, in either direction.
const maxSpan = 366 * 24 * time.Hour

// Class says what a response means for the caller's limits.
type Class int

// The classes.
const (
	// OK is an ordinary answer: only its counts matter.
	OK Class = 1
	// Throttled means too fast, or too many at once. It recovers within seconds or minutes.
	Throttled Class = 2
	// Exhausted means used up until the window resets.
	Exhausted Class = 3
	// Overloaded is the provider's own overload: slow down, but no limit of the caller is used up.
	Overloaded Class = 4
	// Billing means not paid for, or not in the plan: waiting does not help.
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
	// ScopeUnknown means that the provider did not say.
	ScopeUnknown Scope = 0
	// ScopeResource is the resource that the signal names.
	ScopeResource Scope = 1
	// ScopeKey is everything that uses the same key.
	ScopeKey Scope = 2
	// ScopeProject is the key's project.
	ScopeProject Scope = 3
	// ScopeOrg is the key's organisation.
	ScopeOrg Scope = 4
	// ScopeProvider is everybody who uses the provider.
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
	// Requested is what the refused call would have taken, as the provider estimates it.
	Requested Count
	// UsedShare is the used part of the limit, in millionths, where the provider states it.
	UsedShare Count
	// Window is how long the limit's window or period is.
	Window Span
	// ResetIn is how long until the window ends, from now. 0: it ended, and the counts of the response are stale.
	ResetIn Span
	// ResetResolution is the precision of ResetIn.
	ResetResolution time.Duration
	// RefillIn is how long until the limit is full again, or has more. It is not a wait: a call may fit long before.
	RefillIn Span
	// RetryAfter is how long to wait before the next attempt, at most MaxWait, or MaxPlanWait in the scope of a plan.
	RetryAfter Span
	// Clamped: RetryAfter was longer and was cut.
	Clamped bool
	// NoRetry: the provider asked not to retry, or a retry cannot help.
	NoRetry bool
	// Exact: Remaining was a whole, plain number, not one the provider is known to round.
	Exact bool
	// Malformed is how many values of the response could not be read and were left out. Only the first signal has it.
	Malformed int
	// Rule names the rule that classified the response: a metric of it shows when the provider's words change.
	Rule string
}

// Dialect is the way one provider reports its limits. The zero Dialect reads nothing.
type Dialect struct {
	name    string
	observe func(*response) []Signal
	// detect finds the dialect of a response; nil: this one.
	detect func(*response) Dialect
	// needsBody reports whether the body of an answer without an error may show a refusal; nil: it never does.
	needsBody func(http.Header) bool
}

// Name returns the provider's name.
func (d Dialect) Name() string { return d.name }

// NeedsBody reports whether the meaning of a response may depend on its body. It may for an error, and for an answer whose status does
// not show a refusal.
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

// Observe reads one response that arrived at now. body is the beginning of its body: at most MaxBody bytes are read, and it may be empty
// or cut off anywhere. Counts come first, the verdict on a refused call last. Moments that the provider names are compared with the
// response's own Date, so that the clocks of the two machines need not agree; without one, with now. ObserveAnswer leaves out the results
// of the latter.
func (d Dialect) Observe(now time.Time, status int, header http.Header, body []byte) []Signal {
	return d.read(&response{now: now, status: status, header: header, body: body})
}

// ObserveAnswer is Observe for callers that report resets and waits. Those that a response without a Date names as moments are unknown,
// because they would be wrong by the error of this machine's clock.
func (d Dialect) ObserveAnswer(now time.Time, status int, header http.Header, body []byte) []Signal {
	return d.read(&response{now: now, undated: true, status: status, header: header, body: body})
}

// read applies a dialect to a response, in the time of its own Date if it has one.
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

// response is one response, with the number of its values that could not be read.
type response struct {
	// now is the response's own Date, or else its arrival. moments: something was compared with now. undated: nothing may be, because the
	// response has no Date and its waits are reported.
	now              time.Time
	undated, moments bool
	status           int
	header           http.Header
	body             []byte
	malformed        int
}

// wait is the wait that the provider asked for. said and not known: it named a moment that cannot be determined.
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
