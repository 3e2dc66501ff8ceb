package fsm

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/snapshot"
)

// TestImports_AreDeterministic keeps clocks, randomness, locks and I/O out: only listed imports are allowed.
func TestImports_AreDeterministic(t *testing.T) {
	allowed := map[string]bool{
		"bufio": true, "bytes": true, "cmp": true, "container/heap": true, "crypto/sha256": true, "encoding/binary": true, "errors": true,
		"fmt": true, "hash": true,
		"hash/crc32": true, "hash/fnv": true, "io": true, "math": true, "math/big": true, "math/bits": true, "slices": true, "strings": true,
		"unicode/utf8": true, "github.com/tidwall/btree": true,
		"google.golang.org/protobuf/encoding/protowire": true, "google.golang.org/protobuf/proto": true,
		// Reads the numbers of fields, once. Range has a random order and is not called (it would be a loop over a
		// map).
		"google.golang.org/protobuf/reflect/protoreflect": true,
	}
	const leaf = "github.com/quotad/quotad/fsm/" // its sources are checked as well, or generated
	eachSource(t, func(fset *token.FileSet, file *ast.File) {
		reflects := false
		for _, spec := range file.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			if !allowed[path] && !strings.HasPrefix(path, leaf) {
				t.Errorf("%s imports %s", file.Name.Name, path)
			}
			reflects = reflects || strings.HasSuffix(path, "/protoreflect")
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && reflects && strings.HasPrefix(call.Sel.Name, "Range") {
				t.Errorf("%s: %s has a random order", fset.Position(n.Pos()), call.Sel.Name)
			}
			return true
		})
	})
}

// TestMapLoops_SayWhyOrderIsIrrelevant requires a comment at every loop over a map: why its order does not matter.
func TestMapLoops_SayWhyOrderIsIrrelevant(t *testing.T) {
	for _, sources := range folders(t) {
		rangesKnowingly(t, sources)
	}
}

func rangesKnowingly(t *testing.T, sources []string) {
	t.Helper()
	var files []*ast.File
	fset := token.NewFileSet()
	for _, name := range sources {
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	checker := types.Config{Importer: nil, Error: func(error) {}}
	_, _ = checker.Check("fsm", fset, files, info) // an unresolved expression has no type, and is not one of our maps
	for _, file := range files {
		commented := map[int]bool{}
		for _, group := range file.Comments {
			for _, c := range group.List {
				commented[fset.Position(c.Pos()).Line] = true
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			loop, ok := n.(*ast.RangeStmt)
			if !ok {
				return true
			}
			if typed := info.Types[loop.X].Type; typed != nil {
				line := fset.Position(loop.Pos()).Line
				if _, isMap := typed.Underlying().(*types.Map); isMap && !commented[line] && !commented[line-1] {
					t.Errorf("%s ranges over a map without saying why its order does not matter", fset.Position(loop.Pos()))
				}
			}
			return true
		})
	}
}

// folders returns the sources of the machine and of each of its leaves, except generated ones.
func folders(t *testing.T) (all [][]string) {
	t.Helper()
	for _, folder := range []string{
		".", "accounts", "cow", "dedup", "effect", "entry", "field", "fixed", "ledger", "levels", "rangeset", "snapshot", "task", "workflow",
	} {
		names, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
		if len(names) == 0 {
			t.Fatalf("there are no sources in %s", folder)
		}
		all = append(all, names)
	}
	whole, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range whole {
		known := slices.ContainsFunc(all, func(names []string) bool { return slices.Contains(names, name) })
		if !known && !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, ".pb.go") {
			t.Errorf("nothing looks at %s", name)
		}
	}
	return all
}

func eachSource(t *testing.T, fn func(*token.FileSet, *ast.File)) {
	t.Helper()
	for _, name := range slices.Concat(folders(t)...) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		fn(fset, file)
	}
}

// TestApply_PanicsOnUnknownEntry: to continue would make replicas differ.
func TestApply_PanicsOnUnknownEntry(t *testing.T) {
	newer, err := proto.Marshal(&logpb.Entry{Version: EntryVersion + 1})
	if err != nil {
		t.Fatal(err)
	}
	older, err := proto.Marshal(&logpb.Entry{Version: OldestEntryVersion - 1})
	if err != nil {
		t.Fatal(err)
	}
	// A command whose oneof has a field number that this binary does not know.
	command := []byte{0xfa, 0x3f, 0x00} // field 1023, length 0
	unknown := append([]byte{0x08, EntryVersion, 0x2a, byte(len(command))}, command...)
	for name, data := range map[string][]byte{
		"a newer entry": newer, "an older entry": older, "an unknown command": unknown, "garbage": {0xff, 0xff, 0xff}, "an empty entry": {},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Fatal("it was applied")
				}
			}()
			New().Apply(1, 1, data)
		})
	}
}

