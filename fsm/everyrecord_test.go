package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
)

// Apply works on what Restore accepts, and the next snapshot can be restored. This test walks the schema of snapshots,
// so that a new record or field is included: each field of each record takes the extreme values of its type and some
// between them.

// testedLevels is the number of feature levels whose entries this build applies.
const testedLevels = EntryVersion - OldestEntryVersion + 1

// levelOf returns one of them by a seed.
func levelOf(seed uint64) uint32 { return OldestEntryVersion + uint32(seed%testedLevels) }

// seedOf returns the seed in QUOTAD_SEED, or a random one.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("QUOTAD_SEED")
	if text == "" {
		return rand.Uint64()
	}
	given, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return given
}

// altered is a snapshot with one field of one record changed.
type altered struct {
	at   int
	nth  int
	path string
}

// recordsOf returns copies of all records of a state.
func recordsOf(m *Machine) (records []*logpb.SnapshotRecord) {
	m.Freeze().eachRecord(func(record *logpb.SnapshotRecord) bool {
		records = append(records, proto.CloneOf(record))
		return true
	})
	return records
}

// alterations returns the possible changes of the records, each change in up to most records.
func alterations(records []*logpb.SnapshotRecord, most int) (all []altered) {
	times := map[string]int{}
	for i, record := range records {
		for n, one := range changesOf(proto.CloneOf(record).ProtoReflect(), string(kindOf(record))) {
			if times[one.path]++; times[one.path] <= most {
				all = append(all, altered{at: i, nth: n, path: fmt.Sprintf("record %d: %s", i, one.path)})
			}
		}
	}
	return all
}

// snapshot returns the snapshot with one record changed.
func (a altered) snapshot(t *testing.T, records []*logpb.SnapshotRecord) []byte {
	t.Helper()
	clone := proto.CloneOf(records[a.at])
	changesOf(clone.ProtoReflect(), "")[a.nth].apply()
	all := append([]*logpb.SnapshotRecord(nil), records...)
	all[a.at] = clone
	return encodedRecords(t, all)
}

// errRefused means that a backup was not restored.
var errRefused = errors.New("refused")

// lives restores a backup as a cluster does: the state is fitted in, and every node restores the snapshot of that. Such
// a node then runs next to one that restored its next snapshot. The error describes a failure.
func lives(backup []byte, within bounds, later [][]*logpb.Command) (err error) {
	stage := "restore"
	defer func() {
		if stopped := recover(); stopped != nil {
			err = fmt.Errorf("%s: panic: %.200v", stage, stopped)
		}
	}()
	read, err := RestoreBackup(bytes.NewReader(backup))
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	stage = "rebase"
	read.Rebase(read.State().Index()+1, 2, read.State().Epoch()+1, "c", nil, Clock{})
	m, err := writtenAndRestored(read)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	m.bounds = within
	stage = "snapshot"
	twin, err := restoredAgain(m)
	if err != nil {
		return fmt.Errorf("%s: %w", stage, err)
	}
	for i, passed := range []int64{0, 0, second, 20 * second, minute, hour + 3*second, day + second, 40 * day} {
		stage = fmt.Sprintf("entry %d", i)
		data, err := proto.Marshal(next(m, passed, later[i%len(later)]...))
		if err != nil {
			return fmt.Errorf("%s: %w", stage, err)
		}
		m.Apply(m.index+1, 2, data)
		twin.Apply(twin.index+1, 2, data)
		if err := m.State().Verify(); err != nil {
			return fmt.Errorf("%s: %w", stage, err)
		}
		if !sameHash(m, twin) {
			return fmt.Errorf("%s: what was restored from its snapshot has gone another way", stage)
		}
		if i%len(later) != 1 {
			continue
		}
		stage = fmt.Sprintf("snapshot after entry %d", i) // while cooldowns of the last report last
		if twin, err = restoredAgain(m); err != nil {
			return fmt.Errorf("%s: %w", stage, err)
		}
	}
	stage = "the last snapshot"
	if _, err := restoredAgain(m); err != nil {
		return fmt.Errorf("%s: %w", stage, err)
	}
	return nil
}

