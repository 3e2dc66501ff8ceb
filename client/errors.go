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

// ErrLeaseExpired is the cause of a lease that ended at its deadline.
var ErrLeaseExpired = errors.New("quotad: the lease's deadline has passed")

// ErrLeaseReleased is the cause of a lease that ended because its holder released it.
var ErrLeaseReleased = errors.New("quotad: the lease was released")

// ErrClusterAway says that no node accepted the request in time. It wraps the last reason.
var ErrClusterAway = errors.New("quotad: the cluster is away")

// ErrSlots says that a limiter was given a quota of kind slots. A slot is in use as long as it is held, so it needs a lease: see
// Client.Reserve and Do.
var ErrSlots = errors.New("quotad: a limiter cannot use quotas of kind slots; use Reserve")

// ErrLate says that each grant was past its last take when it arrived, since the cluster takes longer to answer than the quota's spend-by
// allows. Nothing was sent to the provider.
var ErrLate = errors.New("quotad: grants arrive after their spend-by: the cluster is slow, or the quota's spend_by is too short")

// NotAcceptedError reports that the request certainly had no effect. Sending it again is safe, to any node.
type NotAcceptedError struct {
	// Reason is the cluster's reason; 0 if the request reached no node.
	Reason Reason
	// Err is why the client stopped trying, such as the context's error.
	Err error

	leader string
	// final: a repeat would get the same answer, so the client does not retry at once.
	final bool
}

// Error implements error.
func (e *NotAcceptedError) Error() string {
	return "quotad: not accepted: " + e.detail()
}

func (e *NotAcceptedError) detail() string { return detailOf(e.Reason, e.Err) }

// Unwrap returns the reason and the wrapped error, for errors.Is.
func (e *NotAcceptedError) Unwrap() []error { return unwrap(e.Reason, e.Err) }

// UnknownOutcomeError reports that the request may or may not have had an effect. The client repeats such a request under its identity
// while the caller's context allows. This error remains when the context ends, or when the session that made repeats safe has expired.
type UnknownOutcomeError struct {
	// Reason is the cluster's reason; 0 if no node gave one.
	Reason Reason
	// Err is why the client stopped trying.
	Err error
}

// Error implements error.
func (e *UnknownOutcomeError) Error() string {
	return "quotad: outcome unknown: " + e.detail()
}

func (e *UnknownOutcomeError) detail() string { return detailOf(e.Reason, e.Err) }

// Unwrap returns the reason and the wrapped error, for errors.Is. It leaves out a *NotAcceptedError of the last attempt: a caller that
// looks for one wants to know that there was no effect.
func (e *UnknownOutcomeError) Unwrap() []error {
	return append(unwrap(e.Reason, nil), doubtful(e.Err)...)
}

// doubtful returns err; if err contains a *NotAcceptedError, the other errors in it and those that the *NotAcceptedError wraps.
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

// RefusalError is the cluster's answer "no". The request changed nothing.
type RefusalError struct {
	// Reason says why.
	Reason Reason
	// Quota is the binding quota.
	Quota string
	// RetryAfter is the time from now until a retry is useful; -1: waiting does not help.
	RetryAfter time.Duration
	// ReopensIn is the remaining cooldown of the quota, from now; 0: none. RetryAfter is later, by a time in the class's retry window.
	ReopensIn time.Duration
	// Zone is the quota's zone.
	Zone Zone
	// Advice is a text for people: what would help.
	Advice string
	// Available is the amount available of the quota; negative after an overrun.
	Available int64
	// Ahead is the number of Reserves in the queue before this one.
	Ahead int64
	// Forecast is the prediction for the requested quotas; nil: none.
	Forecast *Forecast
	// BackPressure is the state of the holder's workflow; nil: it has none, or nothing in it is limited.
	BackPressure *BackPressure
	// Budget is the exhausted budget that callers share, with ReasonCallerBudget and ReasonBudgetFull.
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

// RequestError reports an error in the request itself. The request had no effect, and a repeat cannot help.
type RequestError struct {
	// Reason is what is wrong.
	Reason Reason
	// Message describes it for people.
	Message string
	// Hint is a text for people: what would help.
	Hint string
	// Quota is the quota in question, if any.
	Quota string
	// Field is the field in question, if any.
	Field string
	// FenceCounter is the cluster's present fence, with ReasonStaleFence and ReasonNeverIssued.
	FenceCounter uint64

	// beforeApply: rejected before the state machine applied it, so earlier attempts may still have had an effect.
	beforeApply bool
	// local: the request could not be sent at all.
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

// detailOf describes a failure: the reason, if there is one, and the error's own text.
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

// detail returns an error's text without the prefix that the wrapping error already has.
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

// rounded returns a duration in a precision for people.
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
