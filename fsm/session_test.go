package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestSessions: a repeated request gets the same answer, and is carried out once (design 5).
func TestSessions(t *testing.T) {
	r := rateOf("r", 10, minute)
	open := func() *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "a"}}}
	}
	shut := func(session uint64) *logpb.Command {
		return &logpb.Command{Session: session, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}}
	}
	tell(t, []story{
		{"a grant is repeated, with its deadline", []*logpb.Quota{r}, []line{
			{0, open(), "session 1"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 6))), "lease 1: r=6 until 5m0s"},
			{minute, numbered(1, 1, 0, asks("a", 0, itemOf("r", 6))), "lease 1: r=6 until 5m0s"},
			{0, numbered(1, 2, 0, asks("a", 0, itemOf("r", 6))), "EXHAUSTED r again at 1m5s"},
		}},
		{"and so is a refusal, also when there would be room now", []*logpb.Quota{r}, []line{
			{0, open(), "session 1"},
			{0, asks("b", minute, itemOf("r", 10)), "lease 1: r=10 until 1m0s"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 6))), "EXHAUSTED r again at 5s"},
			{2 * minute, numbered(1, 1, 0, asks("a", 0, itemOf("r", 6))), "EXHAUSTED r again at 5s"},
			{0, numbered(1, 2, 0, asks("a", 0, itemOf("r", 6))), "lease 2: r=6 until 7m0s"},
		}},
		{"a number is for one request", []*logpb.Quota{r}, []line{
			{0, open(), "session 1"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 6))), "lease 1: r=6 until 5m0s"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 5))), "! SEQ_REUSED"},
			{0, numbered(1, 1, 0, releases(1)), "! SEQ_REUSED"},
		}},
		{"numbers come in any order", []*logpb.Quota{r}, []line{
			{0, open(), "session 1"},
			{0, numbered(1, 5, 0, asks("a", 0, itemOf("r", 1))), "lease 1: r=1 until 5m0s"},
			{0, numbered(1, 2, 0, asks("a", 0, itemOf("r", 2))), "lease 2: r=2 until 5m0s"},
			{0, numbered(1, 5, 0, asks("a", 0, itemOf("r", 1))), "lease 1: r=1 until 5m0s"},
		}},
		{"what was acknowledged is forgotten, and never carried out again", []*logpb.Quota{r}, []line{
			{0, open(), "session 1"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), "lease 1: r=1 until 5m0s"},
			{0, numbered(1, 2, 2, asks("a", 0, itemOf("r", 2))), "lease 2: r=2 until 5m0s"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), "! SEQ_TOO_OLD"},
			{0, numbered(1, 2, 0, asks("a", 0, itemOf("r", 2))), "lease 2: r=2 until 5m0s"},
		}},
		{"an unknown or closed session is an error, never a fresh execution", []*logpb.Quota{r}, []line{
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), "! UNKNOWN_SESSION"},
			{0, open(), "session 1"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), "lease 1: r=1 until 5m0s"},
			{0, shut(1), "done"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), "! UNKNOWN_SESSION"},
			{0, shut(1), "! UNKNOWN_SESSION"},
			{0, open(), "session 2"},
		}},
		{"nobody else's reach uses it", []*logpb.Quota{r}, []line{
			{0, with(open(), func(c *logpb.Command) { c.By = "a*" }), "session 1"},
			{0, with(numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), func(c *logpb.Command) { c.By = "*" }), "! UNKNOWN_SESSION"},
			{0, with(shut(1), func(c *logpb.Command) { c.By = "*" }), "! UNKNOWN_SESSION"},
			{0, with(numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), func(c *logpb.Command) { c.By = "a*" }), "lease 1: r=1 until 5m0s"},
		}},
		{"a waiter's final result is found under its number", []*logpb.Quota{slotsOf("s", 1)}, []line{
			{0, open(), "session 1"},
			{0, asks("b", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, numbered(1, 1, 0, waits("a", 0, minute, itemOf("s", 1))), "waits as 1 until 1m0s"},
			{0, numbered(1, 1, 0, waits("a", 0, minute, itemOf("s", 1))), "waits as 1 until 1m0s"},
			{second, releases(1), "back s=1; ended"},
			{0, numbered(1, 1, 0, waits("a", 0, minute, itemOf("s", 1))), "lease 2: s=1 until 6s"},
		}},
		{"a key without a session does the same for a day", []*logpb.Quota{r}, []line{
			{0, keyedBy("k", asks("a", 0, itemOf("r", 6))), "lease 1: r=6 until 5m0s"},
			{hour, keyedBy("k", asks("a", 0, itemOf("r", 6))), "lease 1: r=6 until 5m0s"},
			{0, keyedBy("k", asks("a", 0, itemOf("r", 5))), "! SEQ_REUSED"},
			{24 * hour, keyedBy("k", asks("a", 0, itemOf("r", 6))), "lease 2: r=6 until 25h5m0s"},
		}},
		{"keys of different reaches do not meet", []*logpb.Quota{r}, []line{
			{0, with(keyedBy("k", asks("a", 0, itemOf("r", 1))), func(c *logpb.Command) { c.By = "a*" }), "lease 1: r=1 until 5m0s"},
			{0, with(keyedBy("k", asks("b", 0, itemOf("r", 1))), func(c *logpb.Command) { c.By = "b*" }), "lease 2: r=1 until 5m0s"},
		}},
	})
}

