package client

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrClosed says that the client was closed.
var ErrClosed = errors.New("quotad: the client is closed")

// ErrLeaseExpired is the cause with which a lease ends at its deadline.
var ErrLeaseExpired = errors.New("quotad: the lease's deadline has passed")

// ErrLeaseReleased is the cause with which a lease ends when its holder releases it.
var ErrLeaseReleased = errors.New("quotad: the lease was released")

// ErrClusterAway says that no node took the request in time. The last reason is wrapped with it.
var ErrClusterAway = errors.New("quotad: the cluster is away")

// ErrSlots says that a quota of kind slots was given to a limiter. A slot is in use as long as it is held, so it needs
// a lease: see Client.Reserve and Do.
var ErrSlots = errors.New("quotad: a limiter cannot use quotas of kind slots; use Reserve")

// ErrLate says that every allowance was too old to be spent when it arrived: the cluster takes longer to answer than the
// quota's spend-by allows. Nothing was sent to the provider.
var ErrLate = errors.New("quotad: grants arrive after their spend-by: the cluster is slow, or the quota's spend_by is too short")

// NotAcceptedError says that the request certainly had no effect. It is safe to send it again, anywhere.
type NotAcceptedError struct {
	// Reason is the cluster's reason, 0 where the request never got there.
	Reason Reason
	// Err is why it was given up, such as the context's error.
	Err error

	leader string
	// final: the cluster answered so, and would again: nothing is to be gained by sending it once more at once.
	final bool
}

// Error implements error.
func (e *NotAcceptedError) Error() string {
	return "quotad: not accepted: " + e.detail()
}

func (e *NotAcceptedError) detail() string { return detailOf(e.Reason, e.Err) }

// Unwrap returns what errors.Is may ask for: the reason and the error below.
func (e *NotAcceptedError) Unwrap() []error { return unwrap(e.Reason, e.Err) }

// UnknownOutcomeError says that the request may or may not have had an effect. The client repeats such requests under
// their own identity as long as the caller's context allows; this is what is left when it ran out, or when the session
// that made repeats safe has expired.
type UnknownOutcomeError struct {
	// Reason is the cluster's reason, 0 where none was heard.
	Reason Reason
	// Err is why it was given up.
	Err error
}

// Error implements error.
func (e *UnknownOutcomeError) Error() string {
	return "quotad: outcome unknown: " + e.detail()
}

func (e *UnknownOutcomeError) detail() string { return detailOf(e.Reason, e.Err) }

// Unwrap returns what errors.Is may ask for: the reason and the error below. That the last attempt was not accepted is not
// among it: who looks for a *NotAcceptedError asks whether there was no effect.
func (e *UnknownOutcomeError) Unwrap() []error {
	return append(unwrap(e.Reason, nil), doubtful(e.Err)...)
}

// doubtful returns an error, or where a *NotAcceptedError is in it, what stands beside and below that.
func doubtful(err error) (rest []error) {
	var parts interface{ Unwrap() []error }
	if _, refused := errors.AsType[*NotAcceptedError](err); !refused || !errors.As(err, &parts) {
		return unwrap(0, err)
	}
	for _, part := range parts.Unwrap() {
		rest = append(rest, doubtful(part)...)
	}
	return rest
}

// RefusalError is the cluster's answer "no", which changed nothing.
type RefusalError struct {
	// Reason says why.
	Reason Reason
	// Quota is the binding quota.
	Quota string
	// RetryAfter is when it is worth asking again, from now; -1: waiting does not help.
	RetryAfter time.Duration
	// ReopensIn is what is left of the quota's cooldown, from now; 0: it has none. RetryAfter is later, by a time of the class's retry
	// window.
	ReopensIn time.Duration
	// Zone is the quota's zone.
	Zone Zone
	// Advice says what would help, for people.
	Advice string
	// Available is what is available of the quota; below 0 after an overrun.
	Available int64
	// Ahead is how many Reserves stand before this one.
	Ahead int64
	// Forecast is what is predicted of the quotas that were asked for; nil: nothing.
	Forecast *Forecast
	// BackPressure is how the holder's workflow stands; nil: it is in none, or nothing in it is limited.
	BackPressure *BackPressure
	// Budget is what callers share of which there is no more, with ReasonCallerBudget and ReasonBudgetFull.
	Budget string
}

// Error implements error.
func (e *RefusalError) Error() string {
	text := fmt.Sprintf("quotad: refused: %s", e.Reason)
	if e.Quota != "" {
		text += " of " + e.Quota
	}
	if e.RetryAfter >= 0 {
		text += fmt.Sprintf(", retry after %v", rounded(e.RetryAfter))
	}
	if e.Advice != "" {
		text += ": " + e.Advice
	}
	return text
}

// Unwrap returns the reason.
func (e *RefusalError) Unwrap() error { return e.Reason }

// RequestError says that something is wrong with the request itself. It had no effect, and sending it again cannot
// help.
type RequestError struct {
	// Reason says what is wrong.
	Reason Reason
	// Message says it for people.
	Message string
	// Hint says what would help, for people.
	Hint string
	// Quota is the quota that it is about, if any.
	Quota string
	// Field is the field that it is about, if any.
	Field string
	// FenceCounter is the cluster's present fence, with ReasonStaleFence and ReasonNeverIssued.
	FenceCounter uint64

	// door: it was refused before the replicated state saw it, which says nothing of earlier attempts.
	door bool
	// local: it could not even be sent.
	local bool
}

// Error implements error.
func (e *RequestError) Error() string {
	text := fmt.Sprintf("quotad: %s: %s", e.Reason, e.Message)
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

// Unwrap returns the reason.
func (e *RequestError) Unwrap() error { return e.Reason }

// detailOf says what failed: a reason where there is one, and what else is known.
func detailOf(reason Reason, err error) string {
	text := detail(err)
	switch name := reason.String(); {
	case reason == 0:
		return text
	case err == nil || text == name || strings.HasPrefix(text, name+":"):
		return cmp.Or(text, name)
	default:
		return name + ": " + text
	}
}

// detail returns what an error says, without what the error around it says already.
func detail(err error) string {
	switch e := err.(type) { //nolint:errorlint // each level adds its own words
	case nil:
		return ""
	case interface{ detail() string }:
		return e.detail()
	default:
		return strings.TrimPrefix(err.Error(), "quotad: ")
	}
}

// rounded returns a duration as people read it.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}

func unwrap(reason Reason, err error) []error {
	var all []error
	if reason != 0 {
		all = append(all, reason)
	}
	if err != nil {
		all = append(all, err)
	}
	return all
}
