package dedup

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestCost_OfGrantIsNearItsEncodedSize: the cost of a stored grant is between half and twice its encoded size.
func TestCost_OfGrantIsNearItsEncodedSize(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		number := rapid.Int64Range(1, 1<<62)
		items := func(label string) (items []*logpb.GrantedItem) {
			for range rapid.IntRange(0, 64).Draw(rt, label) {
				items = append(items, &logpb.GrantedItem{
					Quota: rapid.StringMatching("[a-z/]{1,200}").Draw(rt, "quota"), Amount: number.Draw(rt, "amount"), UntilNs: number.Draw(rt, "until"),
				})
			}
			return items
		}
		granted := &logpb.Granted{
			Lease: uint64(number.Draw(rt, "lease")), Fence: uint64(number.Draw(rt, "fence")), Items: items("items"),
			DeadlineNs: number.Draw(rt, "deadline"), AskedTtlNs: number.Draw(rt, "ttl"),
		}
		if rapid.Bool().Draw(rt, "consumed") {
			granted.Consumed = &logpb.Consumed{
				Op: 1, SpendByNs: number.Draw(rt, "spend by"), TransitNs: number.Draw(rt, "transit"), Items: items("consumed items"),
			}
		}
		result := &logpb.Result{Kind: &logpb.Result_Granted{Granted: granted}}
		encoded := int64(proto.Size(result)) + resultOverhead
		if cost := sizeOf(result); cost < encoded/2 || cost > 2*encoded {
			rt.Fatalf("%d bytes cost %d: %v", encoded, cost, result)
		}
	})
}

// TestApplyOnce_ARepeatIsNotCarriedOut: a repeat gets the answer of the request, by its number or its key; another
// request is refused there.
func TestApplyOnce_ARepeatIsNotCarriedOut(t *testing.T) {
	m := newMachine(t)
	m.waits = true // each answer has its own ticket
	session := m.open()
	for name, command := range map[string]func(about uint64) *logpb.Command{
		"a number": func(about uint64) *logpb.Command { return numbered(session, 1, 0, about) },
		"a key":    func(about uint64) *logpb.Command { return underKey("k", about) },
	} {
		before := m.applied
		first := m.do(command(1))
		if again := m.do(command(1)); !proto.Equal(first, again) || m.applied != before+1 {
			t.Errorf("%s: %v, then %v; carried out %d times", name, first, again, m.applied-before)
		}
		if reason := m.do(command(2)).GetFailure().GetReason(); reason != logpb.Reason_REASON_SEQ_REUSED || m.applied != before+1 {
			t.Errorf("%s: another request: %v, carried out %d times", name, reason, m.applied-before)
		}
	}
	m.do(numbered(session, 2, 2, 1))
	if reason := m.do(numbered(session, 1, 0, 1)).GetFailure().GetReason(); reason != logpb.Reason_REASON_SEQ_TOO_OLD {
		t.Errorf("one that was acknowledged: %v", reason)
	}
	m.moment.Now += m.book.Limits.KeyLife
	before := m.applied
	if m.do(underKey("k", 2)); m.applied != before+1 {
		t.Error("a key is remembered beyond its life")
	}
}

// TestApplyOnce_AKeyIsChargedToItsCommandsPayer: even if the payer is known only after the command is carried out.
func TestApplyOnce_AKeyIsChargedToItsCommandsPayer(t *testing.T) {
	m := newMachine(t)
	m.namesPayer = "named"
	m.do(underKey("k", 1))
	m.table.EachCharge(func(number uint64, b accounts.Budget, _ int64) {
		if name := m.book.Get(number).Name; name != "named" {
			t.Errorf("%s are charged to %q", accounts.Names[b], name)
		}
	})
}

