package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestDedup: which outcomes of requests are stored, and for how long (design 5); session_test.go has more.
func TestDedup(t *testing.T) {
	r, s := rateOf("r", 10, minute), slotsOf("s", 1)
	ofX := func() *logpb.Command { return asks("a", 0, itemOf("x", 1)) }
	tell(t, []story{
		{"a failure is an outcome as well", []*logpb.Quota{r}, []line{
			{0, opens(), "session 1"},
			{0, numbered(1, 1, 0, ofX()), "! UNKNOWN_QUOTA"},
			{0, applyQuotas(rateOf("x", 10, minute)), "applied"},
			{0, numbered(1, 1, 0, ofX()), "! UNKNOWN_QUOTA"},
			{0, numbered(1, 2, 0, ofX()), "lease 1: x=1 until 5m0s"},
		}},
		{"with a key too", []*logpb.Quota{r}, []line{
			{0, keyedBy("k", ofX()), "! UNKNOWN_QUOTA"},
			{0, applyQuotas(rateOf("x", 10, minute)), "applied"},
			{0, keyedBy("k", ofX()), "! UNKNOWN_QUOTA"},
			{0, keyedBy("l", ofX()), "lease 1: x=1 until 5m0s"},
		}},
		{"a request is the same though its session moved on", []*logpb.Quota{r}, []line{
			{0, opens(), "session 1"},
			{0, numbered(1, 7, 0, asks("a", 0, itemOf("r", 6))), "lease 1: r=6 until 5m0s"},
			{0, numbered(1, 8, 5, releases(1)), "back r=6; ended"},
			{minute, numbered(1, 7, 6, asks("a", 0, itemOf("r", 6))), "lease 1: r=6 until 5m0s"},
			{0, numbered(1, 8, 7, releases(1)), "back r=6; ended"},
		}},
		{"an acknowledgement does not fall", []*logpb.Quota{r}, []line{
			{0, opens(), "session 1"},
			{0, numbered(1, 5, 5, asks("a", 0, itemOf("r", 1))), "lease 1: r=1 until 5m0s"},
			{0, numbered(1, 4, 1, asks("a", 0, itemOf("r", 1))), "! SEQ_TOO_OLD"},
		}},
		{"sessions have numbers of their own", []*logpb.Quota{r}, []line{
			{0, opens(), "session 1"},
			{0, opens(), "session 2"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), "lease 1: r=1 until 5m0s"},
			{0, numbered(2, 1, 0, asks("a", 0, itemOf("r", 2))), "lease 2: r=2 until 5m0s"},
			{0, numbered(1, 1, 0, asks("a", 0, itemOf("r", 1))), "lease 1: r=1 until 5m0s"},
		}},
		{"how a wait ended: its time was up", []*logpb.Quota{s}, []line{
			{0, opens(), "session 1"},
			{0, asks("b", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, numbered(1, 1, 0, waits("a", 0, 10*second, itemOf("s", 1))), "waits as 1 until 10s"},
			{10 * second, numbered(1, 1, 0, waits("a", 0, 10*second, itemOf("s", 1))), "WAIT_EXPIRED s again at 15s"},
			{0, releases(1), "back s=1; ended"},
			{0, numbered(1, 1, 0, waits("a", 0, 10*second, itemOf("s", 1))), "WAIT_EXPIRED s again at 15s"},
		}},
		{"it was withdrawn", []*logpb.Quota{s}, []line{
			{0, opens(), "session 1"},
			{0, asks("b", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, numbered(1, 1, 0, waits("a", 0, 10*second, itemOf("s", 1))), "waits as 1 until 10s"},
			{0, numbered(1, 2, 0, withdraw(1)), "done"},
			{0, numbered(1, 2, 0, withdraw(1)), "done"},
			{0, numbered(1, 1, 0, waits("a", 0, 10*second, itemOf("s", 1))), "WITHDRAWN s again at 5s"},
		}},
		{"its quota cannot serve it any more", []*logpb.Quota{slotsOf("z", 2)}, []line{
			{0, opens(), "session 1"},
			{0, asks("b", 0, itemOf("z", 1)), "lease 1: z=1 until 5m0s"},
			{0, numbered(1, 1, 0, waits("a", 0, minute, itemOf("z", 2))), "waits as 1 until 1m0s"},
			{0, numbered(1, 2, 0, waits("a", 0, minute, itemOf("z", 2))), "waits as 3 until 1m0s"}, // its judgment in the queue took one ticket
			{0, applyQuotas(slotsOf("z", 1)), "applied"},
			{0, numbered(1, 1, 0, waits("a", 0, minute, itemOf("z", 2))), "NEVER_FITS z"},
			{0, numbered(1, 2, 0, waits("a", 0, minute, itemOf("z", 2))), "NEVER_FITS z"},
		}},
		{"its quota is suspended", []*logpb.Quota{s}, []line{
			{0, asks("b", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, keyedBy("k", waits("a", 0, minute, itemOf("s", 1))), "waits as 1 until 1m0s"},
			{0, applyQuotas(slotsOf("s", 0)), "applied"},
			{0, keyedBy("k", waits("a", 0, minute, itemOf("s", 1))), "SUSPENDED s"},
		}},
		{"it was granted, to a key", []*logpb.Quota{s}, []line{
			{0, asks("b", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, keyedBy("k", waits("a", 0, minute, itemOf("s", 1))), "waits as 1 until 1m0s"},
			{0, keyedBy("k", waits("a", 0, minute, itemOf("s", 1))), "waits as 1 until 1m0s"},
			{second, releases(1), "back s=1; ended"},
			{0, keyedBy("k", waits("a", 0, minute, itemOf("s", 1))), "lease 2: s=1 until 6s"},
			{20 * second, keyedBy("k", waits("a", 0, minute, itemOf("s", 1))), "lease 2: s=1 until 6s"}, // its lease has ended long ago
		}},
	})
}

// TestSession_InUseStaysOpen: the hour counts from its last request.
func TestSession_InUseStaysOpen(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1000, minute))
	w.do(opens())
	w.do(opens())
	for seq := uint64(1); seq <= 8; seq++ {
		w.now += 50 * minute
		if r := w.do(numbered(1, seq, seq, asks("a", 0, itemOf("r", 1)))); r.GetGranted() == nil {
			t.Fatalf("request %d: %v", seq, r)
		}
	}
	w.fails(numbered(2, 1, 0, asks("a", 0, itemOf("r", 1))), logpb.Reason_REASON_UNKNOWN_SESSION)
	w.now += hour
	w.fails(numbered(1, 8, 0, asks("a", 0, itemOf("r", 1))), logpb.Reason_REASON_UNKNOWN_SESSION)
}

// TestSession_BoundsRequestsInFlight: 16,384 in a session, and acknowledged ones make room at once.
func TestSession_BoundsRequestsInFlight(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1000, minute))
	w.do(opens())
	commands := make([]*logpb.Command, dedup.MaxInFlight+1)
	for i := range commands {
		commands[i] = numbered(1, uint64(i+1), 0, withdraw(7))
	}
	for i, r := range w.apply(commands...) {
		want := logpb.Reason_REASON_UNKNOWN_TICKET
		if i == dedup.MaxInFlight {
			want = logpb.Reason_REASON_TOO_MANY_IN_FLIGHT
		}
		if r.GetFailure().GetReason() != want {
			t.Fatalf("request %d: %v", i+1, r)
		}
	}
	w.fails(numbered(1, 99_999, 1, asks("a", 0, itemOf("r", 1))), logpb.Reason_REASON_TOO_MANY_IN_FLIGHT)
	if r := w.do(numbered(1, 3, 0, withdraw(7))); r.GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_TICKET {
		t.Fatalf("a known request, though the session is full: %v", r)
	}
	if r := w.do(numbered(1, 99_999, 2, asks("a", 0, itemOf("r", 1)))); r.GetGranted() == nil {
		t.Fatalf("after one was acknowledged: %v", r)
	}
}

