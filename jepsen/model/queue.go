package model

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// mostWaiters is how many Reserves of one holder may wait.
const mostWaiters = 4096

// waiter is a waiting Reserve.
type waiter struct {
	ticket  uint64
	ask     *logpb.Reserve
	class   int32
	until   int64
	session uint64
	answer  *answer
	waitSet *waitSet
	// isStep says that a workflow may hold it back.
	isStep bool
}

// waitSet is all waiters that need the same quotas, ancestors included.
type waitSet struct {
	key     string
	quotas  []*quota
	byClass [3]int
	lines   map[line][]uint64
	length  int
}

// line is the waiters of one holder and class in a wait set; its tickets are in their order.
type line struct {
	holder string
	class  int32
}

// classOf returns the class in which a Reserve is judged: that of the first rule that matches its holder, 1 without one; a caller may lower
// it.
func (j *Judge) classOf(ask *logpb.Reserve) int32 {
	class := int32(1)
	for _, rule := range j.rules {
		if matches(rule.Pattern, ask.Holder) {
			class = rule.Class
			break
		}
	}
	if ask.Class != nil {
		class = max(class, *ask.Class)
	}
	return class
}

func (j *Judge) reserve(ask *logpb.Reserve, result *logpb.Result) {
	j.wants(ask, result)
	switch k := result.Kind.(type) {
	case *logpb.Result_Granted:
		if j.entry.items[k.Granted.Lease] == 0 {
			j.violate("unexplained", "lease %d is granted without an event", k.Granted.Lease)
		}
		j.grant(ask, k.Granted, j.classOf(ask), false)
		j.predicts(k.Granted.Forecast)
	case *logpb.Result_Refusal:
		j.stats.Refused++
		j.judgeRefusal(ask, k.Refusal)
		j.denied(ask.Holder, k.Refusal.Reason, k.Refusal.Quota, limitedUntil(k.Refusal))
	case *logpb.Result_Waiting:
		j.wait(ask, k.Waiting)
	default:
		j.violate("unexplained", "a Reserve has the result %v", result)
	}
}

// wait enters a waiter.
func (j *Judge) wait(ask *logpb.Reserve, waiting *logpb.Waiting) {
	j.stats.Waited++
	command := j.entry.commands[j.entry.command]
	w := &waiter{ticket: waiting.Ticket, ask: ask, class: j.classOf(ask), until: waiting.UntilNs, session: command.Session}
	if waiting.Ticket <= j.lastTicket {
		j.violate("once", "ticket %d comes after ticket %d", waiting.Ticket, j.lastTicket)
	}
	j.lastTicket = max(j.lastTicket, waiting.Ticket)
	if ask.WaitNs <= 0 || w.until != plus(j.clock.Now, ask.WaitNs) {
		j.violate("late-wait", "ticket %d waits until %d, it is %d and it asked for %d", w.ticket, w.until, j.clock.Now, ask.WaitNs)
	}
	w.answer = j.answerOf(command)
	j.waiting[w.ticket] = w
	j.waitDue.add(w.until, w.ticket)
	j.line(w)
}

// line puts a waiter into its wait set.
func (j *Judge) line(w *waiter) {
	var quotas []*quota
	var key []byte
	needs, _ := j.needs(j.asked(w.ask))
	for _, n := range needs {
		quotas = append(quotas, n.quota)
	}
	slices.SortFunc(quotas, func(a, b *quota) int { return cmp.Compare(a.number, b.number) })
	for _, q := range quotas {
		key = binary.BigEndian.AppendUint64(key, uint64(q.number))
		q.waiting++
	}
	set := j.waitSets[string(key)]
	if set == nil {
		set = &waitSet{key: string(key), quotas: quotas, lines: map[line][]uint64{}}
		j.waitSets[set.key] = set
		for _, q := range quotas {
			j.waitSetsOf[q] = append(j.waitSetsOf[q], set)
		}
	}
	w.waitSet = set
	set.length++
	if w.isStep = j.isStep(w.ask.Holder); !w.isStep {
		set.byClass[w.class]++
	}
	at := line{holder: w.ask.Holder, class: w.class}
	set.lines[at] = append(set.lines[at], w.ticket)
}

