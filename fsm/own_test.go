package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// ofToken makes a command that of a token with a reach.
func ofToken(id, reach string, command *logpb.Command) *logpb.Command {
	command = chargedTo("token:"+id, command)
	command.By = reach
	return command
}

// closesSession returns a command that closes a session.
func closesSession(session uint64) *logpb.Command {
	return &logpb.Command{Session: session, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}}
}

// ownWorld is a state at a feature level, with a large quota and one with a single slot.
func ownWorld(t *testing.T, level uint32) *world {
	w := newWorld(t)
	w.version = level
	w.quotas(rateOf("r", 1<<30, minute), slotsOf("s", 1))
	return w
}

// lease returns the lease granted by a command, on a restored replica.
func (w *world) lease(command *logpb.Command) uint64 {
	w.t.Helper()
	w.reborn()
	result := w.do(command)
	if result.GetGranted() == nil {
		w.t.Fatalf("not granted: %v", result)
	}
	return result.GetGranted().Lease
}

// TestSessions_AreTheirCallers: a token cannot use, acknowledge in or close another token's session, whatever their
// reach, and gets the answer for an unknown session.
func TestSessions_AreTheirCallers(t *testing.T) {
	w := ownWorld(t, EntryVersion)
	mine := w.do(ofToken("mine", "*", opens())).GetSessionOpened().Session
	first := w.lease(ofToken("mine", "*", numbered(mine, 1, 0, asks("a", 0, itemOf("r", 1)))))
	theirs := ofToken("other", "*", numbered(mine, 1<<53-1, 1<<53-1, asks("liar", 0, itemOf("r", 1))))
	failure := w.fails(theirs, logpb.Reason_REASON_UNKNOWN_SESSION)
	theirs.Session += 77
	never := w.fails(theirs, logpb.Reason_REASON_UNKNOWN_SESSION)
	theirs.Session -= 77
	if failure.Hint != never.Hint || failure.Message != "there is no session 1" || never.Message != "there is no session 78" {
		t.Errorf("another's session is distinguished from one that never was: %v, %v", failure, never)
	}
	w.fails(ofToken("other", "*", closesSession(mine)), logpb.Reason_REASON_UNKNOWN_SESSION)
	if again := w.lease(ofToken("mine", "*", numbered(mine, 1, 0, asks("a", 0, itemOf("r", 1))))); again != first {
		t.Errorf("lease %d, then %d", first, again)
	}
	w.lease(ofToken("mine", "*", numbered(mine, 2, 1, asks("a", 0, itemOf("r", 1)))))
	if w.do(ofToken("mine", "*", closesSession(mine))).GetDone() == nil {
		t.Error("its opener cannot close it")
	}
}

// TestSessions_OutliveTheReachOfTheirToken: a token with a changed reach or secret continues its session and its keys.
func TestSessions_OutliveTheReachOfTheirToken(t *testing.T) {
	w := ownWorld(t, EntryVersion)
	session := w.do(ofToken("mine", "a*", opens())).GetSessionOpened().Session
	numberedOne, keyed := numbered(session, 1, 0, asks("a", 0, itemOf("r", 1))), keyedBy("k", asks("a", 0, itemOf("r", 1)))
	first, second := w.lease(ofToken("mine", "a*", numberedOne)), w.lease(ofToken("mine", "a*", keyed))
	if again := w.lease(ofToken("mine", "*", numberedOne)); again != first {
		t.Errorf("in its session: lease %d, then %d", first, again)
	}
	if again := w.lease(ofToken("mine", "*", keyed)); again != second {
		t.Errorf("under its key: lease %d, then %d", second, again)
	}
}

// TestKeys_AreTheirCallers: the same idempotency key of two tokens of the same reach is two keys.
func TestKeys_AreTheirCallers(t *testing.T) {
	w := ownWorld(t, EntryVersion)
	w.do(ofToken("other", "*", keyedBy("job", releases(1<<40))))
	mine := ofToken("mine", "*", keyedBy("job", asks("a", 0, itemOf("r", 1))))
	theirs := ofToken("other", "*", keyedBy("job", releases(1<<40)))
	first := w.lease(mine)
	if again := w.lease(mine); again != first {
		t.Errorf("lease %d, then %d", first, again)
	}
	w.fails(theirs, logpb.Reason_REASON_NEVER_ISSUED)
	w.fails(ofToken("other", "*", keyedBy("job", asks("a", 0, itemOf("r", 1)))), logpb.Reason_REASON_SEQ_REUSED)
	waits := ofToken("other", "*", keyedBy("queue", waits("b", 0, minute, itemOf("s", 1))))
	w.lease(ofToken("mine", "*", keyedBy("queue", asks("a", 0, itemOf("s", 1)))))
	if w.do(waits).GetWaiting() == nil {
		t.Fatal("it does not wait")
	}
	w.do(ofToken("mine", "*", releases(first+1)))
	if w.do(waits).GetGranted() == nil {
		t.Error("the final result of a wait is not found under its key")
	}
}

