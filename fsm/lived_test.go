package fsm

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// Most commands of history-v5.bin are refused, so its hash does not cover the effects of success. The commands of
// history-v5-lived.bin succeed: they name recently issued leases, operations, attempts, tickets and sessions, within
// limits that leave room.

const (
	// livedTimes is the least number of successes of each kind of command, and of each kind of result, in a lived
	// history.
	livedTimes = 20
	// livedStride is the number of entries between two checks of the whole state.
	livedStride = 50
	// livedBytes is the largest size of a recorded history.
	livedBytes = 190_000
)

// livedEvents are the kinds of events, which all occur in a lived history, with the version that introduces them. The
// linter requires new kinds here.
var livedEvents = map[effect.EventKind]int{
	effect.EventGranted:            OldestEntryVersion,
	effect.EventRefused:            OldestEntryVersion,
	effect.EventWaiting:            OldestEntryVersion,
	effect.EventWaitEnded:          OldestEntryVersion,
	effect.EventReleased:           OldestEntryVersion,
	effect.EventExpired:            OldestEntryVersion,
	effect.EventRevoked:            OldestEntryVersion,
	effect.EventCooldown:           OldestEntryVersion,
	effect.EventWindowClosed:       OldestEntryVersion,
	effect.EventResetLearned:       OldestEntryVersion,
	effect.EventCapped:             OldestEntryVersion,
	effect.EventOverrun:            OldestEntryVersion,
	effect.EventQuotaApplied:       OldestEntryVersion,
	effect.EventQuotaDeleted:       OldestEntryVersion,
	effect.EventReopened:           OldestEntryVersion,
	effect.EventBreaker:            OldestEntryVersion,
	effect.EventForecast:           OldestEntryVersion,
	effect.EventOverride:           OldestEntryVersion,
	effect.EventTaskBegun:          OldestEntryVersion,
	effect.EventTaskEnded:          OldestEntryVersion,
	effect.EventTaskShelved:        OldestEntryVersion,
	effect.EventTaskRetried:        OldestEntryVersion,
	effect.EventBackPressure:       OldestEntryVersion,
	effect.EventSequential:         OldestEntryVersion,
	effect.EventBaton:              OldestEntryVersion,
	effect.EventParallel:           OldestEntryVersion,
	effect.EventReopenedByOperator: OldestEntryVersion,
}

// livedNames are the quotas of a lived history that commands draw on; the pool is drawn twice as often.
var livedNames = []string{
	"minutely", "bursts", "ends", "org", "org/team", "daily", "hourly", "reported", "slots", "tight", "watched",
	"keys", "keys",
}

func livedPath(version int) string {
	return filepath.Join("testdata", fmt.Sprintf("history-v%d-lived.bin", version))
}

// livedTally counts the outcomes of a history's commands.
type livedTally struct {
	succeeded, results map[protoreflect.Name]int
	events             map[effect.EventKind]int
}

func newLivedTally() livedTally {
	return livedTally{
		succeeded: map[protoreflect.Name]int{}, results: map[protoreflect.Name]int{},
		events: make(map[effect.EventKind]int),
	}
}

// kindOf returns the name of a message's kind.
func kindOf(m proto.Message) protoreflect.Name {
	reflected := m.ProtoReflect()
	return reflected.WhichOneof(reflected.Descriptor().Oneofs().ByName("kind")).Name()
}

// count adds an entry's outcome. A command that is answered with a failure or a refusal did not succeed.
func (c *livedTally) count(commands []*logpb.Command, applied Applied) {
	for i, result := range applied.Results {
		c.results[kindOf(result)]++
		if result.GetFailure() == nil && result.GetRefusal() == nil {
			c.succeeded[kindOf(commands[i])]++
		}
	}
	for _, event := range applied.Events {
		c.events[event.Kind]++
	}
}

