package model

import (
	"hash/maphash"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// limits are the bounds that commands can change.
type limits struct {
	sessions, idle, keyLife, waiters, taskLife, tasks, keys, leases, reports, resultBytes int64
	// operators and least are millionths of each: the part reserved for operators, and the guaranteed part of each caller.
	operators, least int64
}

func defaultLimits() limits {
	return limits{
		sessions: 262_144, idle: int64(time.Hour), keyLife: 24 * int64(time.Hour), waiters: 200_000, taskLife: 7 * 24 * int64(time.Hour),
		tasks: 100_000, keys: 100_000, leases: 500_000, reports: 1_200_000, resultBytes: 256 << 20, operators: 62_500, least: 1_000,
	}
}

// levelOwnSessions is the first version of entries at which sessions and idempotency keys belong to a caller, not to all of the same reach.
const levelOwnSessions = 9

// owner is the caller that opened a session, or used an idempotency key.
type owner struct{ by, caller string }

func ownerOf(command *logpb.Command) owner { return owner{by: command.By, caller: command.Caller} }

// mayUse says whether a command's caller may use an owner's session or key. A caller without a token is known by its reach alone.
func (j *Judge) mayUse(command *logpb.Command, of owner) bool {
	if j.level < levelOwnSessions || of.by == "" || command.By == "" || of.caller == "" {
		return of.by == command.By
	}
	return of.caller == command.Caller
}

// session is the numbered requests of a client.
type session struct {
	owner owner
	acked uint64
	used  int64
	// over says that it may have expired while the idle time was shorter than now.
	over    bool
	answers map[uint64]*answer
}

// answer is a numbered request and its answer, as digests.
type answer struct {
	asked, answered uint64
	// ticket is the one of its wait; 0: its answer is final.
	ticket uint64
	index  uint64
	// made is when an idempotency key's life began, owner its user.
	made  int64
	owner owner
}

// digest returns a digest of a message.
func (j *Judge) digest(message proto.Message) uint64 {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return 0 // a result that cannot be encoded was never sent
	}
	return maphash.Bytes(j.seed, encoded)
}

// dedupe judges a command's identity, and says whether the command was applied: a numbered request is, the first time, and an ended session
// applies nothing.
func (j *Judge) dedupe(command *logpb.Command, result *logpb.Result) (fresh bool) {
	switch {
	case command.GetCloseSession() != nil:
		return j.closeSession(command, result)
	case command.Session != 0:
		fresh = j.numbered(command, result)
	case command.IdempotencyKey != "":
		fresh = j.keyed(command, result)
	default:
		fresh = true
	}
	if !fresh {
		return false
	}
	if opened := result.GetSessionOpened(); opened != nil {
		if opened.Session <= j.lastOpened || command.GetOpenSession() == nil {
			j.violate("session", "session %d is opened after session %d", opened.Session, j.lastOpened)
		}
		j.stats.Sessions++
		j.lastOpened = max(j.lastOpened, opened.Session)
		j.sessions[opened.Session] = &session{owner: ownerOf(command), used: j.clock.Now, answers: map[uint64]*answer{}}
	}
	if set := command.GetSetLimits(); set != nil && result.GetDone() != nil {
		j.setLimits(set)
	}
	return true
}

func (j *Judge) setLimits(set *logpb.SetLimits) {
	if set.SessionIdleNs != nil {
		for _, s := range j.sessions {
			s.over = j.idleFor(s, false)
		}
	}
	if set.KeyLifeNs != nil { // a key that was over when the entry began does not return with a longer life
		for name, key := range j.keys {
			if plus(key.made, j.entry.keyLife) <= j.clock.Now {
				delete(j.keys, name)
			}
		}
	}
	for _, change := range []struct {
		to    *int64
		bound *int64
	}{
		{set.MaxSessions, &j.limits.sessions},
		{set.SessionIdleNs, &j.limits.idle},
		{set.KeyLifeNs, &j.limits.keyLife},
		{set.MaxWaiters, &j.limits.waiters},
		{set.TaskLifeNs, &j.limits.taskLife},
		{set.MaxTasks, &j.limits.tasks},
		{set.MaxKeys, &j.limits.keys},
		{set.MaxLeases, &j.limits.leases},
		{set.MaxReports, &j.limits.reports},
		{set.MaxResultBytes, &j.limits.resultBytes},
		{set.OperatorsPpm, &j.limits.operators},
		{set.CallerMinPpm, &j.limits.least},
	} {
		if change.to != nil {
			*change.bound = *change.to
		}
	}
}

// idleFor says whether a session has not been used for its idle time.
func (j *Judge) idleFor(s *session, surely bool) bool {
	return j.clock.Now-s.used >= j.entry.idle || s.over && !surely
}

// sessionMayBeOver says whether a session is closed or may have expired.
func (j *Judge) sessionMayBeOver(id uint64) bool {
	s := j.sessions[id]
	return id != 0 && (s == nil || j.idleFor(s, false))
}