// TestCommandKinds_KeepFieldNumbers: they are written to disk.
func TestCommandKinds_KeepFieldNumbers(t *testing.T) {
	want := map[string]int32{
		"open_session": 10, "close_session": 11, "reserve": 12, "consume": 13, "settle": 14, "release": 15, "renew": 16,
		"withdraw": 17, "report": 18, "begin_task": 20, "renew_task": 21, "end_task": 22, "retry_task": 23, "forget_task": 24,
		"apply_quotas": 30, "delete_quota": 31, "revoke_lease": 32, "put_member": 33,
		"delete_member": 34, "found": 35, "raise_epoch": 36, "set_limits": 37, "set_override": 38, "delete_workflow": 25,
		"reopen_quota": 74, "reset_clock": 75,
	}
	kinds := (&logpb.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	if kinds.Len() != len(want) {
		t.Fatalf("%d kinds, the table has %d", kinds.Len(), len(want))
	}
	for i := range kinds.Len() {
		if f := kinds.Get(i); want[string(f.Name())] != int32(f.Number()) {
			t.Errorf("%s has number %d, on disk it has %d", f.Name(), f.Number(), want[string(f.Name())])
		}
	}
}

// richWorld has something in every table.
func richWorld(t *testing.T) *world {
	w := newWorld(t)
	w.quotas(randomWorldQuotas()...)
	w.do(founds("c"))
	w.do(putMember("n1", "127.0.0.1:1"))
	w.do(holders(&logpb.HolderRule{Pattern: "boss", Class: 0, Weight: 3}))
	w.do(workflows(with(chain("chain", "boss", "h", "low-1"), func(w *logpb.Workflow) { w.Threshold = 1 }), chain("rest", "std-1", "std-2")))
	session := w.do(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "h"}}}).GetSessionOpened().Session
	a := ask("h", itemOf("rate", 3), itemOf("slots", 1), itemOf("org/team", 2), itemOf("hour", 5))
	a.Consume = true
	numbered := reserve(a)
	numbered.Session, numbered.Seq = session, 1
	g := w.do(numbered).GetGranted()
	w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "rate", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(second)},
		{Quota: "hour", Cause: logpb.Cause_CAUSE_OK, Remaining: proto.Int64(3)},
	}}))
	keyed := reserve(ask("h", itemOf("anchored", 4)))
	keyed.IdempotencyKey = "k"
	w.do(keyed)
	waiting := ask("boss", itemOf("slots", 3))
	waiting.WaitNs = minute
	w.do(reserve(waiting))
	w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Actual: []*logpb.Item{itemOf("rate", 4)}}))
	w.do(beginsOn("waits", "hour", "org/team"))
	w.do(with(ends("waits", w.m.fence(), hasFailed), func(c *logpb.Command) { c.GetEndTask().Detail = "exit code 1" }))
	w.do(begins("under-way", "h", 1))
	w.do(begins("shelved", "h", 1))
	w.do(ends("shelved", w.m.fence(), hasFailed))
	expiring := ask("gone", itemOf("slots", 1), itemOf("rate", 1))
	expiring.TtlNs = second
	w.do(reserve(expiring))
	w.sleep(second)
	return w
}