// TestClose_FreesInSteps: the session's waiters are withdrawn, unless their client has acknowledged them, and no step
// frees more than an entry may.
func TestClose_FreesInSteps(t *testing.T) {
	m := newMachine(t)
	session, other := m.open(), m.open()
	m.waits, m.left = true, 0
	for seq := uint64(1); seq <= 20; seq++ {
		m.do(numbered(session, seq, 0, 1))
	}
	m.do(numbered(session, 21, 12, 1)) // leaves three of the eleven to Free, after Close
	kept := m.do(numbered(other, 1, 0, 1))
	m.do(closes(session))
	if reason := m.do(numbered(session, 21, 12, 1)).GetFailure().GetReason(); reason != logpb.Reason_REASON_UNKNOWN_SESSION {
		t.Errorf("a repeat in a session that is closed: %v", reason)
	}
	if m.table.Abandoned(RequestID{Session: session, Seq: 11}) || !m.table.Abandoned(RequestID{Session: session, Seq: 21}) ||
		m.table.Abandoned(RequestID{Session: other, Seq: 1}) {
		t.Error("what was acknowledged, or belongs to a different session, is taken for abandoned, or what was neither is not")
	}
	steps := 0
	for ; m.table.Unfinished(); steps++ {
		had := m.table.Counts().Results
		m.left = 3
		m.table.Free(m)
		if m.verify(); had-m.table.Counts().Results > 3 || steps > 20 {
			t.Fatalf("step %d: of %d results %d are left", steps, had, m.table.Counts().Results)
		}
	}
	var want []uint64
	for ticket := uint64(12); ticket <= 21; ticket++ {
		want = append(want, ticket)
	}
	if !slices.Equal(m.withdrawn, want) || steps < 4 {
		t.Errorf("in %d steps tickets %v were withdrawn, want %v", steps, m.withdrawn, want)
	}
	m.do(closes(other))
	if left := m.table.Counts(); left != (Counts{}) || m.book.UsedOf(accounts.Results, 0) != 0 || kept.GetWaiting() == nil {
		t.Errorf("%+v are left, %d bytes charged", left, m.book.UsedOf(accounts.Results, 0))
	}
}

// TestComplete_IsForTheRequestThatWaited: a repeat gets the final result, unless its client has acknowledged it, or its
// key is now another ticket's.
func TestComplete_IsForTheRequestThatWaited(t *testing.T) {
	m := newMachine(t)
	m.waits = true
	session := m.open()
	final := effect.Fail(logpb.Reason_REASON_WITHDRAWN, "it is over, and this takes more bytes than to wait did", "")
	for seq := uint64(1); seq <= 7; seq++ {
		m.do(numbered(session, seq, 0, 1))
	}
	waits := m.do(underKey("k", 1))
	key := RequestID{Key: "\x00k"}
	m.table.Complete(m, key, waits.GetWaiting().Ticket+1, final)
	if again := m.do(underKey("k", 1)); !proto.Equal(again, waits) {
		t.Errorf("another ticket's result is the key's: %v", again)
	}
	m.table.Complete(m, key, waits.GetWaiting().Ticket, final)
	m.table.Complete(m, RequestID{Session: session, Seq: 7}, 7, final)
	m.table.Complete(m, RequestID{}, 9, final)
	m.left = 0 // so that two of the six acknowledged ones are still there
	for name, command := range map[string]*logpb.Command{"a number": numbered(session, 7, 7, 1), "a key": underKey("k", 1)} {
		if again := m.do(command); !proto.Equal(again, final) {
			t.Errorf("%s: %v", name, again)
		}
	}
	before := m.table.Counts()
	m.table.Complete(m, RequestID{Session: session, Seq: 6}, 6, final)
	if m.verify(); m.table.Counts() != before || before.Results != 3 {
		t.Error("the result of an acknowledged request is stored again")
	}
}

// TestCopy_NeverChanges: whatever the table does afterwards, for each kind, the copy keeps its records.
func TestCopy_NeverChanges(t *testing.T) {
	m := newMachine(t)
	m.waits, m.left = true, 0
	first, second, third := m.open(), m.open(), m.open()
	for seq := uint64(1); seq <= 10; seq++ {
		m.do(numbered(first, seq, 0, 1))
		m.do(numbered(second, seq, 0, 1))
	}
	m.do(underKey("k", 1))
	m.do(closes(second))
	frozen := m.table.Copy()
	m.moment.Generation++
	life := m.book.Limits.KeyLife
	before := records(frozen, life)

	m.moment.Now += m.book.Limits.SessionIdle / 2
	m.do(numbered(first, 11, 7, 1))
	m.table.Complete(m, RequestID{Session: first, Seq: 9}, 17, effect.Done())
	m.left = 3
	m.table.Free(m)
	m.do(closes(third))
	m.moment.Now += life
	m.table.ExpireSessions(m, 10)
	m.table.ExpireKeys(m, 10)
	m.open()
	m.verify()
	if after := records(frozen, life); !sameRecords(before, after) {
		t.Errorf("a copy changed from\n%v\nto\n%v", before, after)
	}
}

// sameRecords reports whether two tables have the same records.
func sameRecords(a, b []*logpb.SnapshotRecord) bool {
	return slices.EqualFunc(a, b, func(a, b *logpb.SnapshotRecord) bool { return proto.Equal(a, b) })
}
