package fsm

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
)

// no is a command that gets a refusal or a failure.
type no struct {
	name string
	// before are carried out first, each a pace after the last.
	before  []*logpb.Command
	pace    int64
	after   int64
	command *logpb.Command
	reason  logpb.Reason
	// inLine: there are waiters, so the command is judged in the queue, which takes a ticket; or the refusal is
	// recorded.
	inLine bool
}

// refusingWorld has a lease of each condition: 1 consumed (r, full, closed, h), 2 holds r and a slot, 3 holds of the
// bursty, the suspended and the closed quota. The closed one is closed for 40 s.
func refusingWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	burst := rateOf("b", 60, minute)
	burst.GetRate().Burst = 10
	w.quotas(rateOf("r", 10, minute), rateOf("full", 1, minute), rateOf("closed", 10, minute), rateOf("zero", 10, minute),
		slotsOf("s", 1), hourly("h", 10), burst, with(rateOf("c", 10, minute), func(q *logpb.Quota) { q.ClampHold = true }))
	for i, req := range []*logpb.Command{
		consumesAtOnce("a", itemOf("r", 2), itemOf("full", 1), itemOf("closed", 1), itemOf("h", 1)),
		asks("h", 0, itemOf("r", 3), itemOf("s", 1)),
		asks("h", 2*hour, itemOf("b", 20), itemOf("zero", 1), itemOf("closed", 1), itemOf("h", 1)),
	} {
		if g := w.do(req).GetGranted(); g == nil || g.Lease != uint64(i+1) {
			t.Fatalf("lease %d: %v", i+1, g)
		}
	}
	w.quotas(rateOf("zero", 0, minute))
	w.do(reports(1, 1, signal("closed", logpb.Cause_CAUSE_SATURATED, retryAfter(40*second))))
	return w
}