// leave removes a waiter.
func (j *Judge) leave(w *waiter) {
	delete(j.waiting, w.ticket)
	set := w.waitSet
	set.length--
	if !w.isStep {
		set.byClass[w.class]--
	}
	for _, q := range set.quotas {
		q.waiting--
	}
	at := line{holder: w.ask.Holder, class: w.class}
	if first := j.firstOf(set, at); first == 0 {
		delete(set.lines, at)
	}
	if set.length > 0 {
		return
	}
	delete(j.waitSets, set.key)
	for _, q := range set.quotas {
		j.waitSetsOf[q] = slices.DeleteFunc(j.waitSetsOf[q], func(other *waitSet) bool { return other == set })
		if len(j.waitSetsOf[q]) == 0 {
			delete(j.waitSetsOf, q)
		}
	}
}

// firstOf returns the first ticket of a line; 0: none.
func (j *Judge) firstOf(set *waitSet, at line) uint64 {
	tickets := set.lines[at]
	for len(tickets) > 0 && j.waiting[tickets[0]] == nil {
		tickets = tickets[1:]
	}
	set.lines[at] = tickets
	if len(tickets) == 0 {
		return 0
	}
	return tickets[0]
}

// regroup puts all waiters into wait sets again: their needs have changed.
func (j *Judge) regroup() {
	clear(j.waitSets)
	clear(j.waitSetsOf)
	for _, q := range j.quotas {
		q.waiting = 0
	}
	var tickets []uint64
	for ticket := range j.waiting {
		tickets = append(tickets, ticket)
	}
	slices.Sort(tickets)
	for _, ticket := range tickets {
		j.line(j.waiting[ticket])
	}
}

// order judges a grant against the waiters. If a waiter needs only quotas that the grant needs too, one of them is closed to all, has too
// little for it, or is reserved for an earlier waiter. So no grant may overtake a waiter of a higher class, or an earlier one of the same
// holder and class.
func (j *Judge) order(holder string, needs []need, granted *logpb.Granted) {
	if len(j.waiting) == 0 || slices.ContainsFunc(needs, func(n need) bool { return n.quota.definition.GetPolicy().GetAgeingNs() > 0 }) {
		return // waiters that aged, or have quotas reserved, overtake others
	}
	needed := map[*quota]bool{}
	for _, n := range needs {
		needed[n.quota] = true
	}
	for _, n := range needs {
		for _, set := range j.waitSetsOf[n.quota] {
			if set.quotas[0] != n.quota || slices.ContainsFunc(set.quotas,
				func(q *quota) bool { return !needed[q] || q.definition.GetPolicy() != nil || j.overridden[q] }) {
				continue // met at another quota, or may lack something else, or overtaken for a policy or an override
			}
			for class := range granted.Class {
				if set.byClass[class] > 0 {
					j.violate("class-order", "lease %d of class %d for %v passes %d of class %d who wait for %s and what is above it",
						granted.Lease, granted.Class, granted.Items, set.byClass[class], class, set.quotas[len(set.quotas)-1].name)
				}
			}
			if len(set.quotas) != len(needs) {
				continue
			}
			first := j.firstOf(set, line{holder: holder, class: granted.Class})
			if first != 0 && (granted.Ticket == 0 || first < granted.Ticket) {
				j.violate("fifo", "lease %d, ticket %d, passes ticket %d of the same holder %s", granted.Lease, granted.Ticket, first, holder)
			}
		}
	}
}

