package logstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// TestDamage_NamesPlaceAndRemedy: an error about a damaged log names an existing file, the place in it, and advice, also when Migrate
// reads the log.
func TestDamage_NamesPlaceAndRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		place string
		spoil func(t *testing.T, dir string, log Store)
	}{
		"an entry without its sum": {"log entry 3001", func(t *testing.T, _ string, log Store) {
			if err := log.StoreLog(&raft.Log{Index: 3001, Term: 4, Data: []byte("without a sum")}); err != nil {
				t.Fatal(err)
			}
		}},
		"a log without its snapshot": {"log entry 5", func(t *testing.T, dir string, _ Store) {
			if err := os.RemoveAll(filepath.Join(dir, "snapshots")); err != nil {
				t.Fatal(err)
			}
		}},
		"a log that begins too late": {"log entry 2000", func(t *testing.T, _ string, log Store) {
			if err := log.DeleteRange(5, 1999); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bothStores(t, func(t *testing.T, kind Kind) {
				dir := t.TempDir()
				fillStore(t, dir, kind)
				log := openRaw(t, dir, kind)
				c.spoil(t, dir, log)
				if err := log.Close(); err != nil {
					t.Fatal(err)
				}
				offline, err := OpenOffline(dir)
				if err != nil {
					t.Fatal(err)
				}
				reported(t, dir, c.place, offline.Verify())
				if err := offline.Close(); err != nil {
					t.Fatal(err)
				}
				reported(t, dir, c.place, Migrate(dir, other(kind)))
			})
		})
	}
}

// reported checks the error for a damaged directory.
func reported(t *testing.T, dir, place string, err error) {
	t.Helper()
	var damage *DamageError
	if !errors.As(err, &damage) {
		t.Fatalf("it names no place: %v", err)
	}
	if info, statErr := os.Stat(filepath.Join(dir, damage.File)); statErr != nil || info.IsDir() {
		t.Errorf("%q is no file of the directory: %v", damage.File, err)
	}
	if damage.Place != place {
		t.Errorf("place %q, want %q: %v", damage.Place, place, err)
	}
	if text := err.Error(); !strings.Contains(text, damage.File) || !strings.Contains(text, place) || !strings.Contains(text, replaceIt) {
		t.Errorf("it says only: %v", err)
	}
}