// taskNos are the refusals and failures of commands on tasks; fence 4 of the cluster is the task's first.
func taskNos() []no {
	under := []*logpb.Command{begins("t", "x", 0)}
	ended := append(under, ends("t", 4, logpb.TaskOutcome_TASK_OUTCOME_FAILED))
	shelved := []*logpb.Command{begins("t", "x", 1), ends("t", 4, logpb.TaskOutcome_TASK_OUTCOME_FAILED)}
	full := append(under, limitsTo(func(l *logpb.SetLimits) { l.MaxTasks = proto.Int64(1) }))
	on := func(quota string) *logpb.Command {
		return with(begins("u", "x", 0), func(c *logpb.Command) { c.GetBeginTask().Quotas = []string{"r", quota} })
	}
	ended2 := func(change func(*logpb.EndTask)) *logpb.Command {
		return with(ends("t", 4, logpb.TaskOutcome_TASK_OUTCOME_DONE), func(c *logpb.Command) { change(c.GetEndTask()) })
	}
	return []no{
		{name: "begin a shelved task", before: shelved, command: begins("t", "x", 0), reason: logpb.Reason_REASON_TASK_SHELVED},
		{name: "begin what is in flight", before: under, command: begins("t", "y", 0), reason: logpb.Reason_REASON_TASK_IN_FLIGHT},
		{name: "begin too early", before: ended, command: begins("t", "x", 0), reason: logpb.Reason_REASON_TASK_LATER},
		{name: "begin on a closed quota", command: on("closed"), reason: logpb.Reason_REASON_COOLDOWN},
		{name: "begin on a suspended quota", command: on("zero"), reason: logpb.Reason_REASON_SUSPENDED},
		{name: "begin on no quota", command: on("nowhere"), reason: logpb.Reason_REASON_UNKNOWN_QUOTA},
		{
			name: "begin another attempt", command: with(begins("t", "x", 0), func(c *logpb.Command) { c.GetBeginTask().Attempt = 2 }),
			reason: logpb.Reason_REASON_STALE_ATTEMPT,
		},
		{name: "one task too many", before: full, command: begins("u", "x", 0), reason: logpb.Reason_REASON_TASKS_FULL},
		{name: "a task without a name", command: begins("", "x", 0), reason: logpb.Reason_REASON_INVALID},
		{name: "a task without a holder", command: begins("t", "", 0), reason: logpb.Reason_REASON_INVALID},
		{name: "a hundred and one failures", command: begins("t", "x", 101), reason: logpb.Reason_REASON_INVALID},
		{
			name: "a foreign task", before: under, command: by("y*", ends("t", 4, logpb.TaskOutcome_TASK_OUTCOME_DONE)),
			reason: logpb.Reason_REASON_FOREIGN_TASK,
		},
		{name: "put a foreign task back", before: under, command: by("y*", retries("t")), reason: logpb.Reason_REASON_FOREIGN_TASK},
		{
			name: "end with another's fence", before: under, command: ends("t", 3, logpb.TaskOutcome_TASK_OUTCOME_DONE),
			reason: logpb.Reason_REASON_STALE_FENCE,
		},
		{
			name: "end with a fence of the future", before: under, command: ends("t", 5, logpb.TaskOutcome_TASK_OUTCOME_DONE),
			reason: logpb.Reason_REASON_NEVER_ISSUED,
		},
		{
			name: "end otherwise", before: ended, command: ends("t", 4, logpb.TaskOutcome_TASK_OUTCOME_DONE),
			reason: logpb.Reason_REASON_STALE_ATTEMPT,
		},
		{name: "end without an outcome", before: under, command: ends("t", 4, 0), reason: logpb.Reason_REASON_INVALID},
		{name: "end as lost", before: under, command: ends("t", 4, logpb.TaskOutcome_TASK_OUTCOME_LOST), reason: logpb.Reason_REASON_INVALID},
		{
			name: "end after the deadline", before: under, after: task.DefaultTTL,
			command: ends("t", 4, logpb.TaskOutcome_TASK_OUTCOME_DONE), reason: logpb.Reason_REASON_STALE_FENCE,
		},
		{
			name: "a wait below 0", before: under, command: ended2(func(e *logpb.EndTask) { e.WaitNs = proto.Int64(-1) }),
			reason: logpb.Reason_REASON_INVALID,
		},
		{
			name: "a long detail", before: under, command: ended2(func(e *logpb.EndTask) { e.Detail = strings.Repeat("x", 301) }),
			reason: logpb.Reason_REASON_INVALID,
		},
		{name: "an unknown cause", before: under, command: ended2(func(e *logpb.EndTask) { e.Report = 8 }), reason: logpb.Reason_REASON_INVALID},
		{name: "renew what has ended", before: ended, command: renewsTask("t", 4, 0), reason: logpb.Reason_REASON_STALE_ATTEMPT},
		{name: "renew nothing", command: renewsTask("t", 3, 0), reason: logpb.Reason_REASON_STALE_FENCE},
		{name: "renew for a day and more", before: under, command: renewsTask("t", 4, day+1), reason: logpb.Reason_REASON_INVALID},
		{name: "put nothing back", command: retries("t"), reason: logpb.Reason_REASON_UNKNOWN_TASK},
		{name: "forget nothing", command: forgets("t"), reason: logpb.Reason_REASON_UNKNOWN_TASK},
	}
}

func opens() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "x"}}}
}

func limitsTo(change func(*logpb.SetLimits)) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: with(&logpb.SetLimits{}, change)}}
}

func deletes(quota string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: quota}}}
}

func founds(id string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Found{Found: &logpb.Found{ClusterId: id}}}
}

func raisesEpoch(to uint32) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_RaiseEpoch{RaiseEpoch: &logpb.RaiseEpoch{Epoch: to}}}
}

func putMember(id, address string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_PutMember{PutMember: &logpb.PutMember{Id: id, ApiAddress: address}}}
}

func deleteMember(id string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_DeleteMember{DeleteMember: &logpb.DeleteMember{Id: id}}}
}

func by(who string, command *logpb.Command) *logpb.Command {
	command.By = who
	return command
}

