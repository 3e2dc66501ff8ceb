package logstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// held is the state that a stopped node's disk holds.
type held struct {
	whole, ledger [32]byte
	index, term   uint64
	vote          string
}

// stateOf reads a stopped node's disk.
func stateOf(dir string) (held, error) {
	offline, err := logstore.OpenOffline(dir)
	if err != nil {
		return held{}, err
	}
	defer func() { _ = offline.Close() }()
	state, err := offline.State()
	if err != nil {
		return held{}, err
	}
	values, err := offline.Values()
	if err != nil {
		return held{}, err
	}
	term, errTerm := values.Number(logstore.KeyTerm)
	vote, errVote := values.Value(logstore.KeyVote)
	h := held{index: state.Index(), term: term, vote: string(vote)}
	h.ledger, h.whole = state.Hash()
	return h, errors.Join(errTerm, errVote)
}

func (h held) String() string {
	return fmt.Sprintf("%x at %d, term %d, vote %s", h.whole[:8], h.index, h.term, h.vote)
}

// leadsWith checks that a node started alone has the ledger that its disk holds. Other state differs: the node is elected, and its clock
// advances.
func (h held) leadsWith(t *testing.T, n *raftnode.Node) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	index, ledger, _, err := n.StateHash(ctx, h.index)
	if err == nil && ledger != h.ledger {
		err = fmt.Errorf("its ledger is %x at %d, its disk has %x at %d", ledger[:8], index, h.ledger[:8], h.index)
	}
	return err
}

// spoilt is one file of a data directory, truncated or with one flipped bit.
type spoilt struct {
	file string
	at   int64
	cut  bool
	bit  int
}

func (s spoilt) String() string {
	if s.cut {
		return fmt.Sprintf("%s cut off at byte %d", s.file, s.at)
	}
	return fmt.Sprintf("%s with bit %d of byte %d flipped", s.file, s.bit, s.at)
}

// spoil applies the damage to a directory.
func (s spoilt) spoil(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, s.file)
	if !s.cut {
		logstore.Flip(t, path, s.at, 1<<s.bit)
	} else if err := os.Truncate(path, s.at); err != nil {
		t.Fatal(err)
	}
}

// everywhere is the size in bytes up to which a file is damaged at every offset.
const everywhere = 8 << 10

// places draws the offsets at which to damage a file: every one of a small file; for a large one its head, its end and some in between.
// Runs of zeros get only a few.
func places(random *rand.Rand, data []byte, most int) []int64 {
	var all []int64
	for at := 0; at < len(data); {
		zeros := len(data[at:]) - len(bytes.TrimLeft(data[at:], "\x00"))
		if zeros <= 32 { // such as in a number
			all = append(all, int64(at))
			at++
			continue
		}
		for i := range 4 {
			all = append(all, int64(at+i*zeros/4))
		}
		at += zeros
	}
	if len(all) > most && (testing.Short() || len(data) > everywhere) {
		kept := slices.Clone(all[:max(1, most/4)])
		for _, i := range random.Perm(len(all) - max(1, most/4))[:most*3/4] {
			kept = append(kept, all[max(1, most/4)+i])
		}
		all = kept
	}
	return all
}

// flipsOr returns how many offsets or bits of a file to try.
func flipsOr(most, short int) int {
	if flips, _ := strconv.Atoi(os.Getenv("QUOTAD_FLIPS")); flips > 0 {
		return flips
	}
	if testing.Short() {
		return short
	}
	return most
}

// TestFlippedBits_AreFound: flips bits of every file of a stopped node's data directory, and truncates the files. The node starts with the
// same state, or refuses and names the file and the way out. It never panics and never forgets what its witness knows. QUOTAD_FLIPS is how
// many offsets of a file to try; the default is a sample, 1000000 is all.
func TestFlippedBits_AreFound(t *testing.T) {
	most := flipsOr(96, 2)
	random := logstore.FlipSeed(t)
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		conf := stopped(t, s)
		if err := reopens(t, conf); err != nil { // so that its term is in its log
			t.Fatal(err)
		}
		want, err := stateOf(conf.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLease = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
		var files []string
		err = filepath.WalkDir(conf.DataDir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				name, _ := filepath.Rel(conf.DataDir, path)
				files = append(files, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "data")
		for _, file := range files {
			content, err := os.ReadFile(filepath.Join(conf.DataDir, file))
			if err != nil {
				t.Fatal(err)
			}
			same, refused := 0, 0
			for _, at := range places(random, content, most) {
				ways := []spoilt{{file: file, at: at, bit: random.IntN(8)}, {file: file, at: at, cut: true}}
				if testing.Short() { // the next seed draws another one
					way := random.IntN(len(ways))
					ways = ways[way : way+1]
				}
				for _, one := range ways {
					fresh(t, dir, conf.DataDir)
					one.spoil(t, dir)
					if tells(t, one, conf, dir, want) {
						refused++
					} else {
						same++
					}
				}
			}
			t.Logf("%s, %d bytes: %d times the same state, %d times refused", file, len(content), same, refused)
		}
	})
}

