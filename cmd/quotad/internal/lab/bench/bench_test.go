package bench

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stalls is a work whose calls take a millisecond, except that no call is answered between the third and the fourth second.
func stalls(started time.Time) Work {
	return Work{Name: "stalls", Callers: 1, Do: func(context.Context, int, int) error {
		if at := time.Since(started); at > 3*time.Second && at < 4*time.Second {
			<-time.After(4*time.Second - at)
		}
		<-time.After(time.Millisecond)
		return nil
	}}
}

// TestOpenLoop_StallDelaysEachCall: a stall of one second in ten affects a tenth of the calls, which a closed loop
// hides.
func TestOpenLoop_StallDelaysEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 1))
		open, err := openLoop(t.Context(), stalls(time.Now()), 200, 10*time.Second, random)
		if err != nil {
			t.Fatal(err)
		}
		if open.calls < 1700 || open.calls > 2300 {
			t.Errorf("%d calls in 10 s at 200/s", open.calls)
		}
		if p95 := open.latency.ValueAtQuantile(95); p95 < 400_000 || p95 > 600_000 {
			t.Errorf("p95 is %d us: half of the stall's calls wait for longer than half of it", p95)
		}
		if late := open.late.Max(); late > 1000 {
			t.Errorf("a call began %d us too late", late)
		}
		closed, err := closedLoop(t.Context(), stalls(time.Now()), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if p99 := closed.latency.ValueAtQuantile(99); p99 > 2000 {
			t.Errorf("p99 of callers that wait is %d us", p99)
		}
		if closed.latency.Max() < 900_000 {
			t.Error("the stall does not show at all")
		}
	})
}

// TestOpenLoop_CountsUnansweredCalls: if a system cannot keep up, unanswered calls are counted, with the time that they had
// waited.
func TestOpenLoop_CountsUnansweredCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := make(chan struct{}, 1)
		w := Work{Callers: 1, Do: func(ctx context.Context, _, _ int) error { // ten calls a second
			select {
			case token <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			<-time.After(100 * time.Millisecond)
			<-token
			return nil
		}}
		started := time.Now()
		open, err := openLoop(t.Context(), w, 100, 10*time.Second, rand.New(rand.NewPCG(1, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(started); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("it took %v", took)
		}
		if open.calls < 195 || open.calls > 205 || open.unanswered < 700 || open.unanswered > 900 {
			t.Errorf("%d answered, %d not", open.calls, open.unanswered)
		}
		if all := open.latency.TotalCount(); all != open.calls+open.unanswered {
			t.Errorf("%d latencies", all)
		}
		if p50 := open.latency.ValueAtQuantile(50); p50 < 10_000_000 {
			t.Errorf("p50 is %d us: most waited for longer than half of the time", p50)
		}
	})
}

// TestLoops_EndWithErrorOfCall: both loops return the error of a call.
func TestLoops_EndWithErrorOfCall(t *testing.T) {
	broken := errors.New("broken")
	var calls atomic.Int64
	w := Work{Callers: 3, Do: func(context.Context, int, int) error {
		if calls.Add(1) == 50 {
			return broken
		}
		return nil
	}}
	if _, err := closedLoop(t.Context(), w, time.Minute); !errors.Is(err, broken) {
		t.Errorf("closed: %v", err)
	}
	calls.Store(0)
	if _, err := openLoop(t.Context(), w, 10_000, time.Minute, rand.New(rand.NewPCG(1, 1))); !errors.Is(err, broken) {
		t.Errorf("open: %v", err)
	}
}