// refusals are the ordinary refusals of a Reserve or Consume.
func refusals() []no {
	one := func(quota string) *logpb.Command { return asks("x", 0, itemOf("r", 1), itemOf(quota, 1)) }
	line := []*logpb.Command{waits("first", 0, minute, itemOf("r", 9))}
	return []no{
		{name: "more than can be", command: asks("x", 0, itemOf("s", 2), itemOf("r", 1)), reason: logpb.Reason_REASON_NEVER_FITS},
		{name: "more than can be at once", command: consumesAtOnce("x", itemOf("b", 11)), reason: logpb.Reason_REASON_NEVER_FITS},
		{name: "a waiter that can never be served", command: waits("x", 0, minute, itemOf("r", 11)), reason: logpb.Reason_REASON_NEVER_FITS},
		{name: "above a clamp", command: asks("x", 0, itemOf("c", 6), itemOf("r", 1)), reason: logpb.Reason_REASON_ABOVE_CLAMP},
		{name: "suspended", command: one("zero"), reason: logpb.Reason_REASON_SUSPENDED},
		{name: "consumed of what is suspended", command: consumes(3, 1, itemOf("zero", 1)), reason: logpb.Reason_REASON_SUSPENDED},
		{name: "closed", command: one("closed"), reason: logpb.Reason_REASON_COOLDOWN},
		{name: "consumed of what is closed", command: consumes(3, 1, itemOf("b", 1), itemOf("closed", 1)), reason: logpb.Reason_REASON_COOLDOWN},
		{name: "one of two is full", command: one("full"), reason: logpb.Reason_REASON_EXHAUSTED},
		{name: "no slot", command: one("s"), reason: logpb.Reason_REASON_EXHAUSTED},
		{
			name: "the burst is used up", before: []*logpb.Command{consumes(3, 1, itemOf("b", 7))},
			command: consumes(3, 2, itemOf("b", 7)), reason: logpb.Reason_REASON_EXHAUSTED,
		},
		{name: "more than one burst", command: consumes(3, 1, itemOf("b", 20)), reason: logpb.Reason_REASON_NEVER_FITS},
		{
			name: "behind a waiting request", before: line, command: asks("x", 0, itemOf("r", 1)), reason: logpb.Reason_REASON_BEHIND_WAITERS,
			inLine: true,
		},
		{
			name: "too late", before: []*logpb.Command{
				consumesAtOnce("x", itemOf("c", 5)), consumesAtOnce("x", itemOf("c", 5)), used(4, 1, itemOf("c", 5)), releases(4),
				used(5, 1, itemOf("c", 5)), releases(5),
			},
			command: waits("x", 0, second, itemOf("c", 5)), reason: logpb.Reason_REASON_CANNOT_SERVE_IN_TIME,
		},
		{
			name: "a full queue", before: append(line, limitsTo(func(l *logpb.SetLimits) { l.MaxWaiters = proto.Int64(1) })),
			command: waits("x", 0, minute, itemOf("r", 9)), reason: logpb.Reason_REASON_QUEUE_FULL, inLine: true,
		},
		{
			name: "little is left", before: []*logpb.Command{applyQuotas(strict(hourly("z", 10))), asks("a", 0, itemOf("z", 9))},
			command: asks("x", 0, itemOf("z", 1), itemOf("r", 1)), reason: logpb.Reason_REASON_ZONE,
		},
		{
			name: "it is kept for a higher class", before: []*logpb.Command{applyQuotas(policed(hourly("k", 100),
				&logpb.Policy{Shares: fleetShares()})), asks("a", 0, itemOf("k", 55))},
			command: asks("x", 0, itemOf("k", 7), itemOf("r", 1)), reason: logpb.Reason_REASON_SHARE, inLine: true,
		},
		{
			name: "critical calls have had theirs", before: []*logpb.Command{
				holders(&logpb.HolderRule{Pattern: "crit", Class: ledger.ClassCritical}),
				applyQuotas(policed(hourly("k", 100), &logpb.Policy{Shares: fleetShares()})), asks("crit", 0, itemOf("k", 89)),
			},
			command: asks("crit", 0, itemOf("k", 2), itemOf("r", 1)), reason: logpb.Reason_REASON_CAP, inLine: true,
		},
		{
			name: "it will be used up soon", before: append([]*logpb.Command{
				holders(&logpb.HolderRule{Pattern: "back", Class: ledger.ClassBackground}), applyQuotas(predicted(hourly("p", 1000))),
			}, fallsTo("p", 3)...), pace: second,
			command: asks("back", 0, itemOf("p", 1), itemOf("r", 1)), reason: logpb.Reason_REASON_PARKED,
		},
		{
			name: "too soon after a cooldown", before: closedOnce(&logpb.Policy{RampNs: minute}), after: 2 * second,
			command: asks("x", 0, itemOf("p", 5), itemOf("r", 1)), reason: logpb.Reason_REASON_REOPENING,
		},
		{
			name: "the provider refused this one too often", before: closedOnce(&logpb.Policy{Breaker: &logpb.Breaker{Failures: 1}}),
			after:   2 * second,
			command: asks("a", 0, itemOf("p", 1), itemOf("r", 1)), reason: logpb.Reason_REASON_BREAKER_OPEN,
		},
		{
			name: "another holder has the baton", before: append([]*logpb.Command{workflows(with(chain("w", "x", "a"),
				func(w *logpb.Workflow) { w.Threshold = 1 }))},
				append(closedOnce(nil), asks("a", 0, itemOf("r", 1)))...),
			command: asks("x", 0, itemOf("r", 1)), reason: logpb.Reason_REASON_SEQUENTIAL, inLine: true,
		},
		{
			name: "one downstream is limited", before: append([]*logpb.Command{workflows(chain("w", "x", "a"))}, closedOnce(nil)...),
			command: asks("x", 0, itemOf("r", 1)), reason: logpb.Reason_REASON_BACK_PRESSURE,
		},
	}
}