// sameHash reports whether two machines have the same state.
func sameHash(m, other *Machine) bool {
	ledger, whole := m.State().Hash()
	otherLedger, otherWhole := other.State().Hash()
	return ledger == otherLedger && whole == otherWhole
}

// writtenAndRestored returns the machine restored from a machine's snapshot.
func writtenAndRestored(m *Machine) (*Machine, error) {
	var b bytes.Buffer
	if err := m.Freeze().WriteSnapshot(&b); err != nil {
		return nil, err
	}
	restored, err := Restore(&b)
	if err == nil {
		restored.bounds = m.bounds
	}
	return restored, err
}

// restoredAgain is writtenAndRestored with a check that the state is equal.
func restoredAgain(m *Machine) (*Machine, error) {
	restored, err := writtenAndRestored(m)
	if err == nil && !sameHash(m, restored) {
		err = errors.New("the restored state has another hash")
	}
	return restored, err
}

// laterCommands are commands after a restore: one of each kind, on the objects of the state.
func laterCommands(m *Machine) [][]*logpb.Command {
	l := m.liveOne("rate")
	first, _, _ := m.queue.waiters.Min()
	resumes := ask("many", itemOf("breaks", 1))
	resumes.Resume = true
	return [][]*logpb.Command{
		{
			reserve(ask("std-1", itemOf("rate", 1))), waits("low-1", 0, minute, itemOf("slots", 1)), consumesAtOnce("x", itemOf("hour", 1)),
			beginsOn("zz", "rate"), opens(), keyedBy("kk", reserve(ask("b", itemOf("rate", 1)))), numbered(3, 300, 2, withdraw(1<<50)),
		},
		{
			settle(&logpb.Settle{Lease: l.id, Fence: l.fence, Op: 1, Unspent: []*logpb.Item{itemOf("rate", 1)}}),
			renew(&logpb.Renew{Lease: l.id, Fence: l.fence}),
			report(&logpb.Report{Lease: l.id, Fence: l.fence, Op: 1, Signals: []*logpb.Signal{
				{
					Quota: "anchored", Cause: logpb.Cause_CAUSE_OK, Remaining: new(int64(9)), ResetAfterNs: new(hour / 3),
					ResetResolutionNs: second,
				},
				{
					Quota: "rate", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(second), Remaining: new(int64(5)),
					Limit: new(int64(24)),
				},
			}}),
			withdraw(first), release(&logpb.Release{Lease: l.id, Fence: l.fence}),
			endsAfter("t3", m.taskFence("t3"), logpb.TaskOutcome_TASK_OUTCOME_FAILED, 0, 0), retries("t1"), reserve(resumes),
		},
		{
			applyQuotas(randomWorldQuotas()...), reserve(ask("boss", itemOf("org/team", 1), itemOf("burst", 1))), deletesByForce("parts"),
			waits("std-2", 0, 5*minute, itemOf("org/team", 6)),
			{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}},
			reopens("rate"),
			overrides("rate", 5, hour), limitsTo(func(l *logpb.SetLimits) { l.MaxWaiters = new(int64(8)) }), deletesWorkflow("rest"),
			{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: m.liveOne("").id}}},
			renewsTask("t3", m.taskFence("t3"), minute), forgets("t1"), closesSession(3),
			consumeCmd(&logpb.Consume{Lease: l.id, Fence: l.fence, Op: 2, Items: []*logpb.Item{itemOf("rate", 1)}}),
			putMember("n2", "b:1"), deleteMember("n1"), founds("c"), raisesEpoch(7),
		},
	}
}

// TestLaterCommands_AreOfEveryKind: a new kind must be tried on restored states too.
func TestLaterCommands_AreOfEveryKind(t *testing.T) {
	has := map[protoreflect.Name]bool{}
	for _, commands := range laterCommands(livelier(t)) {
		for _, command := range commands {
			has[kindOf(command)] = true
		}
	}
	for _, kind := range kindsOf(&logpb.Command{}) {
		if !has[kind] {
			t.Errorf("no %s is tried after a restore", kind)
		}
	}
}

