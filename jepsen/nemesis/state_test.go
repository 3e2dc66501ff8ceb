package nemesis

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRefused_TellsDamageByCodeAndWords: a node that lost a part of its disk has to end with one exit code and to say so, and nothing else will do.
func TestRefused_TellsDamageByCodeAndWords(t *testing.T) {
	const lost, damaged = "quotad: /d: node: it is missing: " + lostWords, "quotad: /d: " + damagedWords + ": node"
	for name, c := range map[string]struct {
		ends    []string
		said    string
		emptied bool
		ok      bool
	}{
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
			p := part{emptied: c.emptied}
			if err := p.refused(c.ends, c.said, "/d"); (err == nil) != c.ok {
				t.Errorf("judged %v", err)
			}
		})
	}
}

// TestLose_TakesAndGivesBack: what a part lost comes back as it was, and the fault knows which parts no node starts without.
func TestLose_TakesAndGivesBack(t *testing.T) {
	for _, empty := range []bool{false, true} {
		dir, kept := t.TempDir(), t.TempDir()
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
			if data, err := os.ReadFile(file); string(data) != "all" {
				t.Errorf("%s came back as %q, %v", p.path, data, err)
			}
		}
	}
}
