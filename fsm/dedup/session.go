package dedup

import (
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// MaxInFlight is how many unacknowledged requests a session may have.
const MaxInFlight = 16_384

// sessionShare: one session may use a sessionShare-th of the bytes of all results.
const sessionShare = 8

// applyNumbered carries out a session's request, once.
func (t *Table) applyNumbered(host Host, command *logpb.Command) *logpb.Result {
	at := host.Moment()
	s, ok := t.sessionOf(&at, command)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_SESSION, fmt.Sprintf("there is no session %d", command.Session),
			"it may have expired: the outcome of earlier requests is unknown; open a new one")
	}
	if command.Seq == 0 {
		return effect.Failed(effect.Invalid("requests of a session are numbered from 1", ""))
	}
	s = t.useSession(&at, s)
	t.acknowledge(&at, host, s, command.AckedBelow)
	if command.Seq < s.ackedBelow {
		return effect.Fail(logpb.Reason_REASON_SEQ_TOO_OLD,
			fmt.Sprintf("request %d is below %d, up to which you acknowledged", command.Seq, s.ackedBelow), "take a new number")
	}
	digest := host.Digest(command)
	if known, ok := t.results.Get(sessionResult{session: s.id, seq: command.Seq}); ok {
		if known.digest != digest {
			return reused(fmt.Sprintf("request %d of session %d was another one", command.Seq, s.id))
		}
		return known.result
	}
	if full := t.full(&at, host, s); full != nil {
		return full
	}
	result := host.Apply(command, RequestID{Session: s.id, Seq: command.Seq})
	s = t.edit(s, at.Generation)
	s.kept++
	t.keepResult(&at, s, sessionResult{session: s.id, seq: command.Seq, digest: digest, result: result})
	return result
}

// full returns why a session may store no more results; nil: there is room.
func (t *Table) full(at *Moment, host Host, s *session) *logpb.Result {
	limit := at.Accounts.Limits.ResultBytes
	if s.kept >= MaxInFlight || s.bytes >= limit/sessionShare || t.bytes >= limit {
		return effect.Fail(logpb.Reason_REASON_TOO_MANY_IN_FLIGHT,
			fmt.Sprintf("session %d has %d unacknowledged requests, all sessions %d bytes of results", s.id, s.kept, t.bytes),
			"send acked_below")
	}
	taking := at.Accounts.TakingFor(s.account, accounts.Results, host.Payer().Operator, at.Now)
	if taking == accounts.AtBudget || at.Level >= levels.Results {
		return at.Accounts.Full(accounts.Results, taking, "send acked_below with each request: that frees the results below it")
	}
	return nil
}

// keepResult stores a result of a session for update.
func (t *Table) keepResult(at *Moment, s *session, r sessionResult) {
	r.size = sizeOf(r.result)
	grown := r.size
	if old, had := t.results.Set(r); had {
		grown -= old.size
	}
	t.bytes += grown
	s.bytes += grown
	at.Accounts.Add(s.account, accounts.Results, grown)
}

// sessionOf finds the session that a command names, if its caller may use it.
func (t *Table) sessionOf(at *Moment, command *logpb.Command) (*session, bool) {
	s, ok := t.sessions.Get(command.Session)
	return s, ok && isOwn(at, command, s.by, s.account)
}

// ownerOf returns the session, live or ended, with a number; nil: none.
func (t *Table) ownerOf(id uint64) *session {
	if s, ok := t.sessions.Get(id); ok {
		return s
	}
	s, _ := t.ended.Get(id)
	return s
}

// Open opens a session for a holder; by is the caller's reach.
func (t *Table) Open(host Host, holder, by string) *logpb.Result {
	at := host.Moment()
	switch at.Accounts.Taking(host.Payer(), accounts.Sessions, at.Now) {
	case accounts.AtBudget:
		return at.Accounts.OverBudget(accounts.Sessions, "close those that are not needed; idle ones expire")
	case accounts.AllTaken:
		return effect.Fail(logpb.Reason_REASON_SESSIONS_FULL, fmt.Sprintf("%d sessions are open", t.sessions.Len()),
			"close those that are not needed; idle ones expire")
	case accounts.MayTake:
	}
	t.Last++
	s := &session{
		Made: cow.In(at.Generation), id: t.Last, holder: holder, by: by, used: at.Now, listed: at.Now,
		account: at.Accounts.Bill(host.Payer(), accounts.Sessions, 1),
	}
	t.sessions.Set(s.id, s)
	t.use.Set(due{At: s.listed, ID: s.id})
	return &logpb.Result{Kind: &logpb.Result_SessionOpened{SessionOpened: &logpb.SessionOpened{Session: s.id}}}
}

// Close ends the session that a command names.
func (t *Table) Close(host Host, command *logpb.Command) *logpb.Result {
	at := host.Moment()
	s, ok := t.sessionOf(&at, command)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_SESSION, fmt.Sprintf("there is no session %d", command.Session), "it may have expired")
	}
	t.end(&at, host, s, host.Freeable(leastFreed))
	return effect.Done()
}

// end ends a session: its number is unknown from now on. Up to most of its results leave with it.
func (t *Table) end(at *Moment, host Host, s *session, most int) {
	s = t.edit(s, at.Generation)
	s.ended = true
	at.Accounts.Add(s.account, accounts.Sessions, -1)
	t.sessions.Delete(s.id)
	t.use.Delete(due{At: s.listed, ID: s.id})
	t.acked.Delete(s.id)
	t.ended.Set(s.id, s)
	t.free(at, host, s, most)
}

func (t *Table) edit(s *session, generation uint64) *session {
	table := t.sessions
	if s.ended {
		table = t.ended
	}
	s, _ = cow.Edit(table, s.id, s, generation)
	return s
}

// useSession records a use of a session.
func (t *Table) useSession(at *Moment, s *session) *session {
	s = t.edit(s, at.Generation)
	s.used = at.Now
	if s.used-s.listed > at.Accounts.Limits.SessionIdle/16 {
		t.list(s)
	}
	return s
}

// list lists a session for update by its last use.
func (t *Table) list(s *session) {
	t.use.Delete(due{At: s.listed, ID: s.id})
	s.listed = s.used
	t.use.Set(due{At: s.listed, ID: s.id})
}

// acknowledge drops the results below a client's mark.
func (t *Table) acknowledge(at *Moment, host Host, s *session, below uint64) {
	if below <= s.ackedBelow {
		return
	}
	s.ackedBelow = below
	t.free(at, host, s, host.Freeable(leastFreed))
}

// ExpireSessions ends sessions that were idle for too long. It examines up to most.
func (t *Table) ExpireSessions(host Host, most int) {
	at := host.Moment()
	for range most {
		idle, ok := t.use.Min()
		if !ok || fixed.AddSaturated(idle.At, at.Accounts.Limits.SessionIdle) > at.Now {
			return
		}
		s, _ := t.sessions.Get(idle.ID)
		if fixed.AddSaturated(s.used, at.Accounts.Limits.SessionIdle) > at.Now {
			t.list(t.edit(s, at.Generation)) // it was used since it was listed
			continue
		}
		t.end(&at, host, s, host.Freeable(0))
	}
}
