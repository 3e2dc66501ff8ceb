package sim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/jepsen/check"
)

// number reads a number from the environment.
func number(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// folder is a folder in memory for the nodes' files.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "quotad-sim-") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestSeeds runs QUOTAD_SIM_SEEDS seeds (4, with -short 2) from QUOTAD_SEED (1) on, one per processor at a time. make sim runs thousands.
func TestSeeds(t *testing.T) {
	few := uint64(4)
	if testing.Short() {
		few = 2
	}
	from, count := number(t, "QUOTAD_SEED", 1), number(t, "QUOTAD_SIM_SEEDS", few)
	began := time.Now()
	var mu sync.Mutex
	var sum totals
	t.Run("seeds", func(t *testing.T) {
		for seed := from; seed < from+count; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				dir := folder(t)
				var out *Outcome
				synctest.Test(t, func(*testing.T) { out = Run(seed, dir) })
				mu.Lock()
				sum.add(out)
				mu.Unlock()
				judge(t, seed, out)
			})
		}
	})
	t.Logf("%d seeds in %v: %+v", count, time.Since(began).Round(time.Second), sum)
	if sum.weak*20 > int(count) && count > 100 {
		t.Errorf("%d of %d seeds exercised too little", sum.weak, count)
	}
}

// totals are the sums over all seeds.
type totals struct {
	calls, answered, unknown, terms, installed, changed, expired, deadFences, repeated, waited, waitsGranted, waitsEnded, streams int
	sessionsEnded, attempts, lost, shelved, putBack, sequentials, parallels, batons, lent, kept                                   int
	// weak counts seeds without a leader change, an expiry, an unknown outcome or a wait of each end.
	weak int
}

func (s *totals) add(o *Outcome) {
	if o.Result == nil {
		return
	}
	stats := o.Result.Stats
	s.calls += stats.Calls
	s.answered += stats.Answered
	s.unknown += stats.Unknown
	s.terms += stats.Terms
	s.installed += o.Installed
	s.changed += o.Changed
	s.expired += stats.Expired
	s.deadFences += stats.Stale
	s.repeated += stats.Judged.Repeated
	s.streams += stats.Streams
	judged := &stats.Judged
	s.sessionsEnded += judged.SessionsEnded
	s.attempts += judged.Attempts
	s.lost += judged.Lost
	s.shelved += judged.Shelved
	s.putBack += judged.PutBack
	s.sequentials += judged.Sequentials
	s.parallels += judged.Parallels
	s.batons += judged.Batons
	s.lent += judged.Lent
	s.kept += judged.Kept
	s.waited += stats.Judged.Waited
	s.waitsGranted += stats.Judged.WaitsGranted
	s.waitsEnded += stats.Judged.WaitsEnded
	if stats.Terms < 2 || stats.Expired == 0 || stats.Calls == stats.Answered || stats.Judged.WaitsGranted == 0 ||
		stats.Judged.WaitsEnded == 0 {
		s.weak++
	}
}

// judge fails the test if a seed broke a promise, and prints its events.
func judge(t *testing.T, seed uint64, out *Outcome) {
	t.Helper()
	failed := out.Failed()
	if len(failed) == 0 {
		return
	}
	for _, event := range out.Events {
		t.Log(event)
	}
	if out.Result != nil {
		for _, v := range out.Result.Verdicts {
			if v.Outcome == check.Fail {
				t.Logf("%s: %d violations", v.Checker, v.Count)
				for _, example := range v.Examples {
					t.Log("    " + example)
				}
			}
		}
	}
	t.Errorf("seed %d failed by %s: %s (QUOTAD_SEED=%d QUOTAD_SIM_SEEDS=1)", seed, strings.Join(failed, ", "), out.Stuck, seed)
}
