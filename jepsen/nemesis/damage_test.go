package nemesis

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/quotad/quotad/jepsen/disk"
)

// TestRefused_FindsDamageByCodeAndText: a node that lost a part of its disk must end with this exit code and this reason.
func TestRefused_FindsDamageByCodeAndText(t *testing.T) {
	const lost, damaged = "quotad: /d: node: missing: " + lostWords, "quotad: /d: " + damagedWords + ": node"
	for name, c := range map[string]struct {
		ends    []string
		said    string
		emptied bool
		later   bool
		ok      bool
	}{
		"flipped bits, found while it votes": {ends: []string{refusal}, said: votes + "\n" + damaged, emptied: true, later: true, ok: true},
		"flipped bits, and a panic":          {ends: []string{"exit status 2"}, said: damaged, emptied: true, later: true},
		"flipped bits, and no word of them":  {ends: []string{refusal}, said: votes + "\n/d", emptied: true, later: true},
		"a missing part is lost":             {ends: []string{refusal, refusal}, said: lost, ok: true},
		"an empty part is lost":              {ends: []string{refusal}, said: lost, emptied: true, ok: true},
		"an empty part is damaged":           {ends: []string{refusal}, said: damaged, emptied: true, ok: true},
		"a missing part is only damaged":     {ends: []string{refusal}, said: damaged},
		"it runs on":                         {said: lost},
		"another code":                       {ends: []string{"exit status 1"}, said: lost},
		"another code the second time":       {ends: []string{refusal, "exit status 1"}, said: lost},
		"it crashed":                         {ends: []string{"exit status 2"}, said: lost},
		"it voted first":                     {ends: []string{refusal}, said: votes + "\n" + lost},
		"it does not say where":              {ends: []string{refusal}, said: lostWords},
		"it does not say what":               {ends: []string{refusal}, said: "quotad: /d: permission denied"},
		"an empty part, and it says nothing": {ends: []string{refusal}, said: "/d", emptied: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := part{emptied: c.emptied, later: c.later}
			if err := p.refused(c.ends, c.said, "/d"); (err == nil) != c.ok {
				t.Errorf("judged %v", err)
			}
		})
	}
}

// TestLose_TakesAndReturns: a lost part is restored unchanged, and the fault knows which parts a node needs.
func TestLose_TakesAndReturns(t *testing.T) {
	for _, empty := range []bool{false, true} {
		at, kept := t.TempDir(), t.TempDir()
		dir := filepath.Join(at, "data")
		d, err := disk.Mount(filepath.Join(at, "backing"), dir)
		if errors.Is(err, disk.ErrUnavailable) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		file := filepath.Join(dir, "wal", "wal-meta.db")
		if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("all"), 0o600); err != nil {
			t.Fatal(err)
		}
		parts, err := partsOf(dir)
		if err != nil || len(parts) != 2 {
			t.Fatalf("%v, %v", parts, err)
		}
		for _, p := range parts {
			if !p.needed {
				t.Errorf("%s is not needed", p.path)
			}
			copied, err := p.lose(kept, empty)
			if err != nil || p.emptied != empty {
				t.Fatalf("%+v, %v", p, err)
			}
			if data, _ := os.ReadFile(file); len(data) > 0 {
				t.Errorf("%s is still there: %q", p.path, data)
			}
			if err := p.giveBack(copied); err != nil {
				t.Fatal(err)
			}
			if _, err := d.PowerCut(rand.New(rand.NewPCG(1, 1)), false); err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(file); string(data) != "all" {
				t.Errorf("%s came back as %q, %v", p.path, data, err)
			}
		}
	}
}

// TestPartsOf_NamesNeededFiles: the log's last file is needed and, once there is one, the snapshots; older files are not.
func TestPartsOf_NamesNeededFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(place string) {
		path := filepath.Join(dir, filepath.FromSlash(place))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("all"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...string) {
		t.Helper()
		parts, err := partsOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range parts {
			if place, err := filepath.Rel(dir, p.path); err == nil && p.needed {
				got = append(got, filepath.ToSlash(place))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("needed are %q, want %q", got, want)
		}
	}
	write("node")
	write("wal/00000000000000000001-0000000000000000.wal")
	write("wal/00000000000000000070-0000000000000001.wal")
	write("snapshots/2-60-1.tmp/meta.json")
	check("node", "wal", "wal/00000000000000000070-0000000000000001.wal")
	write("snapshots/2-60-1/meta.json")
	check("node", "snapshots", "wal", "wal/00000000000000000070-0000000000000001.wal")
}