// recordCases is how many changes are tried with -short, each in up to recordsAlike records.
const (
	recordCases  = 100
	recordsAlike = 8
)

// TestEveryRecord_OfBackupsKeepsTheStateSound tries all values of each field of each record of a backup, in one record
// that has it. With -short it draws some changes of any record, by QUOTAD_SEED or at random, and logs which.
func TestEveryRecord_OfBackupsKeepsTheStateSound(t *testing.T) {
	m := livelier(t)
	records, later := recordsOf(m), laterCommands(m)
	all := alterations(records, 1)
	if testing.Short() {
		seed := seedOf(t)
		t.Logf("QUOTAD_SEED=%d", seed)
		all = alterations(records, recordsAlike)
		rand.New(rand.NewPCG(seed, 3)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:recordCases]
	}
	taken := 0
	for i, a := range all {
		err := lives(a.snapshot(t, records), [...]bounds{newBounds(), tight(2)}[i%2], later)
		if errors.Is(err, errRefused) {
			continue
		}
		if taken++; err != nil {
			t.Errorf("%s: %.400v", a.path, err)
		}
	}
	t.Logf("%d of %d changes were taken", taken, len(all))
	if taken < len(all)/8 {
		t.Error("most changes are refused: the test says little")
	}
}

// resealed corrects count and checksum of a possible snapshot; otherwise nearly every change would fail there.
func resealed(data []byte) []byte {
	at := min(len(data), len(snapshot.Magic)+4)
	b := bytes.NewBuffer(bytes.Clone(data[:at]))
	records := uint64(0)
	for at < len(data) {
		size, head := binary.Uvarint(data[at:])
		end := at + head + int(min(size, uint64(len(data)))) //nolint:gosec // no more than there are bytes
		if head <= 0 || end > len(data) {
			break
		}
		record := new(logpb.SnapshotRecord)
		if proto.Unmarshal(data[at+head:end], record) == nil && record.GetTrailer() != nil {
			break
		}
		b.Write(data[at:end])
		records++
		at = end
	}
	trailer, err := proto.Marshal(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Trailer{Trailer: &logpb.SnapshotTrailer{
		Records: records, Crc32C: crc32.Checksum(b.Bytes(), crc32.MakeTable(crc32.Castagnoli)),
	}}})
	if err != nil {
		panic(err)
	}
	b.Write(binary.AppendUvarint(nil, uint64(len(trailer))))
	b.Write(trailer)
	return b.Bytes()
}

// FuzzRestore: no input makes a reader panic, or allocate much more than its size. A restored machine behaves like its
// twin restored from its next snapshot.
func FuzzRestore(f *testing.F) {
	recorded, err := os.ReadFile(filepath.Join("testdata", "snapshot-v1.bin"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(recorded)
	m := livelier(f)
	var fresh bytes.Buffer
	if err := m.Freeze().WriteSnapshot(&fresh); err != nil {
		f.Fatal(err)
	}
	f.Add(fresh.Bytes())
	later := laterCommands(m)
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := Restore(bytes.NewReader(data)); err == nil {
			_ = m.State().Verify()
		}
		err := lives(resealed(data), [...]bounds{newBounds(), tight(2)}[len(data)%2], later)
		if err != nil && !errors.Is(err, errRefused) {
			t.Errorf("%.400v", err)
		}
	})
}

// TestResealed_KeepsARecordedSnapshot: the fuzz target restores unchanged records, with a changed checksum as well.
// Nothing else refuses an input that passes the checksum.
func TestResealed_KeepsARecordedSnapshot(t *testing.T) {
	m := livelier(t)
	whole := encodedRecords(t, recordsOf(m))
	spoilt := bytes.Clone(whole)
	spoilt[len(spoilt)-1] ^= 1
	for name, data := range map[string][]byte{"whole": whole, "spoilt": spoilt, "cut off": whole[:len(whole)-3]} {
		if got := resealed(data); !bytes.Equal(got, whole) {
			t.Errorf("%s: %d bytes, want %d", name, len(got), len(whole))
		}
	}
	if err := lives(resealed(spoilt), newBounds(), laterCommands(m)); err != nil {
		t.Error(err)
	}
}