// TestMeter_CountsSyncs: the counter counts syncs, also those of other threads, and nothing else.
func TestMeter_CountsSyncs(t *testing.T) {
	m, err := newMeter([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	if m.syncs == nil {
		_, err := countSyncs([]int{os.Getpid()})
		t.Skipf("syncs cannot be counted here: %v", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	before, err := m.read()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		done := make(chan error)
		go func() {
			_, writeErr := file.WriteString("x")
			done <- errors.Join(writeErr, file.Sync())
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	after, err := m.read()
	if err != nil {
		t.Fatal(err)
	}
	spent := after.since(before).Syncs
	if spent == nil {
		t.Fatal("no syncs were counted")
	}
	if *spent != 5 {
		t.Errorf("%d syncs of 5 were counted", *spent)
	}
}

// run returns a Run with the given measurements.
func run(system, work string, round int, offered, perSecond float64, latencies ...time.Duration) Run {
	r := newRecorder()
	for i, l := range latencies {
		r.add(i, l)
	}
	syncs := int64(2 * len(latencies))
	made := Run{
		load: load{
			calls: int64(len(latencies)), took: time.Duration(float64(len(latencies)) / perSecond * float64(time.Second)), latency: r.merged(),
		},
		System: system, Work: work, Round: round, Callers: 1, Batch: 1,
		Cost: Cost{CPUSeconds: 0.5, WriteBytes: uint64(300 * len(latencies)), Syncs: &syncs},
	}
	made.count(Work{}, offered)
	return made
}

func half(r Run) Run {
	r.Half = true
	return r
}

// TestSummarize_MediansAndCosts: a summary has medians of the rounds and costs per decision, and separates open loops from closed ones.
func TestSummarize_MediansAndCosts(t *testing.T) {
	ms := time.Millisecond
	r := &Results{
		Systems: []SystemInfo{{Name: "a", Version: "1"}},
		Runs: []Run{
			run("a", "w", 1, 0, 100, ms, 2*ms, 3*ms), run("a", "w", 1, 10, 10, 9*ms), half(run("a", "w", 1, 50, 49, 5*ms)),
			run("a", "w", 2, 0, 300, 2*ms, 2*ms), run("a", "w", 2, 10, 10, 7*ms), half(run("a", "w", 2, 150, 149, 6*ms)),
			run("a", "w", 3, 0, 200, 4*ms, 4*ms), run("a", "w", 3, 10, 10, 8*ms), half(run("a", "w", 3, 100, 99, 4*ms)),
		},
	}
	path := filepath.Join(t.TempDir(), "results.json")
	if err := WriteResults(path, r); err != nil {
		t.Fatal(err)
	}
	r, err := ReadResults(path)
	if err != nil {
		t.Fatal(err)
	}
	closed, found := r.Summarize("a", "w", 0)
	near := func(a, b float64) bool { return math.Abs(a-b) < 0.01*b }
	if !found || !near(closed.PerSecond, 200) || !near(closed.Least, 100) || !near(closed.Most, 300) || len(closed.Runs) != 3 {
		t.Errorf("%+v", closed)
	}
	if p50 := closed.P50.Round(100 * time.Microsecond); p50 != 2*ms {
		t.Errorf("p50 %v", p50)
	}
	if closed.Syncs != 2 || closed.Bytes != 300 || !near(closed.CPU, 250_000) {
		t.Errorf("%v syncs, %v bytes, %v s of a million", closed.Syncs, closed.Bytes, closed.CPU)
	}
	if open, _ := r.Summarize("a", "w", 10); open.P50.Round(100*time.Microsecond) != 8*ms {
		t.Errorf("open at 10/s: %v", open.P50)
	}
	if half, _ := r.Summarize("a", "w", OwnHalf); half.P50.Round(100*time.Microsecond) != 5*ms || len(half.Runs) != 3 {
		t.Errorf("open at half: %v of %d runs", half.P50, len(half.Runs))
	}
	all := make([]Latency, len(closed.Runs))
	for i := range all {
		all[i] = closed.Runs[i].Latency
	}
	if h, err := Merge(all); err != nil || h.TotalCount() != 7 {
		t.Errorf("%v, %v", h, err)
	}
	var table bytes.Buffer
	if err := r.Table(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a       w                        200", "w, open at 10/s", "w, open at half of that"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is missing in\n%s", want, table.String())
		}
	}
}