// fallsTo returns reports with a falling remainder of a quota, at last left.
func fallsTo(quota string, left int64) (commands []*logpb.Command) {
	for lease := range uint64(3) {
		commands = append(commands, consumesAtOnce("a", itemOf(quota, 1)),
			reports(lease+4, 1, signal(quota, logpb.Cause_CAUSE_OK, remaining(left+10*int64(2-lease)))))
	}
	return commands
}

// closedOnce returns commands that close the quota p, which has a policy, for a second.
func closedOnce(p *logpb.Policy) []*logpb.Command {
	return []*logpb.Command{
		applyQuotas(policed(rateOf("p", 10, minute), p)), consumesAtOnce("a", itemOf("p", 1)),
		reports(4, 1, signal("p", logpb.Cause_CAUSE_SATURATED, retryAfter(second))),
	}
}

// failuresOfLeases are the failures of commands that name a lease.
func failuresOfLeases() []no {
	const closes = hour + 2*second
	done := []*logpb.Command{consumeCmd(&logpb.Consume{Lease: 2, Fence: 2, Op: 5, Items: []*logpb.Item{itemOf("r", 1)}, DoneBelow: 5})}
	final := []*logpb.Command{used(1, 1, itemOf("r", 1))}
	many := make([]*logpb.Command, 0, maxRecords+1)
	many = append(many, asks("x", 0, itemOf("c", 1)), applyQuotas(rateOf("big", 1<<20, minute)), asks("x", 0, itemOf("big", 5000)))
	for op := range uint64(maxRecords) {
		many = append(many, consumes(5, op+1, itemOf("big", 1)))
	}
	return []no{
		{name: "an empty settle", command: settle(&logpb.Settle{Lease: 1, Fence: 1, Op: 1}), reason: logpb.Reason_REASON_INVALID},
		{name: "a length above a day", command: renews(1, day+1), reason: logpb.Reason_REASON_INVALID},
		{name: "slots to consume", command: consumes(2, 1, itemOf("s", 1)), reason: logpb.Reason_REASON_INVALID},
		{name: "an item twice", command: consumes(2, 1, itemOf("r", 1), itemOf("r", 1)), reason: logpb.Reason_REASON_INVALID},
		{name: "no cause", command: reports(1, 1, signal("r", 0)), reason: logpb.Reason_REASON_INVALID},
		{
			name: "consume, another's fence", command: consumeCmd(&logpb.Consume{Lease: 2, Fence: 3, Op: 1}),
			reason: logpb.Reason_REASON_STALE_FENCE,
		},
		{
			name: "settle, another's fence", command: settle(&logpb.Settle{Lease: 1, Fence: 2, Op: 1, Actual: []*logpb.Item{itemOf("r", 9)}}),
			reason: logpb.Reason_REASON_STALE_FENCE,
		},
		{name: "release, another's fence", command: release(&logpb.Release{Lease: 2, Fence: 1}), reason: logpb.Reason_REASON_STALE_FENCE},
		{name: "renew, no such lease", command: renew(&logpb.Renew{Lease: 9, Fence: 1}), reason: logpb.Reason_REASON_STALE_FENCE},
		{
			name: "report, a dead lease", before: []*logpb.Command{releases(1)}, command: reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED)),
			reason: logpb.Reason_REASON_STALE_FENCE,
		},
		{
			name: "settle, a dead lease, downwards", before: []*logpb.Command{releases(1)}, command: used(1, 1, itemOf("r", 1)),
			reason: logpb.Reason_REASON_STALE_FENCE,
		},
		{
			name: "settle, a dead lease, up and down", before: []*logpb.Command{releases(1)}, command: used(1, 1, itemOf("r", 9), itemOf("h", 0)),
			reason: logpb.Reason_REASON_STALE_FENCE,
		},
		{name: "a fence of the future", command: releases(4), reason: logpb.Reason_REASON_NEVER_ISSUED},
		{name: "consume below the mark", before: done, command: consumes(2, 4, itemOf("r", 1)), reason: logpb.Reason_REASON_STALE_OPERATION},
		{name: "settle what never was", command: used(2, 1, itemOf("r", 1)), reason: logpb.Reason_REASON_STALE_OPERATION},
		{
			name: "report what never was", command: reports(2, 1, signal("r", logpb.Cause_CAUSE_SATURATED)),
			reason: logpb.Reason_REASON_STALE_OPERATION,
		},
		{name: "a number for two things", before: done, command: consumes(2, 5, itemOf("r", 2)), reason: logpb.Reason_REASON_OPERATION_REUSED},
		{
			name: "too many operations", before: many, command: consumes(5, 5000, itemOf("big", 1)), reason: logpb.Reason_REASON_TOO_MANY_OPERATIONS,
		},
		{
			name: "consume of a closed window", after: closes, command: consumes(3, 1, itemOf("b", 1), itemOf("h", 1)),
			reason: logpb.Reason_REASON_ITEM_CLOSED,
		},
		{
			name: "release of a closed window", after: closes, command: releases(3, itemOf("b", 1), itemOf("h", 1)),
			reason: logpb.Reason_REASON_ITEM_CLOSED,
		},
		{name: "consume too much of one of two", command: consumes(3, 1, itemOf("b", 1), itemOf("h", 2)), reason: logpb.Reason_REASON_NOT_HELD},
		{name: "release too much of one of two", command: releases(2, itemOf("s", 1), itemOf("r", 4)), reason: logpb.Reason_REASON_NOT_HELD},
		{name: "unspend too much of one of two", command: unspends(1, 1, itemOf("h", 1), itemOf("r", 3)), reason: logpb.Reason_REASON_NOT_HELD},
		{name: "report one that is not held", command: reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED),
			signal("s", logpb.Cause_CAUSE_SATURATED)), reason: logpb.Reason_REASON_NOT_HELD},
		{name: "another actual", before: final, command: used(1, 1, itemOf("r", 2)), reason: logpb.Reason_REASON_ALREADY_SETTLED},
		{name: "unspent after the actual", before: final, command: unspends(1, 1, itemOf("r", 1)), reason: logpb.Reason_REASON_ALREADY_SETTLED},
		{name: "unspent too late, the actual with it", after: 2*second + 1, command: settle(&logpb.Settle{
			Lease: 1, Fence: 1, Op: 1, Unspent: []*logpb.Item{itemOf("r", 1)}, Actual: []*logpb.Item{itemOf("r", 1)}, Release: true,
		}), reason: logpb.Reason_REASON_PAST_SPEND_BY},
		{name: "consume a foreign one", command: by("x*", consumes(2, 1)), reason: logpb.Reason_REASON_FOREIGN_LEASE},
		{name: "settle a foreign one", command: by("x*", used(1, 1, itemOf("r", 1))), reason: logpb.Reason_REASON_FOREIGN_LEASE},
		{
			name: "report of a foreign one", command: by("x*", reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED))),
			reason: logpb.Reason_REASON_FOREIGN_LEASE,
		},
	}
}