// TestRestore_GoldenSnapshot: a snapshot of version 1 can always be restored, to the same state.
func TestRestore_GoldenSnapshot(t *testing.T) {
	path := filepath.Join("testdata", "snapshot-v1.bin")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Restore(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	counts := m.State().Counts()
	if counts.Quotas != 9 || counts.Leases == 0 || counts.Waiting != 1 || counts.Sessions != 1 || counts.Operations == 0 {
		t.Fatalf("the golden snapshot holds %+v", counts)
	}
	if all := m.State().Workflows("", "", 10, m.State().Clock()); len(all) != 2 || !all[0].Sequential {
		t.Fatalf("the golden snapshot holds %+v", all)
	}
}

// TestRestore_RefusesDamagedSnapshots: a snapshot that is cut off anywhere, or has any byte changed, is refused as damaged; a newer
// one has its own error. Compared with its state, any incomplete one is refused.
func TestRestore_RefusesDamagedSnapshots(t *testing.T) {
	var buffer bytes.Buffer
	state := richWorld(t).m.Freeze()
	if err := state.WriteSnapshot(&buffer); err != nil {
		t.Fatal(err)
	}
	whole := buffer.Bytes()
	if err := state.VerifyWritten(bytes.NewReader(whole)); err != nil {
		t.Fatal(err)
	}
	// in any order
	for name, other := range map[string][]byte{"cut off": whole[:len(whole)-1], "longer": append(bytes.Clone(whole), 0), "empty": nil} {
		if err := state.VerifyWritten(bytes.NewReader(other)); !errors.Is(err, ErrCorruptSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := 0; n < len(whole); n += 17 { // each is compared up to the changed byte
		flipped := bytes.Clone(whole)
		flipped[n] ^= 1
		if err := compare(state, flipped); !errors.Is(err, ErrCorruptSnapshot) {
			t.Fatalf("flipped at %d: %v", n, err)
		}
	}
	for n := range whole {
		if _, err := Restore(bytes.NewReader(whole[:n])); !errors.Is(err, ErrCorruptSnapshot) {
			t.Fatalf("cut off at %d: %v", n, err)
		}
		flipped := bytes.Clone(whole)
		flipped[n] ^= 0x10
		if _, err := Restore(bytes.NewReader(flipped)); !errors.Is(err, ErrCorruptSnapshot) && !errors.Is(err, ErrNewerSnapshot) {
			t.Fatalf("flipped at %d: %v", n, err)
		}
	}
	if _, err := Restore(bytes.NewReader(append(bytes.Clone(whole), 0))); !errors.Is(err, ErrCorruptSnapshot) {
		t.Fatalf("with a byte behind it: %v", err)
	}
	newer := bytes.Clone(whole)
	newer[len(snapshot.Magic)+3] = SnapshotVersion + 1
	if _, err := Restore(bytes.NewReader(newer)); !errors.Is(err, ErrNewerSnapshot) {
		t.Fatalf("a newer version: %v", err)
	}
}

// compare is VerifyWritten without the check of the state.
func compare(state *State, written []byte) error {
	compared := &comparing{with: bytes.NewReader(written)}
	if err := state.WriteSnapshot(compared); err != nil {
		return err
	}
	return compared.ended()
}

// TestVerifyWritten_ChecksState: an exact copy of an inconsistent state is refused.
func TestVerifyWritten_ChecksState(t *testing.T) {
	w := richWorld(t)
	w.m.lastLease--
	var written bytes.Buffer
	if err := w.m.State().WriteSnapshot(&written); err != nil {
		t.Fatal(err)
	}
	if err := w.m.State().VerifyWritten(&written); !errors.Is(err, ErrCorruptSnapshot) {
		t.Error(err)
	}
}

// TestFrozenStateStandsStill: a frozen state does not change, however the machine continues.
func TestFrozenStateStandsStill(t *testing.T) {
	w := richWorld(t)
	frozen := w.m.Freeze()
	var before, after bytes.Buffer
	if err := frozen.WriteSnapshot(&before); err != nil {
		t.Fatal(err)
	}
	written := make(chan error)
	go func() {
		for range 20 {
			var discarded bytes.Buffer
			if err := frozen.WriteSnapshot(&discarded); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	for range 200 {
		w.now += 300 * millisecond
		a := ask("h", itemOf("org/team", 1), itemOf("hour", 1))
		a.Consume = true
		w.do(reserve(a))
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err := frozen.WriteSnapshot(&after); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before.Bytes(), after.Bytes()) {
		t.Fatal("the frozen state changed")
	}
}

// TestApply_SurvivesHostileValues: the API's checks are not the only guard.
func TestApply_SurvivesHostileValues(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("q", 100, minute), slotsOf("s", 1))
	g := w.granted(ask("me", itemOf("q", 5)))
	many := ask("me")
	for range 10_000 {
		many.Items = append(many.Items, itemOf("q", 1))
	}
	waits := ask("me", itemOf("q", 1))
	waits.WaitNs = math.MaxInt64
	ttl := ask("me", itemOf("q", 1))
	ttl.TtlNs = math.MinInt64
	class := ask("me", itemOf("q", 1))
	class.Class = proto.Int32(-1)
	negative := []*logpb.Signal{{Quota: "q", Cause: logpb.Cause_CAUSE_OK, Remaining: proto.Int64(-5)}}
	for name, c := range map[string]struct {
		command *logpb.Command
		reason  logpb.Reason
	}{
		"no amount":       {reserve(ask("me", itemOf("q", 0))), logpb.Reason_REASON_INVALID},
		"negative amount": {reserve(ask("me", itemOf("q", -1))), logpb.Reason_REASON_INVALID},
		"2^53":            {reserve(ask("me", itemOf("q", 1<<53))), logpb.Reason_REASON_INVALID},
		"largest int64":   {reserve(ask("me", itemOf("q", math.MaxInt64))), logpb.Reason_REASON_INVALID},
		"10,000 items":    {reserve(many), logpb.Reason_REASON_INVALID},
		"no items":        {reserve(ask("me")), logpb.Reason_REASON_INVALID},
		"an item twice":   {reserve(ask("me", itemOf("q", 1), itemOf("q", 1))), logpb.Reason_REASON_INVALID},
		"no holder":       {reserve(ask("", itemOf("q", 1))), logpb.Reason_REASON_INVALID},
		"endless wait":    {reserve(waits), logpb.Reason_REASON_INVALID},
		"negative ttl":    {reserve(ttl), logpb.Reason_REASON_INVALID},
		"class above all": {reserve(class), logpb.Reason_REASON_INVALID},
		"unknown quota":   {reserve(ask("me", itemOf("nowhere", 1))), logpb.Reason_REASON_UNKNOWN_QUOTA},
		"operation 0":     {consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence}), logpb.Reason_REASON_INVALID},
		"more than is held": {
			consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1, Items: []*logpb.Item{itemOf("q", 6)}}), logpb.Reason_REASON_NOT_HELD,
		},
		"another's quota": {
			consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1, Items: []*logpb.Item{itemOf("s", 1)}}), logpb.Reason_REASON_NOT_HELD,
		},
		"no such operation":     {settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 9, Final: true}), logpb.Reason_REASON_STALE_OPERATION},
		"an empty settle":       {settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1}), logpb.Reason_REASON_INVALID},
		"another fence":         {release(&logpb.Release{Lease: g.Lease, Fence: 0}), logpb.Reason_REASON_STALE_FENCE},
		"a fence of the future": {release(&logpb.Release{Lease: g.Lease, Fence: math.MaxUint64}), logpb.Reason_REASON_NEVER_ISSUED},
		"no such lease":         {release(&logpb.Release{Lease: 99, Fence: g.Fence}), logpb.Reason_REASON_STALE_FENCE},
		"no such ticket":        {withdraw(7), logpb.Reason_REASON_UNKNOWN_TICKET},
		"a negative signal": {
			report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: negative}), logpb.Reason_REASON_STALE_OPERATION,
		},
		"no such session": {
			&logpb.Command{Session: 9, Seq: 1, Kind: reserve(ask("me", itemOf("q", 1))).Kind}, logpb.Reason_REASON_UNKNOWN_SESSION,
		},
		"a quota's own parent": {
			applyQuotas(&logpb.Quota{Name: "x", Parent: "x", Rule: rateOf("x", 1, minute).Rule}), logpb.Reason_REASON_IMPOSSIBLE_QUOTA,
		},
		"no parent": {
			applyQuotas(&logpb.Quota{Name: "x", Parent: "y", Rule: rateOf("x", 1, minute).Rule}), logpb.Reason_REASON_IMPOSSIBLE_QUOTA,
		},
		"no rule":      {applyQuotas(&logpb.Quota{Name: "x"}), logpb.Reason_REASON_IMPOSSIBLE_QUOTA},
		"another kind": {applyQuotas(slotsOf("q", 1)), logpb.Reason_REASON_KIND_CHANGE},
		"a quota in use": {
			&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: "q"}}}, logpb.Reason_REASON_QUOTA_IN_USE,
		},
		"no such quota": {
			&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: "x"}}}, logpb.Reason_REASON_UNKNOWN_QUOTA,
		},
		"the same epoch": {raisesEpoch(0), logpb.Reason_REASON_EPOCH_NOT_RAISED},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.fails(c.command, c.reason)
		})
	}
}

// FuzzApply: any entry of known commands that can be decoded is answered, and the totals stay the sums of their parts.
func FuzzApply(f *testing.F) {
	w := newWorld(f)
	w.quotas(randomWorldQuotas()...)
	w.granted(ask("me", itemOf("rate", 1), itemOf("slots", 1)))
	for _, data := range w.entries {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entry := new(logpb.Entry)
		if proto.Unmarshal(data, entry) != nil {
			return
		}
		entry.Version = EntryVersion
		for _, command := range entry.Commands {
			if command.Kind == nil {
				return // stops a node by design
			}
		}
		known, err := proto.Marshal(entry)
		if err != nil {
			return
		}
		w := newWorld(t)
		w.quotas(randomWorldQuotas()...)
		w.granted(ask("me", itemOf("rate", 1), itemOf("slots", 1)))
		w.m.Apply(w.index+1, 1, known)
		if err := w.m.State().Verify(); err != nil {
			t.Fatal(err)
		}
	})
}