func reasonOf(result *logpb.Result) logpb.Reason { return result.GetFailure().GetReason() }

// closeSession judges the closing of a session. A second one finds it closed.
func (j *Judge) closeSession(command *logpb.Command, result *logpb.Result) bool {
	s := j.sessions[command.Session]
	switch {
	case result.GetDone() != nil && (s == nil || !j.mayUse(command, s.owner)):
		j.violate("session", "session %d is closed, and is not open to %+v", command.Session, ownerOf(command))
	case result.GetDone() != nil:
		delete(j.sessions, command.Session)
	case reasonOf(result) != logpb.Reason_REASON_UNKNOWN_SESSION:
		j.violate("session", "the close of session %d has the result %v", command.Session, result)
	case s != nil && j.mayUse(command, s.owner):
		j.gone(command.Session, s)
	}
	return false
}

// gone judges an answer that a session does not exist any more.
func (j *Judge) gone(id uint64, s *session) {
	j.stats.SessionsEnded++
	if !j.idleFor(s, false) {
		j.violate("session", "session %d is unknown at %d, it was used at %d", id, j.clock.Now, s.used)
	}
	delete(j.sessions, id)
}

// numbered judges a request of a session.
func (j *Judge) numbered(command *logpb.Command, result *logpb.Result) (fresh bool) {
	s := j.sessions[command.Session]
	reason := reasonOf(result)
	if s == nil || !j.mayUse(command, s.owner) {
		if reason != logpb.Reason_REASON_UNKNOWN_SESSION {
			j.violate("session", "request %d was carried out in session %d, which is not open to %+v",
				command.Seq, command.Session, ownerOf(command))
			return true
		}
		return false
	}
	if reason == logpb.Reason_REASON_UNKNOWN_SESSION {
		j.gone(command.Session, s)
		return false
	}
	if j.idleFor(s, true) && len(j.sessions) <= mostDue {
		j.violate("session", "session %d was last used at %d, and is used again at %d", command.Session, s.used, j.clock.Now)
	}
	s.used, s.over = j.clock.Now, false
	if command.Seq == 0 {
		if reason != logpb.Reason_REASON_INVALID {
			j.violate("once", "a request without a number was carried out in session %d", command.Session)
		}
		return false
	}
	s.acknowledge(command.AckedBelow)
	if known := s.answers[command.Seq]; known != nil {
		j.again(known, command, result)
		return false
	}
	switch {
	case command.Seq < s.acked:
		if reason != logpb.Reason_REASON_SEQ_TOO_OLD {
			j.violate("once", "request %d of session %d was carried out, all below %d were acknowledged", command.Seq, command.Session, s.acked)
		}
		return false
	case reason == logpb.Reason_REASON_SEQ_TOO_OLD, reason == logpb.Reason_REASON_SEQ_REUSED:
		j.violate("false-refusal", "%v is not true of request %d of session %d", reason, command.Seq, command.Session)
		return false
	case reason == logpb.Reason_REASON_TOO_MANY_IN_FLIGHT, notKept(command, result):
		j.stats.Unjudged++
		return false
	}
	s.answers[command.Seq] = j.newAnswer(command, result)
	return true
}

// keyed judges a request with an idempotency key.
func (j *Judge) keyed(command *logpb.Command, result *logpb.Result) (fresh bool) {
	if known := j.keyOf(command); known != nil {
		j.again(known, command, result)
		return false
	}
	if notKept(command, result) {
		j.stats.Unjudged++
		return false
	}
	switch reasonOf(result) {
	case logpb.Reason_REASON_SEQ_REUSED:
		j.violate("false-refusal", "the key %q was not used before", command.IdempotencyKey)
		return false
	case logpb.Reason_REASON_SESSIONS_FULL:
		j.stats.Unjudged++
		return false
	default:
	}
	known := j.newAnswer(command, result)
	known.made, known.owner = j.clock.Now, ownerOf(command)
	j.keys[j.keyName(command)] = known
	return true
}

// keyName returns the name of a command's idempotency key in the books: each caller has its own keys; before levelOwnSessions, each reach.
func (j *Judge) keyName(command *logpb.Command) string {
	of := ownerOf(command)
	if j.level < levelOwnSessions || of.by == "" {
		of.caller = ""
	} else if of.caller != "" {
		of.by = ""
	}
	return of.by + "\x00" + of.caller + "\x00" + command.IdempotencyKey
}

// keyOf returns the answer to a command's idempotency key. Its caller may have used the key before levelOwnSessions.
func (j *Judge) keyOf(command *logpb.Command) *answer {
	for _, name := range []string{j.keyName(command), command.By + "\x00\x00" + command.IdempotencyKey} {
		known := j.keys[name]
		if known != nil && plus(known.made, j.limits.keyLife) > j.clock.Now && j.mayUse(command, known.owner) {
			return known
		}
	}
	return nil
}