// failures are the failures of all other commands.
func failures() []no {
	session := []*logpb.Command{opens(), numbered(1, 3, 3, asks("x", 0, itemOf("r", 1)))}
	few := limitsTo(func(l *logpb.SetLimits) { l.MaxResultBytes, l.MaxSessions = proto.Int64(1), proto.Int64(1) })
	return []no{
		{name: "an unknown quota", command: asks("x", 0, itemOf("r", 1), itemOf("nowhere", 1)), reason: logpb.Reason_REASON_UNKNOWN_QUOTA},
		{name: "delete an unknown quota", command: deletes("nowhere"), reason: logpb.Reason_REASON_UNKNOWN_QUOTA},
		{
			name: "a limit of the state below 1", command: limitsTo(func(l *logpb.SetLimits) { l.MaxWaiters = proto.Int64(0) }),
			reason: logpb.Reason_REASON_INVALID,
		},
		{name: "a rule without a class", command: holders(&logpb.HolderRule{Pattern: "x", Class: 3}), reason: logpb.Reason_REASON_INVALID},
		{name: "request 0", before: session, command: numbered(1, 0, 0, asks("x", 0, itemOf("r", 1))), reason: logpb.Reason_REASON_INVALID},
		{name: "an unknown session", command: numbered(9, 1, 0, asks("x", 0, itemOf("r", 1))), reason: logpb.Reason_REASON_UNKNOWN_SESSION},
		{
			name: "another's session", before: session, command: by("x", numbered(1, 4, 0, asks("x", 0, itemOf("r", 1)))),
			reason: logpb.Reason_REASON_UNKNOWN_SESSION,
		},
		{name: "close an unknown session", command: &logpb.Command{
			Session: 9, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}},
		}, reason: logpb.Reason_REASON_UNKNOWN_SESSION},
		{
			name: "below what was acknowledged", before: session, command: numbered(1, 2, 0, asks("x", 0, itemOf("r", 1))),
			reason: logpb.Reason_REASON_SEQ_TOO_OLD,
		},
		{
			name: "a request's number for another", before: session, command: numbered(1, 3, 0, asks("x", 0, itemOf("r", 2))),
			reason: logpb.Reason_REASON_SEQ_REUSED,
		},
		{
			name: "a key for another request", before: []*logpb.Command{keyedBy("k", asks("x", 0, itemOf("r", 1)))},
			command: keyedBy("k", releases(1)), reason: logpb.Reason_REASON_SEQ_REUSED,
		},
		{name: "one session too many", before: append(session, few), command: opens(), reason: logpb.Reason_REASON_SESSIONS_FULL},
		{
			name: "one key too many", before: append(session, few), command: keyedBy("k", asks("x", 0, itemOf("r", 1))),
			reason: logpb.Reason_REASON_SESSIONS_FULL,
		},
		{
			name: "one result too many", before: append(session, few), command: numbered(1, 4, 0, asks("x", 0, itemOf("r", 1))),
			reason: logpb.Reason_REASON_TOO_MANY_IN_FLIGHT,
		},
		{name: "withdraw nobody", command: withdraw(7), reason: logpb.Reason_REASON_UNKNOWN_TICKET},
		{
			name: "withdraw another", before: []*logpb.Command{waits("w", 0, minute, itemOf("s", 1))},
			command: by("x", withdraw(1)), reason: logpb.Reason_REASON_FOREIGN_LEASE,
		},
		{name: "delete what counts", command: deletes("full"), reason: logpb.Reason_REASON_QUOTA_IN_USE},
		{
			name: "another kind, and a good one", command: applyQuotas(rateOf("r", 99, minute), slotsOf("h", 1)),
			reason: logpb.Reason_REASON_KIND_CHANGE,
		},
		{
			name: "one that cannot work, and a good one", command: applyQuotas(rateOf("r", 99, minute), rateOf("x", 1, 0)),
			reason: logpb.Reason_REASON_IMPOSSIBLE_QUOTA,
		},
		{
			name:    "a workflow that cannot work, and a good one",
			command: workflows(chain("fine", "a", "b"), graph("w", after("a", "b"), after("b", "a"))),
			reason:  logpb.Reason_REASON_IMPOSSIBLE_WORKFLOW,
		},
		{name: "delete an unknown workflow", command: deletesWorkflow("w"), reason: logpb.Reason_REASON_UNKNOWN_WORKFLOW},
		{
			name: "revoke nothing", command: &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: 9}}},
			reason: logpb.Reason_REASON_UNKNOWN_LEASE,
		},
		{name: "an epoch not raised", command: raisesEpoch(0), reason: logpb.Reason_REASON_EPOCH_NOT_RAISED},
		{name: "another cluster", before: []*logpb.Command{founds("one")}, command: founds("two"), reason: logpb.Reason_REASON_FOREIGN_CLUSTER},
	}
}

