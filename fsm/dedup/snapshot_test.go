package dedup

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
)

// restored returns a machine whose table is restored from records.
func restored(t tester, m *machine, all []*logpb.SnapshotRecord) *machine {
	t.Helper()
	r := newMachine(t)
	r.moment.Now = m.moment.Now
	r.table.Last, r.book.Last = m.table.Last, m.book.Last
	m.book.ByNumber.Scan(func(_ uint64, a *accounts.Account) bool {
		if err := r.book.Enter(&logpb.SnapshotAccount{Number: a.Number, Parent: a.Parent, Name: a.Name}, r.moment.Now); err != nil {
			t.Fatal(err)
		}
		return true
	})
	for _, record := range all {
		if err := r.enter(record); err != nil {
			t.Fatal(err)
		}
	}
	r.book.Link(r.moment.Now)
	return r
}

// enter enters one record.
func (m *machine) enter(record *logpb.SnapshotRecord) error {
	switch kind := record.Kind.(type) {
	case *logpb.SnapshotRecord_Session:
		return m.table.EnterSession(m.moment, kind.Session)
	case *logpb.SnapshotRecord_Result:
		return m.table.EnterResult(m.moment, new(entry.Names), kind.Result)
	default:
		return m.table.EnterKey(m.moment, new(entry.Names), record.GetKey())
	}
}

// TestRecords_RoundTrip: after random requests, a restored table has the same records and is consistent, and
// both tables free and expire alike.
func TestRecords_RoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt)
		m.left = 0
		sessions := []uint64{m.open()}
		for range rapid.IntRange(1, 100).Draw(rt, "requests") {
			session := rapid.SampledFrom(sessions).Draw(rt, "session")
			seq := rapid.Uint64Range(1, 20).Draw(rt, "seq")
			acked := rapid.SampledFrom([]uint64{0, 0, 0, 0, 0, 0, 0, seq}).Draw(rt, "acked") // sometimes more must leave than can at once
			m.waits = rapid.Bool().Draw(rt, "waits")
			switch rapid.IntRange(0, 20).Draw(rt, "request") {
			case 0:
				sessions = append(sessions, m.open())
			case 1:
				m.do(underKey(rapid.StringMatching("[ab]").Draw(rt, "key"), seq))
			case 2:
				m.do(closes(session))
			case 3:
				m.moment.Now += rapid.Int64Range(0, m.book.Limits.SessionIdle/16).Draw(rt, "passed")
			default:
				m.do(numbered(session, seq, acked, 1))
			}
		}
		life := m.book.Limits.KeyLife
		r := restored(rt, m, records(m.table, life))
		for step := range 4 {
			if !sameRecords(records(m.table, life), records(r.table, life)) || !slices.Equal(m.table.use.Items(), r.table.use.Items()) ||
				!slices.Equal(digests(m.table), digests(r.table)) {
				rt.Fatalf("step %d:\n%v\nrestored:\n%v", step, records(m.table, life), records(r.table, life))
			}
			for _, one := range []*machine{m, r} {
				one.verify()
				one.left = 5
				one.table.Free(one)
				one.moment.Now += one.book.Limits.SessionIdle / 4
				one.table.ExpireSessions(one, 10)
			}
		}
	})
}

// digests returns the digests of the requests that a table remembers.
func digests(t *Table) (all []uint64) {
	t.results.Scan(func(r sessionResult) bool {
		all = append(all, r.digest)
		return true
	})
	t.keys.Scan(func(_ string, k keyResult) bool {
		all = append(all, k.digest)
		return true
	})
	return all
}

// TestEnter_RefusesUnownedRecords: a result without a session, a key without a result, and a charge to an unknown
// account. In snapshots of version 1 such a result is left out.
func TestEnter_RefusesUnownedRecords(t *testing.T) {
	resultOf := func(session uint64) *logpb.SnapshotRecord {
		return &logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Result{
			Result: &logpb.SnapshotResult{Session: session, Seq: 1, Result: effect.Done()},
		}}
	}
	sessionOf := func(account uint64, ended bool) *logpb.SnapshotRecord {
		return &logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Session{
			Session: &logpb.SnapshotSession{Id: 1, Account: account, Ended: ended},
		}}
	}
	keyOf := func(account uint64, result *logpb.Result) *logpb.SnapshotRecord {
		return &logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Key{
			Key: &logpb.SnapshotKey{Key: "k", Result: result, Account: account},
		}}
	}
	for name, record := range map[string]*logpb.SnapshotRecord{
		"a result without a session":       resultOf(9),
		"a key without a result":           keyOf(0, nil),
		"a key of no account":              keyOf(9, effect.Done()),
		"a session of no account":          sessionOf(9, false),
		"one of no account that has ended": sessionOf(9, true),
	} {
		if newMachine(t).enter(record) == nil {
			t.Errorf("%s is entered", name)
		}
	}
	m := newMachine(t)
	if err := m.enter(sessionOf(0, false)); err != nil || m.table.Verify() == nil {
		t.Errorf("a session with a number that was not given out: %v, or it adds up", err)
	}
	m = newMachine(t)
	session := m.open()
	for _, version := range []uint32{1, 2} {
		if m.table.DropLeftover(version, resultOf(9)) != (version == 1) {
			t.Errorf("version %d", version)
		}
	}
	if m.table.DropLeftover(1, resultOf(session)) || m.table.Dropped() != 1 {
		t.Errorf("%d results were dropped, or one with a session was", m.table.Dropped())
	}
}
