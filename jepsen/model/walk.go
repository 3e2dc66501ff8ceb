package model

import (
	"slices"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// An entry's results are in the order of its commands, its events in the order of their occurrence, and many commands have no event. The
// events lead: an event of a command is judged after all earlier commands. Any command may lead to the grant of a waiter: it is judged
// against the books as they are. If it does not fit, commands without an event are applied before it until it does.

// read examines an entry as a whole: the applied commands, and their grants, waits and results.
func (j *Judge) read(events []effect.Event) {
	e := &j.entry
	e.granting, e.waits, e.items, e.finals = map[uint64]int{}, map[uint64]int{}, map[uint64]int{}, map[uint64]uint64{}
	e.made = map[uint64]*logpb.Granted{}
	for i := range events {
		event := &events[i]
		if event.Ticket != 0 && event.Result != nil {
			e.finals[event.Ticket] = j.digest(event.Result)
		}
		if event.Kind == effect.EventWindowClosed {
			j.windowClosed(event.Quota)
			e.closings++
		}
	}
	e.fresh = make([]bool, len(e.commands))
	for i, command := range e.commands {
		e.command = i
		e.fresh[i] = j.dedupe(command, e.results[i])
		if !e.fresh[i] {
			continue
		}
		if granted := e.results[i].GetGranted(); granted != nil {
			e.granting[granted.Lease] = i
		}
		if waiting := e.results[i].GetWaiting(); waiting != nil {
			e.waits[waiting.Ticket] = i
		}
	}
	e.command = -1
}

// resetsHere applies the command that resets the clock where its events begin: it closes every window, and no window closes after it in the
// same entry. Later grants of the entry count by the new views.
func (j *Judge) resetsHere() {
	e := &j.entry
	reset := j.find(0, func(_ *logpb.Command, result *logpb.Result) bool { return result.GetClockReset() != nil })
	if reset >= 0 && int64(e.closings) == e.results[reset].GetClockReset().Windows {
		j.carryOut(reset + 1)
	}
	e.closings--
}

// carryOut enters the effects of all commands before one into the books.
func (j *Judge) carryOut(before int) {
	e := &j.entry
	for e.next < before {
		e.next++
		if !e.fresh[e.next-1] {
			continue
		}
		was := e.command
		e.command = e.next - 1
		j.command(e.commands[e.command], e.results[e.command])
		e.command = was
	}
}

// silent says whether the next command may have no event, and applies it if so.
func (j *Judge) silent() bool {
	e := &j.entry
	if e.next >= len(e.commands) {
		return false
	}
	if e.fresh[e.next] {
		switch k := e.results[e.next].Kind.(type) {
		case *logpb.Result_Granted, *logpb.Result_Waiting:
			return false
		case *logpb.Result_Refusal:
			if e.commands[e.next].GetBeginTask() == nil {
				return false
			}
		case *logpb.Result_Released:
			if k.Released.Ended {
				return false
			}
		case *logpb.Result_Settled:
			if k.Settled.Released || len(k.Settled.Overrun) > 0 && !j.settledBefore(e.commands[e.next].GetSettle()) {
				return false
			}
		case *logpb.Result_TaskBegun:
			if k.TaskBegun.Attempt != 0 {
				return false
			}
		case *logpb.Result_TaskEnded:
			end := e.commands[e.next].GetEndTask()
			if t := j.tasks[end.GetTask()]; t == nil || t.phase == taskUnderWay {
				return false
			}
		case *logpb.Result_Done:
			if command := e.commands[e.next]; command.GetRetryTask() != nil || j.overrides(command.GetSetOverride()) {
				return false
			}
		case *logpb.Result_QuotaReopened:
			return false
		case *logpb.Result_QuotasApplied:
			changed := len(k.QuotasApplied.Created) + len(k.QuotasApplied.Changed) + len(k.QuotasApplied.Deleted)
			if changed > 0 && !e.commands[e.next].GetApplyQuotas().DryRun {
				return false
			}
		}
	}
	j.carryOut(e.next + 1)
	return true
}

// find returns the first applied command at or after from that fits; -1: none.
func (j *Judge) find(from int, fits func(command *logpb.Command, result *logpb.Result) bool) int {
	e := &j.entry
	for i := max(from, 0); i < len(e.commands); i++ {
		if e.fresh[i] && fits(e.commands[i], e.results[i]) {
			return i
		}
	}
	return -1
}

// belongs applies the commands up to the one that explains an event, if that is not done yet, and records a violation if there is none. The
// last applied command may have several events, unless it was refused or is an override.
func (j *Judge) belongs(event *effect.Event, fits func(command *logpb.Command, result *logpb.Result) bool) {
	from := j.entry.next - 1
	if event.Kind == effect.EventRefused || event.Kind == effect.EventOverride {
		from++
	}
	k := j.find(from, fits)
	if k < 0 {
		j.violate("unexplained", "no command explains %+v", *event)
		return
	}
	j.carryOut(k + 1)
}

// happen handles one event.
func (j *Judge) happen(event *effect.Event) {
	switch event.Kind {
	case effect.EventGranted:
		j.happenGranted(event)
	case effect.EventRefused:
		j.belongs(event, func(command *logpb.Command, result *logpb.Result) bool {
			refusal := result.GetRefusal()
			consume := command.GetConsume()
			return refusal != nil && command.GetBeginTask() == nil && refusal.Reason == event.Reason && refusal.Quota == event.Quota &&
				(command.GetReserve().GetHolder() == event.Holder || consume != nil && consume.Lease == event.Lease)
		})
	case effect.EventWaiting:
		k, ok := j.entry.waits[event.Ticket]
		if !ok {
			j.violate("unexplained", "no Reserve waits as ticket %d", event.Ticket)
			return
		}
		j.carryOut(k)
		j.judgeWaiting(k, event)
		j.carryOut(k + 1)
	case effect.EventWaitEnded:
		j.waitEnded(event)
	case effect.EventReleased:
		j.happenReleased(event)
	case effect.EventExpired:
		j.expire(event)
	case effect.EventRevoked:
		j.happenRevoked(event)
	case effect.EventCooldown:
		j.belongs(event, func(command *logpb.Command, result *logpb.Result) bool {
			return j.tells(command, result, event.Holder) && j.mayClose(command, event)
		})
		j.cooldown(event)
	case effect.EventReopenedByOperator:
		j.belongs(event, func(command *logpb.Command, _ *logpb.Result) bool {
			return command.GetReopenQuota().GetQuota() == event.Quota
		})
	case effect.EventReopened:
		j.happenReopened(event)
	case effect.EventCapped:
		j.belongs(event, func(_ *logpb.Command, result *logpb.Result) bool { return reportsOn(result, event.Quota) })
	case effect.EventOverrun:
		j.stats.Overruns++
		j.belongs(event, func(command *logpb.Command, result *logpb.Result) bool {
			return command.GetSettle().GetLease() == event.Lease && len(result.GetSettled().GetOverrun()) > 0
		})
	case effect.EventQuotaApplied:
		j.happenApplied(event)
	case effect.EventQuotaDeleted:
		j.belongs(event, func(command *logpb.Command, result *logpb.Result) bool {
			return result.GetQuotasApplied() != nil && command.GetDeleteQuota().GetQuota() == event.Quota
		})
	case effect.EventWindowClosed:
		j.resetsHere()
	case effect.EventResetLearned: // a report's result says so, or it was reported during the last boundary
	case effect.EventForecast:
		j.stats.Forecasts++
		if q := j.quotas[event.Quota]; q == nil || q.definition.GetPolicy().GetPrediction() == nil {
			j.violate("unexplained", "%+v, and nothing is predicted of it", *event)
		}
	case effect.EventOverride:
		j.happenOverride(event)
	case effect.EventBreaker:
		j.happenBreaker(event)
	case effect.EventBackPressure, effect.EventSequential, effect.EventBaton, effect.EventParallel:
		j.happenWorkflow(event)
	case effect.EventTaskBegun, effect.EventTaskEnded, effect.EventTaskShelved, effect.EventTaskRetried:
		j.happenTask(event)
	}
}

// happenReopened handles the end of a cooldown, by time or by a command, which has an event of its own.
func (j *Judge) happenReopened(event *effect.Event) {
	if j.reopens(event.Quota) {
		return
	}
	if q := j.quotas[event.Quota]; q == nil || q.closedUntil > j.clock.Now {
		j.violate("cooldown", "%s reopens at %d, before its cooldown is over", event.Quota, j.clock.Now)
	} else {
		q.reopens(q.closedUntil)
		q.closedUntil = 0
	}
}

// reopens says whether the entry has a command, not judged yet, that reopens a closed quota.
func (j *Judge) reopens(quota string) bool {
	q := j.quotas[quota]
	return q != nil && q.closedUntil > j.clock.Now && j.find(j.entry.next, func(command *logpb.Command, result *logpb.Result) bool {
		return command.GetReopenQuota().GetQuota() == quota && result.GetQuotaReopened() != nil
	}) >= 0
}

func reportsOn(result *logpb.Result, quota string) bool {
	for _, q := range result.GetReported().GetQuotas() {
		if q.Quota == quota {
			return true
		}
	}
	return false
}

// happenApplied handles the definition of a quota; each command has one such event for each quota.
func (j *Judge) happenApplied(event *effect.Event) {
	var by definedBy
	j.belongs(event, func(command *logpb.Command, result *logpb.Result) bool {
		by = definedBy{result: result, quota: event.Quota}
		return applies(command, result, event.Quota) && !j.entry.defined[by]
	})
	j.entry.defined[by] = true
}

func applies(command *logpb.Command, result *logpb.Result, quota string) bool {
	if result.GetQuotasApplied() == nil || command.GetApplyQuotas().GetDryRun() {
		return false
	}
	for _, definition := range command.GetApplyQuotas().GetQuotas() {
		if definition.Name == quota {
			return true
		}
	}
	return false
}

// happenGranted handles a grant with its first item; the other items only have to match.
func (j *Judge) happenGranted(event *effect.Event) {
	e := &j.entry
	e.items[event.Lease]++
	if e.items[event.Lease] == 1 {
		if k, ok := e.granting[event.Lease]; ok && k >= e.next {
			j.carryOut(k + 1)
		} else {
			j.grantToWaiter(event)
		}
	}
	made := e.made[event.Lease]
	n := e.items[event.Lease] - 1
	if made == nil || made.Fence != event.Fence || n >= len(made.Items) || made.Items[n].Quota != event.Quota ||
		made.Items[n].Amount != event.Amount {
		j.violate("unexplained", "the event of lease %d, fence %d, with %d of %s for %s fits no grant",
			event.Lease, event.Fence, event.Amount, event.Quota, event.Holder)
	}
}

// happenReleased handles the end of a lease that its holder released.
func (j *Judge) happenReleased(event *effect.Event) {
	k := j.find(0, func(command *logpb.Command, result *logpb.Result) bool {
		release, settle := command.GetRelease(), command.GetSettle()
		return release != nil && release.Lease == event.Lease && result.GetReleased().GetEnded() ||
			settle != nil && settle.Lease == event.Lease && result.GetSettled().GetReleased()
	})
	if k < 0 {
		j.violate("unexplained", "lease %d is released, by no command", event.Lease)
		return
	}
	j.carryOut(k + 1)
}

// happenRevoked handles the end of a lease by an operator's command, or by a Reserve of its holder that resumes.
func (j *Judge) happenRevoked(event *effect.Event) {
	j.stats.Revoked++
	k := j.find(0, func(command *logpb.Command, result *logpb.Result) bool {
		revoke := command.GetRevokeLease()
		return revoke != nil && revoke.Lease == event.Lease && result.GetReleased() != nil
	})
	if k >= 0 {
		j.carryOut(k + 1)
		return
	}
	k = j.find(j.entry.next, func(command *logpb.Command, result *logpb.Result) bool {
		reserve := command.GetReserve()
		return reserve != nil && reserve.Resume && reserve.Holder == event.Holder && !endsNothing(reserve, result)
	})
	l := j.leases[event.Lease]
	if k < 0 || l == nil || l.fence != event.Fence || l.holder != event.Holder {
		j.violate("unexplained", "lease %d of %s is revoked, by no command", event.Lease, event.Holder)
		return
	}
	j.carryOut(k)
	j.end(l, false)
}

// neverReasons are the reasons of requests that can never be granted as configured.
var neverReasons = []logpb.Reason{logpb.Reason_REASON_SUSPENDED, logpb.Reason_REASON_NEVER_FITS, logpb.Reason_REASON_ABOVE_CLAMP}

// endsNothing says whether a Reserve that resumes failed before it ended the older leases of its holder: it was invalid, or can never be
// granted. A refusal that only an operator's override causes has a retry time.
func endsNothing(reserve *logpb.Reserve, result *logpb.Result) bool {
	if refusal := result.GetRefusal(); slices.Contains(neverReasons, refusal.GetReason()) {
		return refusal.RetryAtNs == 0 && !reserve.Fallback
	}
	return result.GetFailure() != nil
}

// command judges an applied command, and enters its effect.
func (j *Judge) command(command *logpb.Command, result *logpb.Result) {
	if failure := result.GetFailure(); failure != nil {
		j.failed(command, failure)
		return
	}
	switch k := command.Kind.(type) {
	case *logpb.Command_Reserve:
		j.reserve(k.Reserve, result)
	case *logpb.Command_Consume:
		j.consume(k.Consume, result)
	case *logpb.Command_Settle:
		j.settle(k.Settle, result.GetSettled())
	case *logpb.Command_Release:
		j.release(k.Release, result.GetReleased())
	case *logpb.Command_Renew:
		j.renew(k.Renew, result.GetRenewed())
	case *logpb.Command_RevokeLease:
		j.revoke(k.RevokeLease, result.GetReleased())
	case *logpb.Command_Withdraw:
		if j.waiting[k.Withdraw.Ticket] != nil {
			j.violate("early-wait-end", "ticket %d was withdrawn and waits on", k.Withdraw.Ticket)
		}
	case *logpb.Command_Report:
		j.report(command, result.GetReported())
	case *logpb.Command_ApplyQuotas:
		j.applyQuotas(k.ApplyQuotas)
	case *logpb.Command_DeleteQuota:
		j.deleteQuota(k.DeleteQuota)
	case *logpb.Command_RaiseEpoch:
		if counter := uint64(k.RaiseEpoch.Epoch) << 48; counter <= j.lastFence {
			j.violate("fence-order", "epoch %d is not above fence %d", k.RaiseEpoch.Epoch, j.lastFence)
		} else {
			j.lastFence = counter
		}
	case *logpb.Command_Found:
		j.clusterID = k.Found.ClusterId
	case *logpb.Command_SetOverride:
		j.setOverride(k.SetOverride)
	case *logpb.Command_ReopenQuota:
		j.reopen(k.ReopenQuota, result.GetQuotaReopened())
	case *logpb.Command_ResetClock:
		j.resetClock(result.GetClockReset())
	case *logpb.Command_DeleteWorkflow:
		j.deleteWorkflow(k.DeleteWorkflow.Workflow)
	default:
		j.taskCommand(command, result)
	}
}
