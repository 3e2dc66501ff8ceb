package fsm

import (
	"errors"
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// state names State so that the embedded field does not hide the method State.
type state = State

// Machine is the replicated state machine.
type Machine struct {
	*state
	// digester computes the digests of commands.
	digester entry.Digester
	// ending is scratch space for the leases that end together.
	ending   []uint64
	digests  digests
	freeList freeList
	decoder  entry.Decoder
	// raw is the present command's Reserve as encoded in the entry, if it is plain.
	raw []byte
	// wantResult says that the result of the present command is read or stored.
	wantResult bool
}

// New returns the state of a new cluster.
func New() *Machine {
	m := &Machine{state: newState(), freeList: freeList{most: maxFree}}
	m.queue.server = serving{m}
	return m
}

// Freeze returns, in constant time, the present state, which never changes again. Any goroutine may read it while Apply
// continues.
func (m *Machine) Freeze() *State {
	m.generation++
	return m.copy()
}

// State returns the live state for reading. It must not be used while Apply runs.
func (m *Machine) State() *State { return m.state }

// Apply applies one log entry, an encoded logpb.Entry. It panics on an entry that it cannot decode, and on an unknown
// version, command or field: to continue would make replicas differ.
func (m *Machine) Apply(index, term uint64, data []byte) Applied {
	return m.applyEntry(index, term, data, true)
}

// Follow applies one log entry as Apply does, on a replica without callers. It reaches the same state and events, and
// returns no results. Results of grants, the most frequent, are not even built, except those that are stored.
func (m *Machine) Follow(index, term uint64, data []byte) Applied {
	applied := m.applyEntry(index, term, data, false)
	applied.Results = nil
	return applied
}

func (m *Machine) applyEntry(index, term uint64, data []byte, asked bool) Applied {
	m.index, m.term = index, term
	m.decoder.Names = &m.quotas.cache.names
	err := m.decoder.Decode(data)
	if err != nil && !errors.Is(err, entry.ErrUnknownField) {
		m.undecodable(err)
	}
	entry := &m.decoder.Entry
	if err := CheckVersion(index, entry.Version); err != nil {
		panic(fmt.Sprintf("fsm: %v", err))
	}
	if err != nil {
		m.undecodable(err)
	}
	m.featureLevel = max(m.featureLevel, entry.Version)
	m.begin()
	m.workflows.BeginEntry()
	boundTimes(entry)
	m.advance(entry)
	m.runDue()
	m.bounds.tries.leaveHalf() // so that a queue examined again and again does not refuse requests that do not wait
	results := make([]*logpb.Result, m.decoder.Commands())
	for i := range results {
		command, raw, err := m.decoder.Command(i)
		if err != nil {
			m.undecodable(err)
		}
		m.asker = uint64(i)
		m.raw, m.commanded, m.wantResult = raw, true, asked || command.Session != 0 || command.IdempotencyKey != ""
		m.payer = accounts.PayerOf(command)
		results[i] = m.requests.ApplyOnce(requestHost{m}, command)
		m.commanded, m.payer = false, accounts.Payer{}
		m.queue.serve()
		m.accounts.DropEmptied()
	}
	m.queue.finishWalks()
	m.quotas.rescheduleChanged()
	m.leasesOf.Flush()
	m.deadlines.Flush()
	return Applied{Index: index, Term: term, Clock: m.clock, Results: results, Events: m.events}
}

// boundTimes limits the times of an entry to valid values.
func boundTimes(entry *logpb.Entry) {
	entry.StampNs = min(entry.StampNs, fixed.MaxTime)
	entry.WallEarlyNs, entry.WallLateNs = min(entry.WallEarlyNs, fixed.MaxTime), min(entry.WallLateNs, fixed.MaxTime)
}

func (m *Machine) undecodable(err error) {
	panic(fmt.Sprintf("fsm: log entry %d (term %d) cannot be decoded: %v", m.index, m.term, err))
}

// advance moves the clock. Cluster time and the earlier view of Unix time never go back.
//
// Each sample is sound alone: its earlier time is not after some honest clock, its later one not before. So the earlier
// view moves to the sample. Where wrong clocks once carried it further, it stands still until real time has caught up:
// going back would open again what it has opened, and advancing would keep the error. The later view may fall to a
// better sample, but not below the earlier one. Without a sample the earlier view may already be ahead, so it stands
// still, and windows open late if at all. The later view then advances with cluster time, which counts all time within
// one leadership; a new leader begins with a sample.
func (m *Machine) advance(entry *logpb.Entry) {
	elapsed := max(entry.StampNs, m.clock.Now) - m.clock.Now
	m.ticked = m.clock.Now/fixed.Second != (m.clock.Now+elapsed)/fixed.Second
	m.clock.Now += elapsed
	switch {
	case entry.WallEarlyNs > 0 && entry.WallLateNs > 0:
		m.clock.WallEarly = max(m.clock.WallEarly, m.clock.Shifted(entry.WallEarlyNs))
		m.clock.WallLate = max(m.clock.Shifted(entry.WallLateNs), m.clock.WallEarly)
	case m.clock.WallEarly != 0:
		m.clock.WallLate = fixed.AddSaturated(m.clock.WallLate, elapsed)
	}
}

// apply carries out one command.
func (m *Machine) apply(command *logpb.Command, from dedup.RequestID) *logpb.Result {
	switch kind := command.Kind.(type) {
	case *logpb.Command_OpenSession:
		return m.requests.Open(requestHost{m}, kind.OpenSession.Holder, command.By)
	case *logpb.Command_CloseSession:
		return m.requests.Close(requestHost{m}, command)
	case *logpb.Command_Reserve:
		return m.reserve(kind.Reserve, from)
	case *logpb.Command_Consume:
		return m.consume(kind.Consume, command.By)
	case *logpb.Command_Settle:
		return m.settle(kind.Settle, command.By)
	case *logpb.Command_Release:
		return m.release(kind.Release, command.By)
	case *logpb.Command_Renew:
		return m.renew(kind.Renew, command.By)
	case *logpb.Command_Withdraw:
		return m.withdraw(kind.Withdraw, command.By)
	case *logpb.Command_Report:
		return m.report(command)
	case *logpb.Command_BeginTask:
		return m.tasks.Begin(taskHost{m}, kind.BeginTask, command.By)
	case *logpb.Command_RenewTask:
		return m.tasks.Renew(taskHost{m}, kind.RenewTask, command.By)
	case *logpb.Command_EndTask:
		return m.tasks.End(taskHost{m}, command)
	case *logpb.Command_RetryTask:
		return m.tasks.Retry(taskHost{m}, kind.RetryTask, command.By)
	case *logpb.Command_ForgetTask:
		return m.tasks.Forget(taskHost{m}, kind.ForgetTask, command.By)
	case *logpb.Command_DeleteWorkflow:
		return m.workflows.Delete(workflowHost{m}, kind.DeleteWorkflow.Workflow)
	case *logpb.Command_ApplyQuotas:
		return m.applyQuotas(kind.ApplyQuotas)
	case *logpb.Command_DeleteQuota:
		return m.deleteQuota(kind.DeleteQuota)
	case *logpb.Command_RevokeLease:
		return m.revokeLease(kind.RevokeLease)
	case *logpb.Command_PutMember:
		m.members.Set(kind.PutMember.Id, kind.PutMember.ApiAddress)
		return effect.Done()
	case *logpb.Command_DeleteMember:
		m.members.Delete(kind.DeleteMember.Id)
		return effect.Done()
	case *logpb.Command_Found:
		return m.found(kind.Found)
	case *logpb.Command_RaiseEpoch:
		return m.raiseEpoch(kind.RaiseEpoch)
	case *logpb.Command_SetLimits:
		return m.setLimits(kind.SetLimits)
	case *logpb.Command_SetOverride:
		return m.setOverride(kind.SetOverride)
	case *logpb.Command_ReopenQuota:
		return m.reopenQuota(kind.ReopenQuota)
	case *logpb.Command_ResetClock:
		return m.resetClock()
	}
	panic(fmt.Sprintf("fsm: log entry %d (term %d) holds a kind of command that this binary does not know: upgrade it",
		m.index, m.term))
}

// MaxEntryCommands is how many commands an entry may have. The grants of larger entries would pile up when they fall
// due.
const MaxEntryCommands = 2048

// Weight returns how many of MaxEntryCommands a command counts for: a Reserve one for each item, since each is judged. A
// pool counts as one item; maxPools and maxPoolItems bound its work. So the time to apply an entry is bounded.
func Weight(command *logpb.Command) int { return max(1, len(command.GetReserve().GetItems())) }

// maxDuePerEntry bounds how much due work one entry carries out; the rest follows with the next entries. Commands that
// touch something due get the same answer either way.
const maxDuePerEntry = MaxEntryCommands + MaxEntryCommands/4

// maxForgottenPerEntry bounds roughly how many records of ended leases one entry drops. A command may leave two: one
// for what it consumed, one for a slot's grace.
const maxForgottenPerEntry = 2 * maxDuePerEntry

// runDue carries out due work, in the order of time.
func (m *Machine) runDue() {
	m.bounds.ends.half(m.records.retireMore)
	m.bounds.ends.half(m.endResumed)
	m.requests.Free(requestHost{m})
	m.refuseDeleted()
	m.queue.moveMore()
	m.holders.sweepOn()
	m.expireLeases()
	m.records.retireMore()
	m.records.expire()
	m.requests.ExpireSessions(requestHost{m}, maxDuePerEntry)
	m.requests.ExpireKeys(requestHost{m}, maxDuePerEntry)
	m.accounts.ForgetReports(m.clock.Now)
	m.holders.forget(m.state)
	m.tasks.LoseAttempts(taskHost{m}, maxDuePerEntry)
	m.tasks.ForgetOld(taskHost{m}, maxDuePerEntry)
	m.endLimits()
	m.endCooldowns()
	m.endOverrides()
	m.workflows.Review(workflowHost{m}, maxDuePerEntry)
	m.bounds.waits.half(m.endWaits)
	m.queue.promote()
	m.queue.reserveForStarved()
	m.quotas.fireTimers()
	m.queue.serve()
	m.accounts.DropEmptied()
}
