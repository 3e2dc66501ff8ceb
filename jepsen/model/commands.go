package model

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// request is a numbered request.
type request struct {
	session, seq uint64
	key          string
}

// answered is what a numbered request was told first.
type answered struct {
	command *logpb.Command
	result  *logpb.Result
}

// judge judges one command.
func (j *Judge) judge(command *logpb.Command, result *logpb.Result) {
	if j.repeated(command, result) {
		return
	}
	switch k := command.Kind.(type) {
	case *logpb.Command_Reserve:
		j.reserve(k.Reserve, result)
	case *logpb.Command_Consume:
		j.consume(k.Consume, result)
	case *logpb.Command_Settle:
		j.settle(k.Settle, result)
	case *logpb.Command_Release:
		j.release(k.Release, result)
	case *logpb.Command_Renew:
		j.renew(k.Renew, result)
	case *logpb.Command_Report:
		if result.GetReported() != nil {
			j.named(k.Report.Lease, k.Report.Fence, "Report")
		}
	case *logpb.Command_ApplyQuotas:
		if result.GetQuotasApplied() != nil && !k.ApplyQuotas.DryRun {
			if k.ApplyQuotas.ReplaceHolders || len(k.ApplyQuotas.Holders) > 0 {
				clear(j.classes)
			}
			for _, definition := range k.ApplyQuotas.Quotas {
				j.define(definition)
			}
		}
	case *logpb.Command_DeleteQuota:
		if result.GetFailure() == nil {
			delete(j.quotas, k.DeleteQuota.Quota)
		}
	default:
	}
	if refusal := result.GetRefusal(); refusal != nil {
		j.stats.Refused++
	}
	if failure := result.GetFailure(); failure.GetReason() == logpb.Reason_REASON_STALE_FENCE {
		j.stats.DeadFences++
	}
}

// repeated judges a request whose number was there before: it is told what it was told then, and does nothing.
func (j *Judge) repeated(command *logpb.Command, result *logpb.Result) bool {
	if command.Seq == 0 && command.IdempotencyKey == "" {
		return false
	}
	id := request{command.Session, command.Seq, command.IdempotencyKey}
	switch result.GetFailure().GetReason() {
	case logpb.Reason_REASON_UNKNOWN_SESSION, logpb.Reason_REASON_SEQ_TOO_OLD, logpb.Reason_REASON_SEQ_REUSED, logpb.Reason_REASON_TOO_MANY_IN_FLIGHT:
		return true // nothing was done
	default:
	}
	first := j.requests[id]
	if first == nil {
		j.requests[id] = &answered{command, result}
		return false
	}
	if !sameCommand(first.command, command) {
		j.violate("once", "%v is another request than before, and was not refused", id)
		return true
	}
	j.stats.Repeated++
	if waiting := first.result.GetWaiting(); waiting != nil {
		// The answer of a wait changes once. Whether the final one is right is judged where it happens.
		return true
	}
	if !proto.Equal(first.result, result) {
		j.violate("once", "%v was told %v, and before %v", id, result, first.result)
	}
	return true
}

// sameCommand compares requests without what may differ between attempts.
func sameCommand(a, b *logpb.Command) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.AckedBelow, b.AckedBelow, a.By, b.By = 0, 0, "", ""
	return proto.Equal(a, b)
}

// named returns the lease that a command names, if it lives; otherwise the command must not have had an effect.
func (j *Judge) named(id, fence uint64, what string) *lease {
	l := j.leases[id]
	if l == nil || l.fence != fence || l.ended != "" && l.endedAt < j.index {
		j.violate("dead-fence", "%s worked with lease %d and fence %d, which do not live", what, id, fence)
		return nil
	}
	return l
}

func (j *Judge) reserve(asked *logpb.Reserve, result *logpb.Result) {
	if waiting := result.GetWaiting(); waiting != nil {
		j.wait(asked, waiting)
		return
	}
	granted := result.GetGranted()
	if granted == nil {
		return
	}
	if j.grant(asked.Holder, asked.TtlNs, granted) == nil {
		return
	}
	if asked.Class == nil {
		j.classes[asked.Holder] = granted.Class
	}
	j.allOrNothing(asked, granted)
}

// allOrNothing compares what was granted with what was asked.
func (j *Judge) allOrNothing(asked *logpb.Reserve, granted *logpb.Granted) {
	if len(asked.Items) != len(granted.Items) {
		j.violate("ceiling", "%d items were asked, %d granted", len(asked.Items), len(granted.Items))
		return
	}
	for i, item := range asked.Items {
		got := granted.Items[i]
		if got.Quota != item.Quota || item.Amount != nil && got.Amount != *item.Amount {
			j.violate("ceiling", "asked for %v, granted %v", item, got)
		}
	}
}

