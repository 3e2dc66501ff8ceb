package fsm

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// maxInFlight is how many unacknowledged requests a session may have.
const maxInFlight = 16_384

// sessionShare is the part of all results' bytes that one session may have.
const sessionShare = 8

// resultOverhead is what a stored result costs besides its encoding, roughly; grantSize and itemSize are what a grant and each of its
// items take there, besides names.
const (
	resultOverhead = 256
	grantSize      = 48
	itemSize       = 16
)

// session is a client's numbered requests.
type session struct {
	cow.Made
	id     uint64
	holder string
	// by is the reach of who opened it, by which callers without an account are told apart (isOwn).
	by         string
	ackedBelow uint64
	// used is when it was last used (cluster time), listed where it stands in sessionUse: that may lag by a sixteenth of the
	// idle limit, so that not each request moves it.
	used, listed int64
	// kept counts its stored results, bytes what they cost.
	kept, bytes int64
	// account is charged with it and with its results.
	account uint64
	// ended: nobody can use it any more; what it has kept is still to leave.
	ended bool
}

// dedupEntry is the stored result of a session's request.
type dedupEntry struct {
	session, seq uint64
	digest       uint64
	result       *logpb.Result
	// size is what it costs.
	size int64
}

func lessDedupEntry(a, b dedupEntry) bool {
	return a.session < b.session || a.session == b.session && a.seq < b.seq
}

// keyEntry is the stored result of a request with an idempotency key.
type keyEntry struct {
	digest uint64
	result *logpb.Result
	// size is what it costs, made when its life began (cluster time).
	size, made int64
	// account is charged with it.
	account uint64
}

// requestID identifies the request of a waiting Reserve: its final result is stored there.
type requestID struct {
	session, seq uint64
	key          string
}

// applyOnce carries a command out, or answers it from memory.
func (m *Machine) applyOnce(command *logpb.Command) *logpb.Result {
	switch {
	case command.GetCloseSession() != nil: // a second one finds it closed
		return m.apply(command, requestID{})
	case command.Session != 0:
		return m.applyNumbered(command)
	case command.IdempotencyKey != "":
		return m.applyKeyed(command)
	}
	return m.apply(command, requestID{})
}

// applyNumbered carries a session's request out, once.
func (m *Machine) applyNumbered(command *logpb.Command) *logpb.Result {
	s, ok := m.sessionOf(command)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_SESSION, fmt.Sprintf("there is no session %d", command.Session),
			"it may have expired: the outcome of earlier requests is unknown; open a new one")
	}
	if command.Seq == 0 {
		return effect.Failed(effect.Invalid("requests of a session are numbered from 1", ""))
	}
	s = m.useSession(s)
	m.acknowledge(s, command.AckedBelow)
	if command.Seq < s.ackedBelow {
		return effect.Fail(logpb.Reason_REASON_SEQ_TOO_OLD,
			fmt.Sprintf("request %d is below %d, up to which you acknowledged", command.Seq, s.ackedBelow), "take a new number")
	}
	digest := m.digester.Command(command, m.raw)
	if known, ok := m.results.Get(dedupEntry{session: s.id, seq: command.Seq}); ok {
		if known.digest != digest {
			return reused(fmt.Sprintf("request %d of session %d was another one", command.Seq, s.id))
		}
		return known.result
	}
	if s.kept >= maxInFlight || s.bytes >= m.accounts.Limits.ResultBytes/sessionShare || m.resultBytes >= m.accounts.Limits.ResultBytes {
		return effect.Fail(logpb.Reason_REASON_TOO_MANY_IN_FLIGHT,
			fmt.Sprintf("session %d has %d unacknowledged requests, all sessions %d bytes of results", s.id, s.kept, m.resultBytes),
			"send acked_below")
	}
	if taking := m.takingFor(s.account, accounts.Results); taking == accounts.AtBudget || m.featureLevel >= levels.Results {
		if full := m.accounts.Full(accounts.Results, taking, "send acked_below with each request: that frees the results below it"); full != nil {
			return full
		}
	}
	result := m.apply(command, requestID{session: s.id, seq: command.Seq})
	s = m.editSession(s)
	s.kept++
	m.keepResultOf(s, dedupEntry{session: s.id, seq: command.Seq, digest: digest, result: result})
	return result
}

