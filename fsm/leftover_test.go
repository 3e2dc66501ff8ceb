package fsm

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
)

// numbers are values at which a request's number could be confused with another: the ends of its type and of the signed
// one.
var numbers = []uint64{1, 2, 1<<53 - 1, 1 << 53, 1<<63 - 1, 1 << 63, 1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64}

// opened opens a session and returns its number.
func (w *world) opened() uint64 {
	w.t.Helper()
	return w.do(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "a"}}}).GetSessionOpened().GetSession()
}

// TestResults_EndWithTheirSession: results leave with their session, whether it is closed or expires,
// and the rest can be restored.
func TestResults_EndWithTheirSession(t *testing.T) {
	for name, end := range map[string]func(w *world, session uint64){
		"closed": func(w *world, session uint64) {
			w.do(&logpb.Command{Session: session, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}})
		},
		"expired": func(w *world, _ uint64) {
			w.sleep(15 * minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("r", 1000, minute), slotsOf("s", 1))
			w.granted(ask("b", itemOf("s", 1)))
			session, other := w.opened(), w.opened()
			for _, seq := range numbers {
				if r := w.do(numbered(session, seq, 0, asks("a", 0, itemOf("r", 1)))); r.GetGranted() == nil {
					t.Fatalf("request %d: %v", seq, r)
				}
			}
			if r := w.do(numbered(session, 7, 0, waits("a", 0, 10*minute, itemOf("s", 1)))); r.GetWaiting() == nil {
				t.Fatal(r)
			}
			kept := w.do(numbered(other, math.MaxUint64, 0, asks("a", 0, itemOf("r", 1))))
			w.reborn()
			if name == "expired" {
				w.sleep(50 * minute)
				w.do(numbered(other, 1, 0, asks("a", 0, itemOf("r", 1)))) // is still used
			}
			end(w, session)
			counts := w.m.State().Counts()
			if counts.Sessions != 1 || w.m.queue.waiters.Len() != 0 {
				t.Fatalf("%d sessions, %d waiting", counts.Sessions, w.m.queue.waiters.Len())
			}
			w.m.State().requestRecords(func(record *logpb.SnapshotRecord) bool {
				if r := record.GetResult(); r != nil && r.Session != other {
					t.Errorf("request %d of session %d, which has ended, has a result", r.Seq, r.Session)
				}
				return true
			})
			w.reborn()
			if got := w.do(numbered(other, math.MaxUint64, 0, asks("a", 0, itemOf("r", 1)))); !proto.Equal(got, kept) {
				t.Fatalf("the other session's result is %v, was %v", got, kept)
			}
		})
	}
}

// TestAcknowledge_UpToAnyNumber: acknowledged results leave, and no others.
func TestAcknowledge_UpToAnyNumber(t *testing.T) {
	for i, below := range numbers {
		w := newWorld(t)
		w.quotas(rateOf("r", 1000, minute))
		session := w.opened()
		for _, seq := range numbers {
			w.do(numbered(session, seq, 0, asks("a", 0, itemOf("r", 1))))
		}
		w.do(numbered(session, below, below, asks("a", 0, itemOf("r", 1))))
		if got, want := w.m.requests.Counts().Results, len(numbers)-i; got != want {
			t.Errorf("acknowledged below %d: %d results, want %d", below, got, want)
		}
		w.reborn()
	}
}

// TestRestore_DropsResultsWithoutASession: snapshots of version 1 may have some; their room is freed, and they are
// counted.
func TestRestore_DropsResultsWithoutASession(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1000, minute))
	gone, stays := w.opened(), w.opened()
	for _, seq := range numbers {
		w.do(numbered(gone, seq, 0, asks("a", 0, itemOf("r", 1))))
	}
	w.do(numbered(stays, 1, 0, asks("a", 0, itemOf("r", 1))))
	isGone := func(record *logpb.SnapshotRecord) bool { return record.GetSession().GetId() == gone }

	restored, err := Restore(bytes.NewReader(snapshotVersioned(t, w.m.Freeze(), 1, isGone)))
	if err != nil {
		t.Fatal(err)
	}
	if got := restored.DroppedResults(); got != len(numbers) {
		t.Errorf("%d results were dropped, want %d", got, len(numbers))
	}
	if err := restored.State().Verify(); err != nil {
		t.Error(err)
	}
	if got := restored.requests.Counts().Results; got != 1 {
		t.Errorf("%d results are left, want 1", got)
	}
	_, err = Restore(bytes.NewReader(snapshotVersioned(t, w.m.Freeze(), 2, isGone)))
	if SnapshotVersion > 1 && !errors.Is(err, ErrCorruptSnapshot) {
		t.Errorf("later versions never have any: %v", err)
	}
}

// snapshotVersioned returns a snapshot as a build of another version would have written it, without some records.
func snapshotVersioned(t tester, s *State, version uint32, isGone func(*logpb.SnapshotRecord) bool) []byte {
	t.Helper()
	var records []*logpb.SnapshotRecord
	s.eachRecord(func(record *logpb.SnapshotRecord) bool {
		if !isGone(record) {
			records = append(records, record)
		}
		return true
	})
	var b bytes.Buffer
	out := snapshot.NewWriter(&b, version)
	for _, record := range records {
		out.Record(record)
	}
	if err := out.Finish(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestExpireSessions_BoundsTheResultsOfOneEntry: sessions expire together, their results leave in steps.
func TestExpireSessions_BoundsTheResultsOfOneEntry(t *testing.T) {
	const results = 2000
	w := newWorld(t)
	w.quotas(rateOf("r", 1000, minute))
	for range 5 {
		session := w.opened()
		commands := make([]*logpb.Command, results)
		for i := range commands {
			commands[i] = numbered(session, uint64(i+1), 0, renew(&logpb.Renew{Lease: 1, Fence: 1}))
		}
		w.raw(commands...)
	}
	w.now += 2 * hour
	for left := 5*results - maxFreedPerEntry; left > 0; left -= maxFreedPerEntry {
		w.apply()
		if counts := w.m.requests.Counts(); counts.Sessions != 0 || counts.Results != left {
			t.Fatalf("%d sessions and %d results are left, want none and %d", counts.Sessions, counts.Results, left)
		}
		w.reborn()
	}
	w.apply()
	if got := w.m.State().Counts(); got.Sessions != 0 || got.ResultBytes != 0 {
		t.Errorf("%+v", got)
	}
}

// TestWaitersFor_FindsThoseOfDescendants: the same as a check of each waiter, with no more items than allowed before
// the last waiter.
func TestWaitersFor_FindsThoseOfDescendants(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("p", 1), under(slotsOf("p/c", 1), "p"), slotsOf("q", 1))
	w.granted(ask("x", itemOf("p/c", 1), itemOf("q", 1)))
	var want []uint64
	for i, name := range []string{"p/c", "q", "p", "p/c", "q"} {
		ticket := w.waiting(waits([]string{"a", "b", "a"}[i%3], 0, minute, itemOf(name, 1)))
		if name != "q" {
			want = append(want, ticket)
		}
	}
	number, _ := w.m.quotas.names.Get("p")
	var got []uint64
	found, more := w.m.queue.waitersFor(number, 5)
	for _, one := range found {
		got = append(got, one.ticket)
	}
	if slices.Sort(got); more || !slices.Equal(got, want) {
		t.Errorf("tickets %v, want %v", got, want)
	}
	if first, more := w.m.queue.waitersFor(number, 3); len(first) != 2 || !more {
		t.Errorf("of three it finds %d, more: %t", len(first), more)
	}
}