// grant enters a new lease.
func (j *Judge) grant(holder string, ttl int64, granted *logpb.Granted) *lease {
	j.stats.Granted++
	l := j.leases[granted.Lease]
	if l != nil && !l.fresh || granted.Lease > j.lastLease || granted.Fence > j.lastFence {
		j.violate("fence-order", "lease %d with fence %d is no new one of this entry", granted.Lease, granted.Fence)
		return nil
	}
	if l == nil {
		l = newLease(granted.Lease, granted.Fence)
		j.leases[granted.Lease] = l
	}
	j.granted = append(j.granted, granted)
	l.fresh, l.holder, l.ttl, l.deadline = false, holder, ttl, granted.DeadlineNs
	j.due.add(due{at: l.deadline, lease: l.id})
	for _, item := range granted.Items {
		if q := j.closed(item.Quota); q != nil {
			j.violate("cooldown", "lease %d is granted %s, and %s is closed until %d", l.id, item.Quota, q.name, q.closedUntil)
		}
	}
	j.hold(l, granted.Items)
	if granted.Consumed != nil {
		j.charge(l, granted.Consumed)
	}
	return l
}

// wait enters a waiter.
func (j *Judge) wait(asked *logpb.Reserve, waiting *logpb.Waiting) {
	j.stats.Waited++
	w := &waiter{class: -1, holder: asked.Holder, needs: map[string]int64{}, until: waiting.UntilNs, since: j.index, unclassed: asked.Class == nil}
	var names []string
	for _, item := range asked.Items {
		names = append(names, item.Quota)
		if item.Amount != nil {
			w.needs[item.Quota] = *item.Amount
		}
	}
	slices.Sort(names)
	w.quotas = strings.Join(names, " ")
	if asked.Class != nil {
		w.class = *asked.Class
	} else if class, ok := j.classes[asked.Holder]; ok {
		w.class = class
	}
	j.waiting[waiting.Ticket] = w
	j.due.add(due{at: w.until, ticket: waiting.Ticket})
}

// grantToWaiter takes a grant at the end of a wait.
func (j *Judge) grantToWaiter(event *fsm.Event) {
	if l := j.leases[event.Lease]; l != nil && !l.fresh {
		return // its Reserve was willing to wait and did not have to: its own result had the lease
	}
	w := j.waiting[event.Ticket]
	granted := event.Result.GetGranted()
	if w == nil || granted == nil {
		j.violate("once", "ticket %d is granted lease %d and does not wait", event.Ticket, event.Lease)
		return
	}
	delete(j.waiting, event.Ticket)
	j.stats.WaitsGranted++
	if w.until < j.now {
		j.violate("late-wait", "ticket %d is granted at %d, its time was up at %d", event.Ticket, j.now, w.until)
	}
	if l := j.grant(w.holder, granted.AskedTtlNs, granted); l != nil {
		l.tentative = granted.Consumed == nil
	}
	if w.unclassed {
		j.classes[w.holder] = granted.Class
	}
}

// classOrder judges the grants of an entry against those who still wait after it, and did so before.
func (j *Judge) classOrder() {
	for _, granted := range j.granted {
		for ticket, w := range j.waiting {
			if j.passes(granted, w) {
				j.violate("class-order", "lease %d of class %d passes ticket %d of class %d for %s", granted.Lease, granted.Class, ticket, w.class, w.quotas)
			}
		}
	}
}

// passes says whether a grant clearly passed a waiter: that needs no more of the very same quotas, is of a higher class,
// and was there before this entry. A waiter's class is known where it asked for one, or its holder was granted something by
// the present rules.
func (j *Judge) passes(granted *logpb.Granted, w *waiter) bool {
	if w.class < 0 || w.class >= granted.Class || w.since == j.index || len(w.needs) != len(granted.Items) {
		return false
	}
	for _, item := range granted.Items {
		need, ok := w.needs[item.Quota]
		if !ok || need > item.Amount {
			return false
		}
	}
	return true
}

// charge enters an operation.
func (j *Judge) charge(l *lease, consumed *logpb.Consumed) {
	j.stats.Consumed++
	o := &operation{items: map[string]int64{}, charges: map[string][]*charge{}, spendBy: consumed.SpendByNs}
	for _, item := range consumed.Items {
		j.drop(l, item.Quota, item.Amount)
		o.items[item.Quota] = item.Amount
		for _, q := range j.path(item.Quota) {
			c := &charge{amount: item.Amount, end: consumed.SpendByNs, window: j.windowOf(q, consumed)}
			q.charges = append(q.charges, c)
			o.charges[item.Quota] = append(o.charges[item.Quota], c)
			j.windowed(q, c)
		}
	}
	l.ops[consumed.Op] = o
}

// windowOf is the calendar window into which an operation surely falls: that of the earlier view now and of the later
// view at its last moment.
func (j *Judge) windowOf(q *quota, consumed *logpb.Consumed) int64 {
	window := q.definition.GetWindow()
	if window == nil || window.Anchored || window.EveryNs == 0 || j.early == 0 {
		return -1
	}
	last := j.late + consumed.SpendByNs - j.now
	if j.early/window.EveryNs != last/window.EveryNs {
		return -1
	}
	return j.early / window.EveryNs
}