// keepResultOf stores a result of a session.
func (m *Machine) keepResultOf(s *session, r dedupEntry) {
	grown := m.keepResult(r)
	s.bytes += grown
	m.accounts.Add(s.account, accounts.Results, grown)
}

// sessionOf finds the session that a command names, if its caller may use it.
func (m *Machine) sessionOf(command *logpb.Command) (*session, bool) {
	s, ok := m.sessions.Get(command.Session)
	return s, ok && m.isOwn(command, s.by, s.account)
}

// applyKeyed carries a request with an idempotency key out, once while the key is remembered.
func (m *Machine) applyKeyed(command *logpb.Command) *logpb.Result {
	key, known, isKnown := m.keyOf(command)
	digest := m.digester.Command(command, m.raw)
	if isKnown {
		if known.digest != digest {
			return reused("this idempotency key was used for another request")
		}
		return known.result
	}
	for _, b := range [...]accounts.Budget{accounts.Keys, accounts.Results} {
		switch m.taking(b) {
		case accounts.AtBudget:
			return m.overBudget(b, "use a session and acknowledge its requests; keys go at the end of their life")
		case accounts.AllTaken:
			return effect.Fail(logpb.Reason_REASON_SESSIONS_FULL, "no more idempotency keys can be remembered",
				"come back later, or use a session and acknowledge its requests")
		case accounts.MayTake:
		}
	}
	result := m.apply(command, requestID{key: key})
	m.keepKey(key, keyEntry{digest: digest, result: result, made: m.clock.Now, account: m.accounts.Open(m.payer)})
	return result
}

// endOf returns when a key's life ends.
func (m *Machine) endOf(k keyEntry) int64 {
	return fixed.AddSaturated(k.made, m.accounts.Limits.KeyLife)
}

func reused(message string) *logpb.Result {
	return effect.Fail(logpb.Reason_REASON_SEQ_REUSED, message, "take a new number or key for a new request")
}

// sizeOf returns what a stored result costs, roughly. Grants, which are most, are not encoded for it: that would take longer than to
// take what they grant out of a quota.
func sizeOf(result *logpb.Result) int64 {
	g := result.GetGranted()
	if g == nil || g.Forecast != nil || g.BackPressure != nil {
		return int64(proto.Size(result)) + resultOverhead
	}
	size := int64(resultOverhead + grantSize)
	for _, item := range g.Items {
		size += itemSize + int64(len(item.Quota)+len(item.InsteadOf))
	}
	for _, item := range g.GetConsumed().GetItems() {
		size += itemSize + int64(len(item.Quota))
	}
	return size
}

// keepResult stores a result and returns by how much it costs more than the one in whose place it comes.
func (m *Machine) keepResult(s dedupEntry) (grown int64) {
	s.size = sizeOf(s.result)
	grown = s.size
	if old, had := m.results.Set(s); had {
		grown -= old.size
	}
	m.resultBytes += grown
	return grown
}

func (m *Machine) keepKey(key string, k keyEntry) {
	k.size = sizeOf(k.result)
	if old, had := m.keys.Get(key); had {
		m.dropKey(key, old)
	}
	m.keys.Set(key, k)
	m.resultBytes += k.size
	m.accounts.Add(k.account, accounts.Keys, 1)
	m.accounts.Add(k.account, accounts.Results, k.size)
	m.keyEnds.Set(dueByName{At: k.made, ID: key})
}

func (m *Machine) dropKey(key string, k keyEntry) {
	m.keys.Delete(key)
	m.resultBytes -= k.size
	m.accounts.Add(k.account, accounts.Keys, -1)
	m.accounts.Add(k.account, accounts.Results, -k.size)
	m.keyEnds.Delete(dueByName{At: k.made, ID: key})
}

// completeRequest stores the final result of a Reserve that waited under a ticket, where it is still remembered.
func (m *Machine) completeRequest(from requestID, ticket uint64, result *logpb.Result) {
	if s, ok := m.sessions.Get(from.session); ok && from.seq >= s.ackedBelow {
		if known, ok := m.results.Get(dedupEntry{session: from.session, seq: from.seq}); ok {
			known.result = result
			m.keepResultOf(m.editSession(s), known)
		}
	}
	if known, ok := m.keys.Get(from.key); ok && from.key != "" && known.result.GetWaiting().GetTicket() == ticket {
		known.result = result
		m.keepKey(from.key, known)
	}
}

