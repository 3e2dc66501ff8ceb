package sim

import (
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
)

// longestObeyed is the longest Retry-After that the usual clients obey.
const longestObeyed = time.Minute

// alone is a caller without coordination.
type alone struct{ *agent }

func (a *alone) call(c *call) { a.try(c, 0) }

// try sends a call for the nth time in a sequence of retries.
func (a *alone) try(c *call, nth int) {
	a.pick(c)
	a.transmit(c, 0, func(said provider.Answer) {
		switch setting := &a.fleet.Alone; {
		case !said.Refused:
			a.finished(c, true)
		case c.stops(said):
			a.cutShort(c)
		case nth < setting.Retries && c.patienceLeft() > 0:
			a.in(a.backoff(nth, said.RetryAfter), func() { a.again(c, nth+1) })
		case a.kind.Patience == fleet.Forever:
			a.book.gaveUp(c)
			rest := int64(setting.Pause)
			a.in(rest-a.dice.below(int64(float64(rest)*setting.Jitter)+1), func() { a.again(c, 0) })
		default:
			a.finished(c, false)
		}
	})
}

func (a *alone) again(c *call, nth int) {
	if c.life == a.life {
		a.try(c, nth)
	}
}

// next begins a task's next attempt: no permission is needed.
func (a *alone) next(j *job) { j.begin(0) }

// received begins a task again if its tool ended with a code other than 0, however often that has happened.
func (a *alone) received(t *attempt, _ []string, code int) {
	if code == 0 {
		t.outcome = fleet.Done
		t.job.close(fleet.Done)
		return
	}
	t.outcome = fleet.Failed
	a.in(a.dice.span(a.fleet.Alone.Again), a.alive(func() { a.next(t.job) }))
}

// backoff returns the pause before a call is sent again.
func (a *alone) backoff(nth int, reported time.Duration) int64 {
	setting := &a.fleet.Alone
	if setting.Obeys && reported > 0 && reported <= longestObeyed {
		return int64(reported)
	}
	wait := min(int64(setting.First)<<min(nth, 30), int64(setting.Most))
	if wait <= 0 {
		wait = int64(setting.Most)
	}
	return wait - a.dice.below(int64(float64(wait)*setting.Jitter)+1)
}
