package fsm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// line is one line of a story: a pause, a command, and its answer in the words of say. A line without a command only
// lets time pass.
type line struct {
	after   int64
	command *logpb.Command
	answer  string
}

// story is a named rule and the lines that demonstrate it.
type story struct {
	name   string
	quotas []*logpb.Quota
	lines  []line
}

// tell runs stories, each in its own world. It runs each a second time with the state written and read back before
// every line: a snapshot must keep all that the rule needs.
func tell(t *testing.T, stories []story) {
	t.Helper()
	for _, s := range stories {
		for _, reborn := range []bool{false, true} {
			name := s.name
			if reborn {
				name += ", from snapshots"
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				w.quotas(s.quotas...)
				for i, l := range s.lines {
					if reborn {
						w.reborn()
					}
					w.now += l.after
					if l.command == nil {
						w.apply()
						continue
					}
					if got := say(w.do(l.command)); got != l.answer {
						t.Fatalf("line %d, at %v:\n got %s\nwant %s", i+1, time.Duration(w.now), got, l.answer)
					}
				}
			})
		}
	}
}

// say describes a result in a few words. Times are cluster time, since the world began.
func say(r *logpb.Result) string {
	word := func(reason logpb.Reason) string { return strings.TrimPrefix(reason.String(), "REASON_") }
	switch kind := r.Kind.(type) {
	case *logpb.Result_Failure:
		return "! " + word(kind.Failure.Reason)
	case *logpb.Result_Refusal:
		text := word(kind.Refusal.Reason) + " " + kind.Refusal.Quota
		at, reopens := kind.Refusal.RetryAtNs, kind.Refusal.ReopensAtNs
		if _, to := RetryWindow(ledger.ClassStandard); reopens != 0 && at < reopens+to {
			at = reopens // another test covers retry times after a cooldown
		}
		if at != 0 {
			text += " again at " + time.Duration(at).String()
		}
		return text
	case *logpb.Result_Waiting:
		return fmt.Sprintf("waits as %d until %v", kind.Waiting.Ticket, time.Duration(kind.Waiting.UntilNs))
	case *logpb.Result_Granted:
		text := fmt.Sprintf("lease %d:%s until %v", kind.Granted.Lease, sayItems(kind.Granted.Items), time.Duration(kind.Granted.DeadlineNs))
		if c := kind.Granted.Consumed; c != nil {
			text += "; " + sayConsumed(c)
		}
		return text
	case *logpb.Result_Consumed:
		return sayConsumed(kind.Consumed)
	case *logpb.Result_Settled:
		return saySettled(kind.Settled)
	case *logpb.Result_Released:
		text := "back" + sayItems(kind.Released.Returned)
		if kind.Released.Ended {
			text += "; ended"
		}
		return text
	case *logpb.Result_Renewed:
		return "until " + time.Duration(kind.Renewed.DeadlineNs).String()
	case *logpb.Result_SessionOpened:
		return fmt.Sprintf("session %d", kind.SessionOpened.Session)
	case *logpb.Result_Reported:
		return sayReported(kind.Reported)
	case *logpb.Result_TaskBegun:
		if kind.TaskBegun.Attempt == 0 {
			return "done before"
		}
		return fmt.Sprintf("attempt %d, fence %d, until %v, %d of %d failed", kind.TaskBegun.Attempt, kind.TaskBegun.Fence,
			time.Duration(kind.TaskBegun.DeadlineNs), kind.TaskBegun.Failures, kind.TaskBegun.MaxFailures)
	case *logpb.Result_TaskEnded:
		return sayTask(kind.TaskEnded)
	case *logpb.Result_QuotasApplied:
		return "applied"
	}
	return "done"
}

func sayTask(e *logpb.TaskEnded) string {
	text := strings.ToLower(strings.TrimPrefix(e.Phase.String(), "TASK_PHASE_"))
	if e.NextNs != 0 {
		text += " until " + time.Duration(e.NextNs).String()
	}
	return fmt.Sprintf("%s, %d of %d failed", text, e.Failures, e.MaxFailures)
}

func sayItems(items []*logpb.GrantedItem) (text string) {
	for _, item := range items {
		text += fmt.Sprintf(" %s=%d", item.Quota, item.Amount)
	}
	return text
}

func sayConsumed(c *logpb.Consumed) string {
	return fmt.Sprintf("op %d spends%s by %v", c.Op, sayItems(c.Items), time.Duration(c.SpendByNs))
}

func saySettled(s *logpb.Settled) string {
	text := "settled"
	if len(s.Returned) > 0 {
		text += "; back" + sayItems(s.Returned)
	}
	if len(s.Overrun) > 0 {
		text += "; over" + sayItems(s.Overrun)
	}
	if s.Released {
		text += "; ended"
	}
	return text
}

func sayReported(r *logpb.Reported) string {
	var parts []string
	for _, q := range r.Quotas {
		text := q.Quota
		if q.CooldownUntilNs != 0 {
			text += " closed until " + time.Duration(q.CooldownUntilNs).String()
		}
		if q.ResetLearned {
			text += " reset learned"
		}
		if q.CappedTo != nil {
			text += fmt.Sprintf(" capped to %d", *q.CappedTo)
		}
		parts = append(parts, text)
	}
	return "reported: " + strings.Join(parts, ", ")
}

// Commands of stories, in a short form. A fence is that of the n-th grant; stories have one epoch.

func asks(holder string, ttl int64, items ...*logpb.Item) *logpb.Command {
	return reserve(&logpb.Reserve{Holder: holder, Items: items, TtlNs: ttl})
}

func waits(holder string, ttl, wait int64, items ...*logpb.Item) *logpb.Command {
	return reserve(&logpb.Reserve{Holder: holder, Items: items, TtlNs: ttl, WaitNs: wait})
}

func consumes(lease, op uint64, items ...*logpb.Item) *logpb.Command {
	return consumeCmd(&logpb.Consume{Lease: lease, Fence: lease, Op: op, Items: items})
}

func unspends(lease, op uint64, items ...*logpb.Item) *logpb.Command {
	return settle(&logpb.Settle{Lease: lease, Fence: lease, Op: op, Unspent: items})
}

func used(lease, op uint64, items ...*logpb.Item) *logpb.Command {
	return settle(&logpb.Settle{Lease: lease, Fence: lease, Op: op, Actual: items})
}

func releases(lease uint64, items ...*logpb.Item) *logpb.Command {
	return release(&logpb.Release{Lease: lease, Fence: lease, Items: items})
}

func renews(lease uint64, ttl int64) *logpb.Command {
	return renew(&logpb.Renew{Lease: lease, Fence: lease, TtlNs: ttl})
}

func numbered(session, seq, acked uint64, command *logpb.Command) *logpb.Command {
	command.Session, command.Seq, command.AckedBelow = session, seq, acked
	return command
}

func keyedBy(key string, command *logpb.Command) *logpb.Command {
	command.IdempotencyKey = key
	return command
}

func with[T any](value T, change func(T)) T {
	change(value)
	return value
}

func all(name string) *logpb.Item { return &logpb.Item{Quota: name} }