// TestResults_ForgottenFreeTheirBytes: acknowledged results, closed sessions and expired keys leave no bytes.
func TestResults_ForgottenFreeTheirBytes(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1000, minute))
	w.do(limitsTo(func(l *logpb.SetLimits) { l.KeyLifeNs = new(10 * minute) }))
	bytes := func() int64 { return w.m.State().Counts().ResultBytes }
	w.do(opens())
	one := func(seq, acked uint64) { w.do(numbered(1, seq, acked, asks("a", 0, itemOf("r", 1)))) }
	one(1, 0)
	alone := bytes()
	for seq := uint64(2); seq <= 50; seq++ {
		one(seq, 0)
	}
	if bytes() < 49*alone {
		t.Fatalf("50 results take %d bytes, one takes %d", bytes(), alone)
	}
	one(51, 51)
	if bytes() > 2*alone {
		t.Fatalf("one result takes %d bytes", bytes())
	}
	w.do(&logpb.Command{Session: 1, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}})
	if bytes() != 0 {
		t.Fatalf("%d bytes are left of a closed session", bytes())
	}
	w.do(keyedBy("k", asks("a", 0, itemOf("r", 1))))
	w.sleep(10*minute - 1)
	if bytes() == 0 {
		t.Fatal("a key was forgotten too early")
	}
	w.sleep(1)
	if bytes() != 0 {
		t.Fatalf("%d bytes are left of a key", bytes())
	}
}
