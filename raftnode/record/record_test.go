package record_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode/record"
)

func TestRecord_RoundTrip(t *testing.T) {
	dir := t.TempDir()
	file, err := record.Create(filepath.Join(dir, "n1"))
	if err != nil {
		t.Fatal(err)
	}
	ledger := func() [32]byte { return [32]byte{1, 2, 3} }
	for index := uint64(255); index <= 257; index++ {
		file.Applied(&fsm.Applied{Index: index, Term: 3, Events: []effect.Event{{Kind: effect.EventExpired, Lease: index}}},
			[]byte{byte(index)}, ledger)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	cutOff(t, dir)
	var lines []*record.Line
	if err := record.Read(filepath.Join(dir, "n1"), func(line *record.Line) error {
		lines = append(lines, line)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 3 || lines[1].Index != 256 || lines[1].Term != 3 || len(lines[1].Payload) != 1 {
		t.Fatalf("read %+v", lines)
	}
	if lines[0].Ledger != "" || lines[1].Ledger[:6] != "010203" {
		t.Errorf("the ledger's hash stands at %q and %q", lines[0].Ledger, lines[1].Ledger)
	}
}

// cutOff appends half a line, as a process that is killed during a write leaves behind.
func cutOff(t *testing.T, dir string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "n1", "*"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("%v %v", paths, err)
	}
	file, err := os.OpenFile(paths[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"i":258,"t":`); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDigest_DiffersForEachField(t *testing.T) {
	base := func() *fsm.Applied {
		return &fsm.Applied{
			Index: 9, Results: []*logpb.Result{{Kind: &logpb.Result_Done{Done: &logpb.Done{}}}},
			Events: []effect.Event{{
				Kind: effect.EventGranted, Quota: "q", Fence: 7,
				Result: &logpb.Result{Kind: &logpb.Result_Renewed{Renewed: &logpb.Renewed{DeadlineNs: 5}}},
			}},
		}
	}
	first := record.Digest(base())
	if again := record.Digest(base()); again != first {
		t.Fatal("two digests of the same differ")
	}
	for name, change := range map[string]func(*fsm.Applied){
		"a result more":     func(a *fsm.Applied) { a.Results = append(a.Results, a.Results[0]) },
		"another result":    func(a *fsm.Applied) { a.Results[0] = &logpb.Result{} },
		"another fence":     func(a *fsm.Applied) { a.Events[0].Fence = 8 },
		"an event less":     func(a *fsm.Applied) { a.Events = nil },
		"another final one": func(a *fsm.Applied) { a.Events[0].Result.GetRenewed().DeadlineNs = 6 },
	} {
		changed := base()
		change(changed)
		if record.Digest(changed) == first {
			t.Errorf("%s: the digest is the same", name)
		}
	}
}
