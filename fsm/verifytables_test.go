package fsm

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/rangeset"
)

// alone are tables without redundancy: nothing else shows what is missing there.
var alone = map[string]bool{"members": true, "resumed": true, "reopening": true}

// tablesOf returns the tables of a state by name, as values with a method PopMin, and those of runs; also those of its
// parts, which are pointers to types that can be copied.
func tablesOf(s *State) map[string]reflect.Value {
	tables := map[string]reflect.Value{}
	addTables(tables, "", reflect.ValueOf(s).Elem())
	return tables
}

func addTables(tables map[string]reflect.Value, within string, fields reflect.Value) {
	for i := range fields.NumField() {
		name, field := within+fields.Type().Field(i).Name, fields.Field(i)
		field = reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
		if listed, ok := reflect.TypeAssert[*rangeset.Set](field); ok {
			field = reflect.ValueOf(listed.Tree)
		}
		switch isPart := field.Kind() == reflect.Pointer && field.MethodByName("Copy").IsValid(); {
		case field.MethodByName("PopMin").IsValid():
			tables[name] = field
		case isPart:
			addTables(tables, name+".", field.Elem())
		}
	}
}

// livelier also has something in the tables that lively leaves empty.
func livelier(t tester) *Machine {
	w := lively(t)
	w.raw(policedOpen("breaks"), holders(&logpb.HolderRule{Pattern: "boss", Class: 0}, &logpb.HolderRule{Pattern: "low*", Class: 2}))
	w.quotas(with(slotsOf("falls", 1), func(q *logpb.Quota) { q.Fallback = "slots" }))
	for range 3 { // a holder's breaker opens
		a := ask("low-2", itemOf("breaks", 1))
		a.Consume = true
		g := w.granted(a)
		w.raw(chargedTo("address:10.0.0.1", report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
			{Quota: "breaks", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(int64(1))},
		}})))
		w.now += millisecond
	}
	w.raw(limitsTo(func(l *logpb.SetLimits) {
		l.MaxCalls, l.MaxStreams, l.MaxConnections = new(int64(64)), new(int64(16)), new(int64(65))
	}))
	w.raw(applyQuotas(anchored("doubted", 10)))
	for i, caller := range []string{"address:10.0.0.1", "address:10.0.0.2"} { // two callers name different resets
		g := w.granted(with(ask("low-2", itemOf("doubted", 1)), func(a *logpb.Reserve) { a.Consume = true }))
		w.raw(chargedTo(caller, report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
			{Quota: "doubted", Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: new(hour/2 + int64(i)*10*minute)},
		}})))
	}
	w.raw(applyQuotas(rateOf("parts", 100, minute)))
	parts := w.granted(ask("many", itemOf("parts", 9)))
	for op := range uint64(3) {
		w.raw(&logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
			Lease: parts.Lease, Fence: parts.Fence, Op: op + 1, Items: []*logpb.Item{itemOf("parts", 1)},
		}}})
	}
	w.raw(report(&logpb.Report{Lease: parts.Lease, Fence: parts.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "parts", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(minute)},
	}}))
	w.m.bounds = tight(1)
	for range 3 {
		w.granted(ask("many", itemOf("breaks", 1)))
	}
	again := ask("many", itemOf("breaks", 1))
	again.Resume = true
	for i := range 3 { // sessions leave results, and a quota leaves its waiters
		w.raw(waits("many", 0, minute, itemOf("slots", 1), itemOf("spare", 1)))
		for seq := range uint64(9) {
			w.raw(numbered(uint64(i%3+1), 100+seq, 0, withdraw(1<<60)))
		}
	}
	w.raw(numbered(1, 200, 150, withdraw(1<<60)), closes(2)[0], deletesByForce("spare"), reserve(again),
		settle(&logpb.Settle{Lease: parts.Lease, Fence: parts.Fence, Op: 3, Final: true, DoneBelow: 4}),
		&logpb.Command{Kind: &logpb.Command_ReopenQuota{ReopenQuota: &logpb.ReopenQuota{Quota: "parts"}}})
	return w.m
}

func policedOpen(name string) *logpb.Command {
	return applyQuotas(policed(rateOf(name, 100, minute), &logpb.Policy{Breaker: &logpb.Breaker{Failures: 3}}))
}

