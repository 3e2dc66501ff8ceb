package taskrun

import (
	"regexp"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/child"
	"github.com/quotad/quotad/rpc/signals"
)

// Judge says how an attempt went whose child printed these lines on standard output at one moment, and then ended with an
// exit code: what Run makes of a child, for who has no child. done is what a finished task prints.
func Judge(texts *signals.Texts, done *regexp.Regexp, lines []string, code int, at time.Time) client.Ending {
	l := &listener{texts: texts, done: done, now: func() time.Time { return at }}
	for _, line := range lines {
		l.hearOut([]byte(line))
	}
	return verdict(code, child.ExitWords(code), l.heard())
}

// heard is what a listener made out of a run.
type heard struct {
	// wanted: a done pattern was set. finished: it was seen.
	wanted, finished bool
	limit            *limit
	last             string
}

// verdict says how an attempt went, by its child's exit code, that in words, and what was heard. Where a done pattern is
// wanted, it alone says that the task is finished; a child that failed after it, with no limit to blame, failed all the same.
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

// explains tells whether a limit is what ended a run. It is believed of a child that failed. Of one that ended with 0 it has
// to be sure, and of a kind that no run gets over, unless the run did not finish.
func (l *limit) explains(code int, unfinished bool) bool {
	if code != 0 {
		return true
	}
	lasting := l.message.Class == signals.Exhausted || l.message.Class == signals.Billing
	return l.message.Confidence == signals.Sure && (lasting || unfinished)
}

// ending says what a limit makes of an attempt. A plan that is not paid comes back only if somebody pays: each try is a
// failure, unless the provider named a time.
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

// cause is what the task's quotas are told.
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