// openSession opens a session.
func (m *Machine) openSession(command *logpb.OpenSession, by string) *logpb.Result {
	switch m.taking(accounts.Sessions) {
	case accounts.AtBudget:
		return m.overBudget(accounts.Sessions, "close those that are not needed; idle ones expire")
	case accounts.AllTaken:
		return effect.Fail(logpb.Reason_REASON_SESSIONS_FULL, fmt.Sprintf("%d sessions are open", m.sessions.Len()),
			"close those that are not needed; idle ones expire")
	case accounts.MayTake:
	}
	m.lastSession++
	s := &session{
		Made: cow.In(m.generation), id: m.lastSession, holder: command.Holder, by: by, used: m.clock.Now, listed: m.clock.Now,
		account: m.accounts.Bill(m.payer, accounts.Sessions, 1),
	}
	m.sessions.Set(s.id, s)
	m.sessionUse.Set(due{At: s.listed, ID: s.id})
	return &logpb.Result{Kind: &logpb.Result_SessionOpened{SessionOpened: &logpb.SessionOpened{Session: s.id}}}
}

// closeSession forgets a session.
func (m *Machine) closeSession(command *logpb.Command) *logpb.Result {
	s, ok := m.sessionOf(command)
	if !ok {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_SESSION, fmt.Sprintf("there is no session %d", command.Session), "it may have expired")
	}
	m.endSession(s, m.bounds.frees.own(leastFreed))
	return effect.Done()
}

// endSession ends a session, whose number leads nowhere from now on. Up to most of its results leave with it.
func (m *Machine) endSession(s *session, most int) {
	s = m.editSession(s)
	s.ended = true
	m.accounts.Add(s.account, accounts.Sessions, -1)
	m.sessions.Delete(s.id)
	m.sessionUse.Delete(due{At: s.listed, ID: s.id})
	m.acked.Delete(s.id)
	m.ended.Set(s.id, s)
	m.free(s, most)
}

func (m *Machine) editSession(s *session) *session {
	table := m.sessions
	if s.ended {
		table = m.ended
	}
	s, _ = cow.Edit(table, s.id, s, m.generation)
	return s
}

// useSession records that a session is used.
func (m *Machine) useSession(s *session) *session {
	s = m.editSession(s)
	s.used = m.clock.Now
	if s.used-s.listed > m.accounts.Limits.SessionIdle/16 {
		m.listSession(s)
	}
	return s
}

// listSession enters a session that may be changed under when it was last used.
func (m *Machine) listSession(s *session) {
	m.sessionUse.Delete(due{At: s.listed, ID: s.id})
	s.listed = s.used
	m.sessionUse.Set(due{At: s.listed, ID: s.id})
}

// acknowledge drops the results below a client's mark.
func (m *Machine) acknowledge(s *session, below uint64) {
	if below <= s.ackedBelow {
		return
	}
	s.ackedBelow = below
	m.free(s, m.bounds.frees.own(leastFreed))
}

// expireSessions forgets sessions that were idle for too long.
func (m *Machine) expireSessions() {
	for range maxDuePerEntry {
		idle, ok := m.sessionUse.Min()
		if !ok || fixed.AddSaturated(idle.At, m.accounts.Limits.SessionIdle) > m.clock.Now {
			return
		}
		s, _ := m.sessions.Get(idle.ID)
		if fixed.AddSaturated(s.used, m.accounts.Limits.SessionIdle) > m.clock.Now {
			m.listSession(m.editSession(s)) // it was used since it was listed
			continue
		}
		m.endSession(s, m.bounds.frees.left)
	}
}

// expireKeys forgets idempotency keys whose life is over.
func (m *Machine) expireKeys() {
	isOld := func(d dueByName) bool { return fixed.AddSaturated(d.At, m.accounts.Limits.KeyLife) <= m.clock.Now }
	for _, end := range cow.TakeDue(m.keyEnds, maxDuePerEntry, isOld) {
		known, _ := m.keys.Get(end.ID)
		m.dropKey(end.ID, known)
	}
}