// grantToWaiter handles a grant at the end of a wait.
func (j *Judge) grantToWaiter(event *effect.Event) {
	w := j.waiting[event.Ticket]
	granted := event.Result.GetGranted()
	if event.Ticket == 0 || w == nil || granted == nil || granted.Lease != event.Lease || granted.Ticket != event.Ticket {
		j.violate("unexplained", "lease %d is granted with ticket %d, and nobody waits for it", event.Lease, event.Ticket)
		return
	}
	j.leave(w)
	j.stats.WaitsGranted++
	if w.until < j.clock.Now {
		j.violate("late-wait", "ticket %d is granted at %d, its time was up at %d", event.Ticket, j.clock.Now, w.until)
	}
	w.final(j.entry.finals[w.ticket])
	j.entry.saved = j.mayBeSaved(w)
	j.grant(w.ask, granted, w.class, true)
	j.entry.saved = false
}

// mayBeSaved says whether a waiter may have been first in line for so long that quotas are reserved for it, before all others.
func (j *Judge) mayBeSaved(w *waiter) bool {
	waited := j.clock.Now - (w.until - w.ask.WaitNs)
	return w.class > 0 && slices.ContainsFunc(w.waitSet.quotas, func(q *quota) bool { return q.ageing > 0 && waited >= q.ageing })
}

// final keeps how a wait ended: repeated requests get this answer from now on.
func (w *waiter) final(answered uint64) {
	if w.answer != nil && w.answer.ticket == w.ticket {
		w.answer.answered, w.answer.ticket = answered, 0
	}
}

// waitEnded handles the end of a wait without a grant.
func (j *Judge) waitEnded(event *effect.Event) {
	j.entry.waitsOver++
	j.stats.WaitsEnded++
	w := j.waiting[event.Ticket]
	if w == nil {
		j.violate("unexplained", "ticket %d ends, and does not wait", event.Ticket)
		return
	}
	refusal := event.Result.GetRefusal()
	if refusal.GetReason() != event.Reason {
		j.violate("unexplained", "ticket %d ends for %v, with the result %v", event.Ticket, event.Reason, event.Result)
	}
	j.judgeWaitEnd(w, event.Reason, event.Quota)
	w.final(j.entry.finals[w.ticket])
	j.leave(w)
}

// judgeWaitEnd judges the reason for which a wait ended.
func (j *Judge) judgeWaitEnd(w *waiter, reason logpb.Reason, quota string) {
	switch reason {
	case logpb.Reason_REASON_WAIT_EXPIRED:
		if w.until > j.clock.Now {
			j.violate("early-wait-end", "ticket %d ends at %d, it waits until %d", w.ticket, j.clock.Now, w.until)
		}
		return
	case logpb.Reason_REASON_WITHDRAWN:
		k := j.find(j.entry.next-1, func(command *logpb.Command, result *logpb.Result) bool {
			return command.GetWithdraw().GetTicket() == w.ticket && result.GetDone() != nil
		})
		if k < 0 && !j.sessionMayBeOver(w.session) {
			j.violate("early-wait-end", "ticket %d is withdrawn, by no command, and its session is open", w.ticket)
		}
		return
	case logpb.Reason_REASON_SUSPENDED:
		deleted := j.find(j.entry.next-1, func(command *logpb.Command, result *logpb.Result) bool {
			return command.GetDeleteQuota().GetQuota() == quota && result.GetQuotasApplied() != nil
		})
		if deleted >= 0 {
			j.carryOut(deleted)
			return
		}
	default:
	}
	switch reason {
	case logpb.Reason_REASON_SUSPENDED, logpb.Reason_REASON_NEVER_FITS, logpb.Reason_REASON_ABOVE_CLAMP:
		if lie := j.lie(w.ask, reason, quota, 0); lie != "" {
			j.violate("early-wait-end", "ticket %d: %s", w.ticket, lie)
		}
	case logpb.Reason_REASON_UNKNOWN_QUOTA:
		if j.quotas[quota] != nil {
			j.violate("early-wait-end", "ticket %d ends since %s does not exist, and it does", w.ticket, quota)
		}
	default:
		j.violate("early-wait-end", "ticket %d ends for %v", w.ticket, reason)
	}
}