// budgetNos are the refusals of callers that have used up their part (a single caller gets half), and of all callers
// when nothing is left.
func budgetNos() []no {
	small := func(change func(*logpb.SetLimits)) *logpb.Command { return limitsTo(change) }
	open, wait := chargedTo("token:x", opens()), chargedTo("token:x", waits("w", 0, minute, itemOf("s", 1)))
	few := small(func(l *logpb.SetLimits) {
		l.MaxSessions, l.MaxKeys, l.MaxTasks = proto.Int64(2), proto.Int64(2), proto.Int64(2)
		l.MaxWaiters, l.MaxLeases, l.MaxReports = proto.Int64(2), proto.Int64(5), proto.Int64(2)
	})
	lease, key := chargedTo("token:x", asks("x", 0, itemOf("r", 1))), func(name string) *logpb.Command {
		return chargedTo("token:x", keyedBy(name, releases(9)))
	}
	report := chargedTo("token:x", reports(1, 1, signal("r", logpb.Cause_CAUSE_OK)))
	task := func(name string) *logpb.Command { return chargedTo("token:x", begins(name, "x", 0)) }
	const mine, full = logpb.Reason_REASON_CALLER_BUDGET, logpb.Reason_REASON_BUDGET_FULL
	return []no{
		{name: "a caller's session too many", before: []*logpb.Command{few, open}, command: open, reason: mine},
		{name: "a caller's lease too many", before: []*logpb.Command{few, lease}, command: lease, reason: mine},
		{name: "a caller's lease too many by its waits", before: []*logpb.Command{few, wait}, command: lease, reason: mine},
		{
			name: "a lease too many for all", before: []*logpb.Command{small(func(l *logpb.SetLimits) { l.MaxLeases = proto.Int64(3) })},
			command: lease, reason: full,
		},
		{
			name: "a caller's wait too many", before: []*logpb.Command{few, wait, small(func(l *logpb.SetLimits) { l.MaxLeases = proto.Int64(50) })},
			command: wait, reason: mine, inLine: true,
		},
		{name: "a caller's task too many", before: []*logpb.Command{few, task("t")}, command: task("u"), reason: mine},
		{name: "a caller's report too many", before: []*logpb.Command{few, report}, command: report, reason: mine},
		{name: "a report too many for all", before: []*logpb.Command{
			few, small(func(l *logpb.SetLimits) { l.MaxReports = proto.Int64(1) }), report,
		}, command: chargedTo("token:y", reports(1, 1, signal("r", logpb.Cause_CAUSE_OK))), reason: full},
		{name: "a clock that is right", command: resetClock(), reason: logpb.Reason_REASON_CLOCK_NOT_AHEAD},
		{
			name: "a caller's key too many", before: []*logpb.Command{few, chargedTo("token:x", keyedBy("a", opens()))}, command: key("b"),
			reason: mine,
		},
	}
}