// TestVerify_ChecksEachTableFromBothSides removes the first item of each table in turn; a new table is included.
func TestVerify_ChecksEachTableFromBothSides(t *testing.T) {
	m := livelier(t)
	if err := m.Verify(); err != nil {
		t.Fatal(err)
	}
	for name, table := range tablesOf(m.state) {
		if table.MethodByName("Len").Call(nil)[0].Int() == 0 {
			t.Errorf("table %s is empty: the test says nothing of it", name)
			continue
		}
		damaged := New()
		damaged.state = m.Freeze().copy()
		tablesOf(damaged.state)[name].MethodByName("PopMin").Call(nil)
		if err := verifyOrPanic(damaged.state); err == nil && !alone[name] {
			t.Errorf("nobody missed the first of %s", name)
		}
	}
	if err := m.Verify(); err != nil {
		t.Fatalf("the tests themselves changed it: %v", err)
	}
}

// verifyOrPanic counts a panic as a finding: in a state made by Restore, no table lacks an object of another one.
func verifyOrPanic(s *State) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("panicked")
		}
	}()
	return s.Verify()
}

// TestRestore_RefusesWrongTotals changes each total of a snapshot by one.
func TestRestore_RefusesWrongTotals(t *testing.T) {
	m := livelier(t)
	var records []*logpb.SnapshotRecord
	m.Freeze().eachRecord(func(record *logpb.SnapshotRecord) bool {
		records = append(records, proto.CloneOf(record))
		return true
	})
	if _, err := Restore(bytes.NewReader(encodedRecords(t, records))); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i, record := range records {
		for what, change := range map[string]func(r *logpb.SnapshotRecord) bool{
			"held": func(r *logpb.SnapshotRecord) bool { q := r.GetQuota(); return q != nil && add(&q.Held) },
			"open": func(r *logpb.SnapshotRecord) bool { q := r.GetQuota(); return q != nil && add(&q.Open) },
			"the log": func(r *logpb.SnapshotRecord) bool {
				q := r.GetQuota()
				return len(q.GetLog()) > 0 && add(&q.Log[0].Amount)
			},
			"a number": func(r *logpb.SnapshotRecord) bool { l := r.GetLease(); return l != nil && addUnsigned(&l.Id, 1<<40) },
			"a fence":  func(r *logpb.SnapshotRecord) bool { l := r.GetLease(); return l != nil && addUnsigned(&l.Fence, 1<<60) },
			"an item":  func(r *logpb.SnapshotRecord) bool { l := r.GetLease(); return l != nil && add(&l.Items[0].Held) },
			"a charge": func(r *logpb.SnapshotRecord) bool {
				o := r.GetOperation()
				return o != nil && add(&o.Charges[0].Amount)
			},
			"a session":  func(r *logpb.SnapshotRecord) bool { c := r.GetSession(); return c != nil && addUnsigned(&c.Id, 1<<40) },
			"the tasks":  func(r *logpb.SnapshotRecord) bool { c := r.GetTask(); return c != nil && addUnsigned(&c.Fence, 1<<60) },
			"the quotas": func(r *logpb.SnapshotRecord) bool { h := r.GetHead(); return h != nil && subtract(&h.LastQuota) },
		} {
			changed := proto.CloneOf(record)
			if !change(changed) {
				continue
			}
			others := append(append(append([]*logpb.SnapshotRecord{}, records[:i]...), changed), records[i+1:]...)
			if _, err := Restore(bytes.NewReader(encodedRecords(t, others))); errors.Is(err, ErrCorruptSnapshot) {
				refused++
			} else if !voided(m, record) {
				t.Errorf("%s of record %d was changed: %v\n%.300v", what, i, err, record)
			}
		}
	}
	if refused < 30 {
		t.Errorf("only %d were refused", refused)
	}
}

// voided reports whether a record's count is of a window that has closed, so that no sum includes it.
func voided(m *Machine, record *logpb.SnapshotRecord) bool {
	if o := record.GetOperation(); o != nil {
		q, ok := m.quotas.byNumber.Get(o.Charges[0].Quota)
		return !ok || !q.ledger.Counts(o.Charges[0].EndNs)
	}
	return false
}

func add(to *int64) bool { *to++; return true }

func addUnsigned(to *uint64, by uint64) bool { *to += by; return true }

func subtract(from *uint32) bool { *from--; return true }