// TestSessions_AreBounded: a full table refuses new sessions and evicts no live one; idle ones expire and make room
// (bottleneck 115: 17,000 clients that never said goodbye).
func TestSessions_AreBounded(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1<<30, minute))
	three, bytes, idle := int64(3), int64(8000), hour
	w.do(&logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{
		MaxSessions: &three, MaxResultBytes: &bytes, SessionIdleNs: &idle,
	}}})
	open := &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{}}}
	for range 3 {
		if w.do(open).GetSessionOpened() == nil {
			t.Fatal("not opened")
		}
	}
	w.fails(open, logpb.Reason_REASON_SESSIONS_FULL)
	seq := uint64(0)
	for {
		seq++
		r := w.do(numbered(1, seq, 0, asks("a", 0, itemOf("r", 1))))
		if r.GetFailure() != nil {
			if r.GetFailure().Reason != logpb.Reason_REASON_TOO_MANY_IN_FLIGHT || seq < 5 {
				t.Fatalf("request %d: %v", seq, r)
			}
			break
		}
	}
	if r := w.do(numbered(1, seq, seq-1, asks("a", 0, itemOf("r", 1)))); r.GetGranted() == nil {
		t.Fatalf("after an acknowledgement: %v", r)
	}
	w.sleep(50 * minute)
	w.do(numbered(2, 1, 0, asks("a", 0, itemOf("r", 1))))
	w.sleep(20 * minute) // sessions 1 and 3 were idle for over an hour, as recorded
	if left := w.m.State().Counts().Sessions; left != 1 {
		t.Fatalf("%d sessions are left", left)
	}
	if w.do(open).GetSessionOpened() == nil {
		t.Fatal("no room")
	}
}

// TestSession_LivesItsFullTime: a session lives its full time after the last use, even a use just before the
// recorded time changes.
func TestSession_LivesItsFullTime(t *testing.T) {
	w := newWorld(t)
	w.now = minute
	w.quotas(rateOf("r", 1000, minute))
	session := w.do(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "a"}}}).GetSessionOpened().Session
	numbered := func(seq uint64) *logpb.Command {
		c := asks("a", 0, itemOf("r", 1))
		c.Session, c.Seq = session, seq
		return c
	}
	w.now += hour / 16 // not recorded: the last record is not old enough
	if r := w.do(numbered(1)); r.GetGranted() == nil {
		t.Fatalf("%v", r)
	}
	w.now += hour - 1
	if r := w.do(numbered(2)); r.GetGranted() == nil {
		t.Fatalf("an hour after its last use, less a nanosecond: %v", r)
	}
	w.now += hour
	if r := w.do(numbered(3)); r.GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_SESSION {
		t.Fatalf("long after: %v", r)
	}
}