// timeless returns the hashes of the ledger and of the whole state, without index and term.
func (w *world) timeless() (ledger, whole [32]byte) {
	s := *w.m.Freeze()
	s.index, s.term = 0, 0
	return s.Hash()
}

// TestRefusal_OfEachReasonChangesNothing: every reason, with each kind of command that can have it. A queued judgment takes a
// ticket; otherwise only the index changes (seen in Portkey-AI/gateway rateLimiter.ts).
func TestRefusal_OfEachReasonChangesNothing(t *testing.T) {
	met := make(map[logpb.Reason]bool)
	for _, elsewhere := range []logpb.Reason{
		logpb.Reason_REASON_UNSPECIFIED,
		logpb.Reason_REASON_WAIT_EXPIRED, logpb.Reason_REASON_WITHDRAWN, // ends of waits, not answers to a command
		logpb.Reason_REASON_CLOCK_UNSURE, // TestResetClock_NamesMissingCondition
	} {
		met[elsewhere] = true
	}
	for _, n := range slices.Concat(refusals(), failuresOfLeases(), failures(), taskNos(), budgetNos()) {
		met[n.reason] = true
		t.Run(n.name, func(t *testing.T) {
			w := refusingWorld(t)
			for i, command := range n.before {
				w.now += n.pace
				if r := w.do(command); r.GetFailure() != nil || r.GetRefusal() != nil {
					t.Fatalf("command %d before: %v", i+1, r)
				}
			}
			w.sleep(n.after)
			ledger, whole := w.timeless()
			r := w.do(n.command)
			if reason := max(r.GetFailure().GetReason(), r.GetRefusal().GetReason()); reason != n.reason {
				t.Fatalf("want %v, got %v", n.reason, r)
			}
			ledgerAfter, wholeAfter := w.timeless()
			if ledger != ledgerAfter {
				t.Fatalf("%v changed the ledger", r)
			}
			if whole != wholeAfter && !n.inLine {
				t.Fatalf("%v changed the policy, sessions or limits", r)
			}
		})
	}
	for number, name := range logpb.Reason_name { // in any order
		if !met[logpb.Reason(number)] {
			t.Errorf("no command here gets %s", name)
		}
	}
}
