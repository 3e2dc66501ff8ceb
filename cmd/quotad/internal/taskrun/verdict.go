package taskrun

import (
	"regexp"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/child"
	"github.com/quotad/quotad/rpc/signals"
)

// Judge returns the outcome of an attempt whose child printed these lines on standard output at one moment, and then exited
// with a code. It classifies as Run does, for callers without a child. done matches the output of a finished task.
func Judge(texts *signals.Texts, done *regexp.Regexp, lines []string, code int, at time.Time) client.Ending {
	l := &listener{texts: texts, done: done, now: func() time.Time { return at }}
	for _, line := range lines {
		l.hearOut([]byte(line))
	}
	return verdict(code, child.ExitWords(code), l.heard())
}

// heard is a listener's findings about a run.
type heard struct {
	// wanted: there is a done pattern. finished: it has matched.
	wanted, finished bool
	limit            *limit
	last             string
}

// verdict returns the outcome of an attempt from its child's exit code, a description of that, and the listener's findings.
// If there is a done pattern, it alone decides whether the task is finished. A child that failed after it, without a limit
// as the cause, has failed all the same.
func verdict(code int, words string, h heard) client.Ending {
	limited := h.limit != nil && h.limit.explains(code, h.wanted && !h.finished)
	switch {
	case h.finished && limited:
		how := h.limit.ending()
		how.Outcome = client.OutcomeFinishedThenLimited
		return how
	case limited:
		return h.limit.ending()
	case code == 0 && h.finished == h.wanted:
		return client.Ending{Outcome: client.OutcomeDone}
	case code == 0:
		words = "ended without the done pattern"
	}
	if h.last != "" {
		words += ": " + h.last
	}
	return client.Ending{Outcome: client.OutcomeFailed, Detail: words}
}

// explains reports whether a limit is the cause of a run's end. For a child that failed, it always is. For one that exited
// with 0, the match must be sure, and the limit must be one that no run survives, unless the run did not finish.
func (l *limit) explains(code int, unfinished bool) bool {
	if code != 0 {
		return true
	}
	lasting := l.message.Class == signals.Exhausted || l.message.Class == signals.Billing
	return l.message.Confidence == signals.Sure && (lasting || unfinished)
}

// ending returns the outcome that follows from a limit. A plan that is not paid returns only with a payment: each attempt
// is a failure, unless the provider named a time.
func (l *limit) ending() client.Ending {
	how := client.Ending{Wait: l.wait, Detail: l.line, Report: l.cause()}
	switch {
	case l.message.Class == signals.Exhausted, l.message.Class == signals.Billing && l.wait != nil:
		how.Outcome = client.OutcomePlanExhausted
	case l.message.Class == signals.Billing:
		how.Outcome = client.OutcomeFailed
	default:
		how.Outcome = client.OutcomeSaturated
	}
	return how
}

// cause is the cause in the report to the task's quotas.
func (l *limit) cause() client.Cause {
	switch l.message.Class {
	case signals.Throttled:
		if l.message.Scope == signals.ScopeOrg || l.message.Scope == signals.ScopeProject {
			return client.CauseAccount
		}
		return client.CauseSaturated
	case signals.Exhausted:
		return client.CauseExhausted
	case signals.Billing:
		return client.CausePlan
	case signals.Overloaded:
		return client.CauseOverloaded
	case signals.OK, signals.NotALimit:
	}
	return client.CauseNotALimit
}
