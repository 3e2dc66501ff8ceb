package fsm

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/rangeset"
)

// epochStart is the Unix time at which test worlds begin: 2026-11-20 10:00 UTC.
const epochStart = int64(1_795_168_800) * second

// world drives a Machine as a leader would, and checks it after every entry.
type world struct {
	t       tester
	m       *Machine
	index   uint64
	now     int64
	early   int64 // error of the earlier view
	late    int64 // error of the later view
	entries [][]byte
	last    Applied
	// version is that of entries; 0: this build's.
	version uint32
}

// Durations in the form of stories.
const (
	millisecond, second, minute = fixed.Millisecond, fixed.Second, fixed.Minute
	hour, day                   = fixed.Hour, fixed.Day
)

// tester is the common part of *testing.T and *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newWorld(t tester) *world {
	return &world{t: t, m: New()}
}

// apply applies one entry with these commands at the present time.
func (w *world) apply(commands ...*logpb.Command) []*logpb.Result {
	w.t.Helper()
	w.index++
	data, err := proto.Marshal(&logpb.Entry{
		Version: cmp.Or(w.version, EntryVersion), StampNs: w.now, WallEarlyNs: epochStart + w.now + w.early,
		WallLateNs: epochStart + w.now + w.late, Commands: commands,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.entries = append(w.entries, data)
	w.last = w.m.Apply(w.index, 1, data)
	if s := w.m.State(); *s.leasesOf != (rangeset.Set{Tree: s.leasesOf.Tree}) || *s.deadlines != (rangeset.Set{Tree: s.deadlines.Tree}) {
		w.t.Fatal("something is not in its tree: readers would enter it, all at once")
	}
	if err := w.m.State().Verify(); err != nil {
		w.t.Fatalf("after entry %d at %d ms: %v", w.index, w.now/millisecond, err)
	}
	return w.last.Results
}

// sleep lets time pass and writes an empty entry.
func (w *world) sleep(d int64) {
	w.t.Helper()
	w.now += d
	w.apply()
}

func (w *world) do(command *logpb.Command) *logpb.Result {
	w.t.Helper()
	return w.apply(command)[0]
}

// quotas applies definitions, which must be accepted.
func (w *world) quotas(definitions ...*logpb.Quota) {
	w.t.Helper()
	if r := w.do(applyQuotas(definitions...)); r.GetQuotasApplied() == nil {
		w.t.Fatalf("quotas refused: %v", r)
	}
}

// granted asks for a lease, which must be granted.
func (w *world) granted(req *logpb.Reserve) *logpb.Granted {
	w.t.Helper()
	r := w.do(reserve(req))
	if r.GetGranted() == nil {
		w.t.Fatalf("not granted: %v", r)
	}
	return r.GetGranted()
}

// refused asks for a lease, which must be refused for a reason.
func (w *world) refused(req *logpb.Reserve, reason logpb.Reason) *logpb.Refusal {
	w.t.Helper()
	r := w.do(reserve(req))
	if r.GetRefusal().GetReason() != reason {
		w.t.Fatalf("want refusal %v, got %v", reason, r)
	}
	return r.GetRefusal()
}

// fails carries out a command that must fail for a reason, without a change of the ledger.
func (w *world) fails(command *logpb.Command, reason logpb.Reason) *logpb.Failure {
	w.t.Helper()
	w.apply() // carries out due work first
	before, _ := w.m.State().Hash()
	r := w.do(command)
	if r.GetFailure().GetReason() != reason {
		w.t.Fatalf("want failure %v, got %v", reason, r)
	}
	if after, _ := w.m.State().Hash(); after != before {
		w.t.Fatalf("a command that failed with %v changed the ledger", reason)
	}
	return r.GetFailure()
}

func (w *world) available(name string) int64 {
	w.t.Helper()
	v, ok := w.m.State().Quota(name, w.clock())
	if !ok {
		w.t.Fatalf("no quota %q", name)
	}
	return v.Available
}

func (w *world) clock() Clock {
	c := w.m.State().Clock()
	return Clock{
		Now: w.now, WallEarly: c.Shifted(epochStart + w.now + w.early), WallLate: c.Shifted(epochStart + w.now + w.late), Shift: c.Shift,
	}
}

// reborn replaces the machine by one restored from its own snapshot.
func (w *world) reborn() {
	w.t.Helper()
	var buffer bytes.Buffer
	if err := w.m.Freeze().WriteSnapshot(&buffer); err != nil {
		w.t.Fatal(err)
	}
	restored, err := Restore(&buffer)
	if err != nil {
		w.t.Fatal(err)
	}
	if before, after := pagesOf(w.m), pagesOf(restored); !slices.Equal(before, after) {
		w.t.Fatalf("%d pages of orphans were written, and %d other ones are restored", len(before), len(after))
	}
	restored.bounds = w.m.bounds
	w.m = restored
}

// pagesOf describes the pages of detached records.
func pagesOf(m *Machine) (pages []string) {
	m.records.detached.Scan(func(p keptPage) bool {
		pages = append(pages, fmt.Sprintf("%v, due at %d, %x", p.from, p.check, p.packed))
		return true
	})
	return pages
}

func reserve(req *logpb.Reserve) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: req}}
}

func consumeCmd(c *logpb.Consume) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Consume{Consume: c}}
}

func settle(s *logpb.Settle) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Settle{Settle: s}}
}

func release(r *logpb.Release) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Release{Release: r}}
}

func renew(r *logpb.Renew) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Renew{Renew: r}}
}

func withdraw(ticket uint64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: ticket}}}
}

func report(r *logpb.Report) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Report{Report: r}}
}

func applyQuotas(definitions ...*logpb.Quota) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: definitions}}}
}

func holders(rules ...*logpb.HolderRule) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{
		ApplyQuotas: &logpb.ApplyQuotas{Holders: rules, ReplaceHolders: true},
	}}
}

func itemOf(name string, amount int64) *logpb.Item {
	return &logpb.Item{Quota: name, Amount: &amount}
}

func ask(name string, items ...*logpb.Item) *logpb.Reserve {
	return &logpb.Reserve{Holder: name, Items: items}
}

func rateOf(name string, limit, per int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit, PerNs: per}}}
}

func slotsOf(name string, limit int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: limit}}}
}

func hourly(name string, limit int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Window{
		Window: &logpb.Window{Limit: limit, Every: logpb.Every_EVERY_HOUR},
	}}
}

func anchored(name string, limit int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Window{
		Window: &logpb.Window{Limit: limit, Every: logpb.Every_EVERY_HOUR, Anchored: true},
	}}
}

// raw applies an entry without the check, which takes long for large states.
func (w *world) raw(commands ...*logpb.Command) []*logpb.Result {
	w.index++
	data, err := proto.Marshal(&logpb.Entry{
		Version: cmp.Or(w.version, EntryVersion), StampNs: w.now, WallEarlyNs: epochStart + w.now + w.early,
		WallLateNs: epochStart + w.now + w.late, Commands: commands,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.entries = append(w.entries, data)
	w.last = w.m.Apply(w.index, 1, data)
	return w.last.Results
}

func under(q *logpb.Quota, parent string) *logpb.Quota {
	q.Parent = parent
	return q
}

func snapshotOf(t tester, s *State) []byte {
	var b bytes.Buffer
	if err := s.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