// fresh makes dir a copy of a data directory. Zeros in large files become holes.
func fresh(t *testing.T, dir, from string) {
	t.Helper()
	err := os.RemoveAll(dir)
	if err == nil {
		err = filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(from, path)
			to := filepath.Join(dir, name)
			if err != nil || entry.IsDir() {
				return errors.Join(err, os.MkdirAll(to, 0o700))
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(to, logstore.WithoutReserve(data), 0o600), os.Truncate(to, int64(len(data))))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tells checks the verdicts of a node and of verify on a damaged directory, and returns whether the node refused.
func tells(t *testing.T, one spoilt, conf raftnode.Config, dir string, want held) (refused bool) {
	t.Helper()
	conf.DataDir = dir
	verify := func() error {
		offline, err := logstore.OpenOffline(dir)
		if err != nil {
			return err
		}
		return errors.Join(offline.Verify(), offline.Close())
	}
	before := contents(t, dir)
	errVerify := verify()
	if contents(t, dir) != before {
		t.Errorf("%s: verify changed it", one)
	}
	state, errState := stateOf(dir)
	n, err := raftnode.Open(conf)
	if err != nil {
		if !errors.Is(err, logstore.ErrDamaged) && !errors.Is(err, logstore.ErrWiped) && !errors.Is(err, raftnode.ErrForeignDataDir) {
			t.Errorf("%s: it refuses with %v", one, err)
		}
		if errVerify == nil && !errors.Is(err, raftnode.ErrForeignDataDir) {
			t.Errorf("%s: it refuses with %v, and verify finds nothing", one, err)
		}
		if !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: it does not say where: %v", one, err)
		}
		if !errors.Is(err, raftnode.ErrForeignDataDir) {
			placed(t, one, dir, err)
		}
		return true
	}
	if state != want {
		t.Errorf("%s: it starts, with %s, %v; verify says %v; want %s", one, state, errState, errVerify, want)
	}
	if err := want.leadsWith(t, n); err != nil {
		t.Errorf("%s: it starts: %v", one, err)
	}
	n.Kill()
	return false
}

// placed checks that a refusal names a file of the directory, the place in it if only a part is damaged, and the way out.
func placed(t *testing.T, one spoilt, dir string, err error) {
	t.Helper()
	file, place := "", ""
	var damage *logstore.DamageError
	var lost *logstore.LostPartError
	switch {
	case errors.As(err, &lost):
		file, place = lost.Part, "the part is missing or older"
	case errors.As(err, &damage):
		file, place = damage.File, damage.Place
	}
	if file == "" || !strings.Contains(err.Error(), file) {
		t.Errorf("%s: it does not name a file: %v", one, err)
	}
	if _, statErr := os.Stat(filepath.Join(dir, file)); statErr != nil && lost == nil {
		t.Errorf("%s: it names a file that is not there: %v", one, err)
	}
	if place == "" {
		t.Errorf("%s: it names no place: %v", one, err)
	}
	if file != one.file && !strings.HasPrefix(one.file, file+string(filepath.Separator)) { // or only the folder of a missing file
		t.Errorf("%s: it names %s: %v", one, file, err)
	}
	if !strings.Contains(err.Error(), "replace the node") && !strings.Contains(err.Error(), "remove the member") &&
		!strings.Contains(err.Error(), "start the node") {
		t.Errorf("%s: it does not say what to do: %v", one, err)
	}
}

// contents describes all files. The zeros at the end of large ones are left out of the digest.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		_, _ = fmt.Fprintf(&out, "%s %d %x\n", strings.TrimPrefix(path, dir), len(data), sha256.Sum256(logstore.WithoutReserve(data)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}
