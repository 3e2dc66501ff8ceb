package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
)

var update = flag.Bool("update", false, "record the history and the golden snapshots of new versions")

// recorded are the results of a build with one pair of versions on recorded bytes. A row is never changed. If this
// build has another hash, its behaviour has another meaning: EntryVersion or SnapshotVersion must rise and get its own
// row and files.
type recorded struct {
	entries, snapshots int
	// fields is how many fields and enum values an entry of that version can have, including its commands'; 0: no build
	// applies it any more.
	fields int
	// history hashes every result and event of testdata/history-v<entries>.bin, and the state after it. Only a build
	// that applies entries of that version can compute it.
	history string
	// lived is the same for testdata/history-v<entries>-lived.bin, in which each kind of command succeeds; versions 2
	// and 3 have none.
	lived string
	// restored are the state hashes of golden snapshots, as restored by builds that write snapshots of this version.
	restored map[string]string
}

// versions are the rows, the oldest first; the last one is this build's.
var versions = []recorded{
	{entries: 2, snapshots: 2, history: "4f30706ad08f3597", restored: map[string]string{
		"snapshot-v1.bin": "34b9f3c41af9b832", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "5ccc4298e7f0e5eb", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
	}},
	{entries: 3, snapshots: 3, history: "8ca93180f52d03a9", restored: map[string]string{
		"snapshot-v1.bin": "9c2339fea8a207ef", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "0243fceb6c9be98b", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "c0e8d3a9567d8d88", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
	}},
	{entries: 4, snapshots: 4, history: "9cc900e3613833f0", lived: "e608df0c8b331d2e", restored: map[string]string{
		"snapshot-v1.bin": "9c2339fea8a207ef", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "0243fceb6c9be98b", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "c0e8d3a9567d8d88", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "f87639863db23d64", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
	}},
	{entries: 5, snapshots: 5, fields: 222, history: "f71ea7708050f7fe", lived: "33166cae4f4d8dc8", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
	}},
	{entries: 6, snapshots: 6, fields: 222, history: "7fdb23da7f4932fe", lived: "cb4a3dc04ccc9359", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
		"snapshot-v6.bin": "96a6baef2bb140ba", "snapshot-v6-tasks.bin": "bd5b0c430bc0f9eb",
	}},
	{entries: 7, snapshots: 7, fields: 229, history: "2593954517a73ecb", lived: "7d5694601f9f3493", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
		"snapshot-v6.bin": "96a6baef2bb140ba", "snapshot-v6-tasks.bin": "bd5b0c430bc0f9eb",
		"snapshot-v7.bin": "0abe6208e3956c83", "snapshot-v7-tasks.bin": "7ea8b741cbf78c95",
	}},
	{entries: 8, snapshots: 8, fields: 230, history: "c9158905f71157e1", lived: "f865d042b67b0313", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
		"snapshot-v6.bin": "96a6baef2bb140ba", "snapshot-v6-tasks.bin": "bd5b0c430bc0f9eb",
		"snapshot-v7.bin": "0abe6208e3956c83", "snapshot-v7-tasks.bin": "7ea8b741cbf78c95",
		"snapshot-v8.bin": "c50118d5dae8972f", "snapshot-v8-tasks.bin": "ee21986813bef79a",
	}},
	{entries: 9, snapshots: 9, fields: 230, history: "11d2d97a82c4741a", lived: "32f90e7c819b1200", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
		"snapshot-v6.bin": "96a6baef2bb140ba", "snapshot-v6-tasks.bin": "bd5b0c430bc0f9eb",
		"snapshot-v7.bin": "0abe6208e3956c83", "snapshot-v7-tasks.bin": "7ea8b741cbf78c95",
		"snapshot-v8.bin": "c50118d5dae8972f", "snapshot-v8-tasks.bin": "ee21986813bef79a",
		"snapshot-v9.bin": "2394d7ba1e418bc9", "snapshot-v9-tasks.bin": "79b953d5f9538478",
	}},
	{entries: 10, snapshots: 10, fields: 230, history: "2a2e1e5efea21850", lived: "d1fa6fda5ded7ed3", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
		"snapshot-v6.bin": "96a6baef2bb140ba", "snapshot-v6-tasks.bin": "bd5b0c430bc0f9eb",
		"snapshot-v7.bin": "0abe6208e3956c83", "snapshot-v7-tasks.bin": "7ea8b741cbf78c95",
		"snapshot-v8.bin": "c50118d5dae8972f", "snapshot-v8-tasks.bin": "ee21986813bef79a",
		"snapshot-v9.bin": "2394d7ba1e418bc9", "snapshot-v9-tasks.bin": "79b953d5f9538478",
		"snapshot-v10.bin": "79550caa855c9caa", "snapshot-v10-tasks.bin": "212cd4d2ab8a95fa",
	}},
	{entries: 11, snapshots: 11, fields: 233, history: "77af867fddb6be1e", lived: "8b9abb394c3beec1", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
		"snapshot-v6.bin": "96a6baef2bb140ba", "snapshot-v6-tasks.bin": "bd5b0c430bc0f9eb",
		"snapshot-v7.bin": "0abe6208e3956c83", "snapshot-v7-tasks.bin": "7ea8b741cbf78c95",
		"snapshot-v8.bin": "c50118d5dae8972f", "snapshot-v8-tasks.bin": "ee21986813bef79a",
		"snapshot-v9.bin": "2394d7ba1e418bc9", "snapshot-v9-tasks.bin": "79b953d5f9538478",
		"snapshot-v10.bin": "79550caa855c9caa", "snapshot-v10-tasks.bin": "212cd4d2ab8a95fa",
		"snapshot-v11.bin": "1268b6710e1e8e4a", "snapshot-v11-tasks.bin": "a313ba255c39f454",
	}},
	{entries: 12, snapshots: 12, fields: 233, history: "0be2ac8c1e065397", lived: "b7ef4f2b43616215", restored: map[string]string{
		"snapshot-v1.bin": "71fa3afd1c31a7ad", "snapshot-v1-tasks.bin": "899f591dd774c25e",
		"snapshot-v2.bin": "c99e1e2c5b001576", "snapshot-v2-tasks.bin": "c933c82382d3fa30",
		"snapshot-v3.bin": "e86886e02acdbb3e", "snapshot-v3-tasks.bin": "c314f66d90eb89de",
		"snapshot-v4.bin": "4056f18a6719438e", "snapshot-v4-tasks.bin": "c1bbac76af3dfb56",
		"snapshot-v5.bin": "25df347feb882d51", "snapshot-v5-tasks.bin": "f74c4ebfadd0dcef",
		"snapshot-v6.bin": "96a6baef2bb140ba", "snapshot-v6-tasks.bin": "bd5b0c430bc0f9eb",
		"snapshot-v7.bin": "0abe6208e3956c83", "snapshot-v7-tasks.bin": "7ea8b741cbf78c95",
		"snapshot-v8.bin": "c50118d5dae8972f", "snapshot-v8-tasks.bin": "ee21986813bef79a",
		"snapshot-v9.bin": "2394d7ba1e418bc9", "snapshot-v9-tasks.bin": "79b953d5f9538478",
		"snapshot-v10.bin": "79550caa855c9caa", "snapshot-v10-tasks.bin": "212cd4d2ab8a95fa",
		"snapshot-v11.bin": "1268b6710e1e8e4a", "snapshot-v11-tasks.bin": "a313ba255c39f454",
		"snapshot-v12.bin": "31714063daf5fe82", "snapshot-v12-tasks.bin": "caa30491e0747d32",
	}},
}