// notKept says whether a caller had no room left for the answer itself: then the command was not applied.
func notKept(command *logpb.Command, result *logpb.Result) bool {
	budget := result.GetFailure().GetBudget()
	return reasonOf(result) == logpb.Reason_REASON_CALLER_BUDGET && command.Caller != "" && (budget == "result_bytes" || budget == "keys")
}

// atBudget judges whether a command's caller may have used up its part of a shared budget, or all callers together theirs. A caller below
// its guaranteed part has not, and all together have no more than the budget.
func (j *Judge) atBudget(command *logpb.Command, reason logpb.Reason, budget string) (isTrue, judged bool) {
	if command.Caller == "" && reason == logpb.Reason_REASON_CALLER_BUDGET {
		return false, true
	}
	var all, count int64
	weigh := func() int64 { return count }
	switch budget {
	case "sessions":
		all, count = j.limits.sessions, int64(len(j.sessions))
	case "waiters":
		all, count, weigh = min(j.limits.waiters, j.entry.waiters), int64(len(j.waiting)), j.weightOfWaiters
	case "leases":
		all, count = j.limits.leases, int64(len(j.leases)+len(j.waiting))
		weigh = func() int64 { return j.weightOfLeases() + j.weightOfWaiters() }
	default:
		return false, false
	}
	bound := max(1, all/1_000_000*j.limits.least+all%1_000_000*j.limits.least/1_000_000)
	if reason == logpb.Reason_REASON_BUDGET_FULL {
		bound = j.open(all)
	}
	return weighAtLeast(bound, count, weigh), true
}

// weighAtLeast says whether count objects, each with a weight of at least one, weigh at least bound together. It weighs them only if their
// number does not decide: a caller at its part is refused again and again.
func weighAtLeast(bound, count int64, weigh func() int64) bool {
	return count >= bound || weigh() >= bound
}

// weight is the number of leases as which one with a number of shares counts, ancestors included: four shares are one.
func weight(shares int) int64 { return int64(shares+3) / 4 }

func (j *Judge) weightOfLeases() (all int64) {
	for _, l := range j.leases {
		shares := 0
		for _, it := range l.items {
			shares += len(it.shares)
		}
		all += weight(shares)
	}
	return all
}

func (j *Judge) weightOfWaiters() (all int64) {
	for _, w := range j.waiting {
		shares := 0
		for _, item := range j.asked(w.ask) {
			if j.members(item.Quota) != nil {
				shares += poolShares
				continue
			}
			for q := j.quotas[item.Quota]; q != nil; q = q.parent {
				shares++
			}
		}
		all += weight(shares)
	}
	return all
}

// open returns the part of a shared budget that is not reserved for operators, at least.
func (j *Judge) open(all int64) int64 {
	return all - all/1_000_000*j.limits.operators - all%1_000_000*j.limits.operators/1_000_000
}

func (j *Judge) newAnswer(command *logpb.Command, result *logpb.Result) *answer {
	return &answer{
		asked: j.digest(&logpb.Command{Kind: command.Kind}), answered: j.digest(result), ticket: result.GetWaiting().GetTicket(),
		index: j.entry.index,
	}
}

// answerOf returns the answer to a command's identity.
func (j *Judge) answerOf(command *logpb.Command) *answer {
	switch {
	case command.Session != 0 && j.sessions[command.Session] != nil:
		return j.sessions[command.Session].answers[command.Seq]
	case command.Session == 0 && command.IdempotencyKey != "":
		return j.keyOf(command)
	}
	return nil
}

// again judges a repeated request: the answer must be the same, and nothing happens. If the wait ended with this very entry, either answer
// is right.
func (j *Judge) again(known *answer, command *logpb.Command, result *logpb.Result) {
	j.stats.Repeated++
	if known.asked != j.digest(&logpb.Command{Kind: command.Kind}) {
		if reasonOf(result) != logpb.Reason_REASON_SEQ_REUSED {
			j.violate("once", "request %d of session %d, key %q, of entry %d differs from the first one, and has the result %v",
				command.Seq, command.Session, command.IdempotencyKey, known.index, result)
		}
		return
	}
	answered := j.digest(result)
	final, ended := j.entry.finals[known.ticket]
	if answered != known.answered && (!ended || known.ticket == 0 || answered != final) {
		j.violate("once", "request %d of session %d, key %q, of entry %d is answered otherwise than then: %v",
			command.Seq, command.Session, command.IdempotencyKey, known.index, result)
	}
}

// acknowledge forgets the answers below a client's mark.
func (s *session) acknowledge(below uint64) {
	if below <= s.acked {
		return
	}
	if below-s.acked <= uint64(len(s.answers)) {
		for seq := s.acked; seq < below; seq++ {
			delete(s.answers, seq)
		}
	} else {
		for seq := range s.answers {
			if seq < below {
				delete(s.answers, seq)
			}
		}
	}
	s.acked = below
}