// TestSessions_WithoutTokensAreEverybodys: a caller without a token continues from another address, as through another
// node.
func TestSessions_WithoutTokensAreEverybodys(t *testing.T) {
	w := ownWorld(t, EntryVersion)
	session := w.do(chargedTo("address:127.0.0.1", opens())).GetSessionOpened().Session
	for _, command := range []*logpb.Command{
		numbered(session, 1, 0, asks("a", 0, itemOf("r", 1))), keyedBy("k", asks("a", 0, itemOf("r", 1))),
	} {
		first := w.lease(chargedTo("address:127.0.0.1", command))
		if again := w.lease(chargedTo("address:192.0.2.1", command)); again != first {
			t.Errorf("lease %d, then %d", first, again)
		}
		with := ofToken("mine", "*", command)
		if command.Session != 0 {
			w.fails(with, logpb.Reason_REASON_UNKNOWN_SESSION)
		} else if w.lease(with) == first {
			t.Error("a token was given what a caller without one was")
		}
	}
}

// TestSessions_OfEarlierLevelsAreTheirCallers: before level 9 callers of one reach share sessions and keys. Once the
// level has risen, these belong to the caller that made them, and are not carried out a second time.
func TestSessions_OfEarlierLevelsAreTheirCallers(t *testing.T) {
	for level := uint32(OldestEntryVersion); level < levels.OwnSessions; level++ {
		w := ownWorld(t, level)
		session := w.do(ofToken("mine", "*", opens())).GetSessionOpened().Session
		numberedOne, keyed := numbered(session, 1, 0, asks("a", 0, itemOf("r", 1))), keyedBy("k", asks("a", 0, itemOf("r", 1)))
		queued := keyedBy("q", waits("a", 0, 5*minute, itemOf("s", 1)))
		first, second := w.lease(ofToken("mine", "*", numberedOne)), w.lease(ofToken("mine", "*", keyed))
		if w.lease(ofToken("other", "*", numberedOne)) != first || w.lease(ofToken("other", "*", keyed)) != second {
			t.Errorf("level %d: it has another meaning", level)
		}
		slot := w.lease(asks("x", 0, itemOf("s", 1)))
		if w.do(ofToken("mine", "*", queued)).GetWaiting() == nil {
			t.Fatal("it does not wait")
		}
		w.version = levels.OwnSessions
		w.fails(ofToken("other", "*", numberedOne), logpb.Reason_REASON_UNKNOWN_SESSION)
		w.fails(ofToken("other", "*", closesSession(session)), logpb.Reason_REASON_UNKNOWN_SESSION)
		if w.lease(ofToken("other", "*", keyed)) == second {
			t.Errorf("level %d: another caller is given what a key was answered", level)
		}
		if w.lease(ofToken("mine", "*", numberedOne)) != first || w.lease(ofToken("mine", "*", keyed)) != second {
			t.Errorf("level %d: a request is carried out a second time", level)
		}
		w.fails(ofToken("mine", "*", keyedBy("k", releases(1))), logpb.Reason_REASON_SEQ_REUSED)
		w.do(releases(slot))
		if w.do(ofToken("mine", "*", queued)).GetGranted() == nil {
			t.Errorf("level %d: the final result of a wait is not found under its key", level)
		}
		w.now += day + 1_000*millisecond
		if again := w.lease(ofToken("mine", "*", keyed)); again == second {
			t.Errorf("level %d: a key outlives its life", level)
		}
	}
}

// TestSessions_WithoutAnAccount: sessions from before callers had accounts, or from when there were too many, are
// identified by reach.
func TestSessions_WithoutAnAccount(t *testing.T) {
	w := ownWorld(t, EntryVersion)
	session := w.do(by("a*", opens())).GetSessionOpened().Session
	w.fails(ofToken("mine", "*", numbered(session, 1, 0, asks("a", 0, itemOf("r", 1)))), logpb.Reason_REASON_UNKNOWN_SESSION)
	w.lease(ofToken("mine", "a*", numbered(session, 1, 0, asks("a", 0, itemOf("r", 1)))))
}