// applied returns the rows whose entries this build applies.
func applied(t *testing.T) (rows []recorded) {
	t.Helper()
	for _, row := range versions {
		if row.entries >= OldestEntryVersion {
			rows = append(rows, row)
		}
	}
	return rows
}

// TestVersions_RiseWithMeaning: recorded entries have their recorded results and states, and golden snapshots of every
// version restore to their recorded states.
func TestVersions_RiseWithMeaning(t *testing.T) {
	row := versions[len(versions)-1]
	if row.entries != EntryVersion || row.snapshots != SnapshotVersion {
		t.Fatalf("there is no row for entries of version %d and snapshots of version %d", EntryVersion, SnapshotVersion)
	}
	for _, row := range applied(t) {
		path := filepath.Join("testdata", fmt.Sprintf("history-v%d.bin", row.entries))
		if got := historyHash(t, path); got != row.history {
			t.Errorf("%s has the hash %s, not %s: Apply has another meaning; raise EntryVersion and record a history for it", path, got, row.history)
		}
	}
	golden, err := filepath.Glob(filepath.Join("testdata", "snapshot-v*.bin"))
	if err != nil || len(golden) != len(row.restored) {
		t.Fatalf("%d golden snapshots, the row has %d; %v", len(golden), len(row.restored), err)
	}
	for _, path := range golden {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Restore(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		_, whole := m.State().Hash()
		if got := hex.EncodeToString(whole[:8]); got != row.restored[filepath.Base(path)] {
			t.Errorf("%s restores to %s, not to %s: raise SnapshotVersion and add a golden file for it", path, got,
				row.restored[filepath.Base(path)])
		}
		if version := binary.BigEndian.Uint32(data[len(snapshot.Magic):]); version < OldestEntryVersion {
			continue
		}
		if !bytes.Equal(snapshotOf(t, m.State()), data) {
			t.Errorf("%s is written back differently: raise SnapshotVersion", path)
		}
	}
}

// historyHash applies the entries of a file, each with a length prefix, and hashes the results.
func historyHash(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	from, sum, m := bufio.NewReader(file), sha256.New(), New()
	index := uint64(1)
	for data, ok := nextRecorded(t, from); ok; data, ok = nextRecorded(t, from) {
		hashApplied(t, sum, m.Apply(index, 1, data))
		index++
	}
	if index < recordedEntries {
		t.Fatalf("%s ends after %d entries", path, index-1)
	}
	_, whole := m.State().Hash()
	_, _ = sum.Write(whole[:])
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// hashApplied adds an entry's clock, results and events to a hash. Numbers identify the fields of Go types, so that
// renaming one changes nothing. The rows of versions 2 to 4 were made with the names; builds of those versions verify
// them.
func hashApplied(t *testing.T, sum hash.Hash, applied Applied) {
	t.Helper()
	add := func(data []byte) { _, _ = sum.Write(append(binary.AppendUvarint(nil, uint64(len(data))), data...)) }
	result := func(message *logpb.Result) {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		add(data)
	}
	add(encodeFields(t, clockFields(applied.Clock)))
	for _, one := range applied.Results {
		result(one)
	}
	for _, event := range applied.Events {
		add(encodeFields(t, eventFields(event)))
		result(event.Result)
	}
}

// clockFields are a clock's fields, by number from 1. Numbers are never reused.
func clockFields(c Clock) []any { return []any{c.Now, c.WallEarly, c.WallLate, c.Shift} }

// eventFields are an event's fields except its result, by number from 1. Numbers are never reused.
func eventFields(e effect.Event) []any {
	return []any{
		uint64(e.Kind), e.Quota, e.Holder, e.Lease, e.Fence, e.Ticket, e.Amount, uint64(e.Reason), e.Duration, e.Task, uint64(e.Outcome),
		e.Workflow, e.Step,
	}
}

// encodeFields encodes the fields that are set, each after its number.
func encodeFields(t *testing.T, fields []any) (data []byte) {
	t.Helper()
	for i, field := range fields {
		number := protowire.Number(i + 1)
		switch v := field.(type) {
		case int64:
			if v != 0 {
				data = protowire.AppendVarint(protowire.AppendTag(data, number, protowire.VarintType), protowire.EncodeZigZag(v))
			}
		case uint64:
			if v != 0 {
				data = protowire.AppendVarint(protowire.AppendTag(data, number, protowire.VarintType), v)
			}
		case string:
			if v != "" {
				data = protowire.AppendString(protowire.AppendTag(data, number, protowire.BytesType), v)
			}
		default:
			t.Fatalf("field %d is of type %T", number, field)
		}
	}
	return data
}

// TestHashApplied_CoversEachField: each field of a clock and an event changes the hash of an entry's outcome, including
// new fields.
func TestHashApplied_CoversEachField(t *testing.T) {
	hashOf := func(applied Applied) string {
		sum := sha256.New()
		hashApplied(t, sum, applied)
		return hex.EncodeToString(sum.Sum(nil))
	}
	seen := map[string]string{hashOf(Applied{Events: []effect.Event{{}}}): "nothing"}
	try := func(name string, applied Applied) {
		got := hashOf(applied)
		if other, twice := seen[got]; twice {
			t.Errorf("%s hashes like %s", name, other)
		}
		seen[got] = name
	}
	change := func(of reflect.Value) {
		switch of.Kind() {
		case reflect.String:
			of.SetString("x")
		case reflect.Pointer:
			of.Set(reflect.ValueOf(&logpb.Result{Kind: &logpb.Result_Done{Done: &logpb.Done{}}}))
		case reflect.Uint64:
			of.SetUint(1)
		default:
			of.SetInt(1)
		}
	}
	for i := range reflect.TypeFor[Clock]().NumField() {
		applied := Applied{Events: []effect.Event{{}}}
		change(reflect.ValueOf(&applied.Clock).Elem().Field(i))
		try(reflect.TypeFor[Clock]().Field(i).Name, applied)
	}
	for i := range reflect.TypeFor[effect.Event]().NumField() {
		applied := Applied{Events: []effect.Event{{}}}
		change(reflect.ValueOf(&applied.Events[0]).Elem().Field(i))
		try(reflect.TypeFor[effect.Event]().Field(i).Name, applied)
	}
}

// recordedEntries is the number of entries of a recorded history.
const recordedEntries = 1_500

// TestRecordVersion writes the files of this build's versions, with -update; existing ones are never rewritten.
func TestRecordVersion(t *testing.T) {
	if !*update {
		t.Skip("only with -update, for new versions")
	}
	create := func(name string, data []byte) {
		file, err := os.OpenFile(filepath.Join("testdata", name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var history []byte
	for _, data := range rapid.Custom(recordedHistory).Example(1) {
		history = append(binary.AppendUvarint(history, uint64(len(data))), data...)
	}
	create(fmt.Sprintf("history-v%d.bin", EntryVersion), history)
	create(fmt.Sprintf("snapshot-v%d.bin", SnapshotVersion), snapshotOf(t, livelier(t).Freeze()))
	create(fmt.Sprintf("snapshot-v%d-tasks.bin", SnapshotVersion), snapshotOf(t, taskWorld(t).m.Freeze()))
}

// recordedHistory draws a long history of random commands, like TestRandomHistories.
func recordedHistory(rt *rapid.T) [][]byte {
	w, h := newWorld(rt), &history{T: rt, seq: map[uint64]uint64{}}
	w.apply(applyQuotas(randomWorldQuotas()...), workflows(randomWorkflows(rt)...))
	for len(w.entries) < recordedEntries {
		w.now += rapid.SampledFrom([]int64{0, millisecond, 300 * millisecond, second, 4 * second, minute}).Draw(rt, "sleep")
		w.early, w.late = -rapid.Int64Range(0, second).Draw(rt, "early"), rapid.Int64Range(0, second).Draw(rt, "late")
		var commands []*logpb.Command
		for range rapid.IntRange(1, 4).Draw(rt, "commands") {
			commands = append(commands, h.command())
		}
		w.apply(commands...)
		h.learn(w.last)
	}
	return w.entries
}