// missing returns the kinds that occur too rarely in a history of a version.
func (c *livedTally) missing(version int) (missing []string) {
	for _, kind := range kindsBy(&logpb.Command{}, version) {
		if n := c.succeeded[kind]; n < livedTimes {
			missing = append(missing, fmt.Sprintf("%s succeeded %d times", kind, n))
		}
	}
	for _, kind := range kindsBy(&logpb.Result{}, version) {
		if n := c.results[kind]; n < livedTimes {
			missing = append(missing, fmt.Sprintf("%d results are %s", n, kind))
		}
	}
	for kind, since := range livedEvents {
		if since <= version && c.events[kind] == 0 {
			missing = append(missing, fmt.Sprintf("no event is of kind %d", kind))
		}
	}
	return missing
}

// TestVersions_RiseWithSuccessfulCommands: each kind of command that succeeded when a version was recorded
// still has the same result, events and state.
func TestVersions_RiseWithSuccessfulCommands(t *testing.T) {
	for _, row := range applied(t) {
		verifyLived(t, row)
	}
}

func verifyLived(t *testing.T, row recorded) {
	t.Helper()
	path := livedPath(row.entries)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	from, sum, tally, m := bufio.NewReader(file), sha256.New(), newLivedTally(), New()
	for index := uint64(1); ; index++ {
		data, ok := nextRecorded(t, from)
		if !ok {
			break
		}
		entry := &logpb.Entry{}
		if err := proto.Unmarshal(data, entry); err != nil {
			t.Fatal(err)
		}
		applied := m.Apply(index, 1, data)
		tally.count(entry.Commands, applied)
		hashApplied(t, sum, applied)
		if index%livedStride == 0 {
			hashState(t, sum, m, index)
		}
	}
	hashState(t, sum, m, 0)
	if got := hex.EncodeToString(sum.Sum(nil)[:8]); got != row.lived {
		t.Errorf("%s hashes to %s, not to %s: Apply has another meaning; raise EntryVersion and record histories for it",
			path, got, row.lived)
	}
	for _, what := range tally.missing(row.entries) {
		t.Errorf("%s: %s", path, what)
	}
}

// nextRecorded reads an entry with a length prefix; false: the file ends.
func nextRecorded(t *testing.T, from *bufio.Reader) ([]byte, bool) {
	t.Helper()
	size, err := binary.ReadUvarint(from)
	if errors.Is(err, io.EOF) {
		return nil, false
	}
	data := make([]byte, size)
	if _, readErr := io.ReadFull(from, data); err != nil || readErr != nil {
		t.Fatal(err, readErr)
	}
	return data, true
}

// hashState verifies a state and adds both its hashes to a hash.
func hashState(t *testing.T, sum hash.Hash, m *Machine, index uint64) {
	t.Helper()
	if err := m.State().Verify(); err != nil {
		t.Fatalf("after entry %d: %v", index, err)
	}
	ledger, whole := m.State().Hash()
	_, _ = sum.Write(ledger[:])
	_, _ = sum.Write(whole[:])
}

// livedSeeds is the most seeds tried for a complete history.
const livedSeeds = 100

// livedHistory draws a complete history.
func livedHistory(t *testing.T) *livedDrawing {
	t.Helper()
	for seed := range uint64(livedSeeds) {
		d := newLivedDrawing(t, seed+1)
		for (len(d.tally.missing(EntryVersion)) > 0 || !d.everyWay()) && d.recorded.Len() <= livedBytes {
			d.burn()
			d.foresee()
			d.round()
		}
		if d.recorded.Len() <= livedBytes {
			t.Logf("seed %d", seed+1)
			return d
		}
		t.Logf("seed %d: %d entries, %d bytes, every way %t, and %q",
			seed+1, d.index, d.recorded.Len(), d.everyWay(), d.tally.missing(EntryVersion))
	}
	t.Fatalf("none of %d seeds has everything", livedSeeds)
	return nil
}

// TestRecordLivedHistory writes the lived history of a new version, with -update; an existing one is never rewritten.
func TestRecordLivedHistory(t *testing.T) {
	if !*update {
		t.Skip("only with -update, for new versions")
	}
	d := livedHistory(t)
	file, err := os.OpenFile(livedPath(EntryVersion), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(d.recorded.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d entries, %d bytes: %v", d.index, d.recorded.Len(), d.tally)
}