// windowed adds a charge to its window and judges it.
func (j *Judge) windowed(q *quota, c *charge) {
	if c.window < 0 {
		return
	}
	q.windows[c.window] += c.amount
	usable := max(q.usable, q.usableBefore)
	if q.changedAt != j.index {
		usable = q.usable
	}
	if q.windows[c.window] > usable && !j.overran[q.name] {
		j.violate("window", "%s has %d in the window %d, usable are %d", q.name, q.windows[c.window], c.window, usable)
	}
}

func (j *Judge) consume(asked *logpb.Consume, result *logpb.Result) {
	consumed := result.GetConsumed()
	if consumed == nil {
		return
	}
	l := j.named(asked.Lease, asked.Fence, "Consume")
	if l == nil {
		return
	}
	if known := l.ops[consumed.Op]; known != nil {
		for _, item := range consumed.Items {
			if known.items[item.Quota] < item.Amount {
				j.violate("once", "operation %d of lease %d consumed %v, and now %v", consumed.Op, l.id, known.items, consumed.Items)
			}
		}
		return
	}
	for _, item := range consumed.Items {
		if q := j.closed(item.Quota); q != nil {
			j.violate("cooldown", "lease %d consumes %s, and %s is closed until %d", l.id, item.Quota, q.name, q.closedUntil)
		}
	}
	j.charge(l, consumed)
	j.extend(l)
}

// extend gives a lease from the queue its full length with its first Consume.
func (j *Judge) extend(l *lease) {
	if !l.tentative {
		return
	}
	l.tentative = false
	l.deadline = max(l.deadline, j.now+l.ttl)
	j.due.add(due{at: l.deadline, lease: l.id})
}

func (j *Judge) settle(asked *logpb.Settle, result *logpb.Result) {
	settled := result.GetSettled()
	if settled == nil {
		return
	}
	l := j.leases[asked.Lease]
	if l == nil || l.fence != asked.Fence {
		j.violate("dead-fence", "Settle worked with lease %d and fence %d, which never were", asked.Lease, asked.Fence)
		return
	}
	dead := l.ended != "" && l.endedAt < j.index
	if dead && len(settled.Returned) > 0 {
		j.violate("dead-fence", "Settle of the ended lease %d returned %v", l.id, settled.Returned)
	}
	o := l.ops[asked.Op]
	if o == nil {
		return
	}
	j.stats.Settled++
	returned := settled.Returned
	if len(asked.Unspent) > 0 && !dead {
		count := min(len(asked.Unspent), len(returned))
		if !o.unspent {
			j.giveBack(l, o, returned[:count])
		}
		o.unspent, returned = true, returned[count:]
	}
	if (len(asked.Actual) > 0 || asked.Final) && !o.actual {
		o.actual = true
		j.giveBack(l, o, returned)
		j.endExposure(o)
		for _, item := range settled.Overrun {
			for _, q := range j.path(item.Quota) {
				j.overran[q.name] = true
				q.charges = append(q.charges, &charge{amount: item.Amount, end: j.now, window: -1})
			}
		}
	}
}

// giveBack takes what an operation did not use from what counts.
func (j *Judge) giveBack(l *lease, o *operation, items []*logpb.GrantedItem) {
	for _, item := range items {
		charges := o.charges[item.Quota]
		if len(charges) == 0 || item.Amount > charges[0].amount {
			j.violate("conservation", "lease %d gets %d of %s back, and has less out", l.id, item.Amount, item.Quota)
			continue
		}
		for i, q := range j.path(item.Quota) {
			if i < len(charges) {
				charges[i].amount -= item.Amount
				if charges[i].window >= 0 {
					q.windows[charges[i].window] -= item.Amount
				}
			}
		}
	}
}

// endExposure ends the time in which the provider may charge an operation.
func (j *Judge) endExposure(o *operation) {
	for _, charges := range o.charges {
		for _, c := range charges {
			c.end = min(c.end, j.now)
		}
	}
}

func (j *Judge) release(asked *logpb.Release, result *logpb.Result) {
	released := result.GetReleased()
	if released == nil {
		return
	}
	l := j.leases[asked.Lease]
	if l == nil || l.fence != asked.Fence || l.ended != "" && l.endedAt < j.index {
		if len(released.Returned) > 0 {
			j.violate("dead-fence", "Release of lease %d with fence %d, which do not live, returned %v", asked.Lease, asked.Fence, released.Returned)
		}
		return
	}
	for _, item := range released.Returned {
		j.drop(l, item.Quota, item.Amount)
	}
}

func (j *Judge) renew(asked *logpb.Renew, result *logpb.Result) {
	renewed := result.GetRenewed()
	if renewed == nil {
		return
	}
	l := j.named(asked.Lease, asked.Fence, "Renew")
	if l == nil {
		return
	}
	if renewed.DeadlineNs < j.now {
		j.violate("early-expiry", "lease %d is renewed until %d, it is %d", l.id, renewed.DeadlineNs, j.now)
	}
	l.deadline, l.tentative = renewed.DeadlineNs, false
	j.due.add(due{at: l.deadline, lease: l.id})
}

// String implements fmt.Stringer.
func (r request) String() string {
	if r.key != "" {
		return fmt.Sprintf("the request with key %q", r.key)
	}
	return fmt.Sprintf("request %d of session %d", r.seq, r.session)
}
