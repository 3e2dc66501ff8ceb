package gatewaybench_test

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/gatewaybench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local/localtest"
)

// TestMain runs quotad if the arguments are those of quotad: the nodes, and the gateway whose memory is read, are processes
// of this binary.
func TestMain(m *testing.M) { localtest.Main(m) }

// names are all works, in the order in which they run.
var names = []string{
	gatewaybench.Direct, gatewaybench.Proxy, gatewaybench.Ungoverned, gatewaybench.Batched, gatewaybench.Committed, gatewaybench.Taken,
	gatewaybench.LongProxy, gatewaybench.LongScanned, gatewaybench.EventDirect, gatewaybench.EventProxy, gatewaybench.EventPassed,
}

func start(t *testing.T) bench.Running {
	t.Helper()
	if testing.Short() {
		t.Skip("three processes")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	running, err := gatewaybench.System(binary, &gatewaybench.Rates{Calls: 1, Takes: 1}).Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Stop)
	return running
}

// TestA33_EachPathAnswers: each measured path answers, also with concurrent callers.
func TestA33_EachPathAnswers(t *testing.T) {
	running := start(t)
	if n := len(running.PIDs()); n != 3 {
		t.Errorf("%d nodes run", n)
	}
	works := running.Works()
	if len(works) != len(names) {
		t.Fatalf("%d paths are measured, want %d", len(works), len(names))
	}
	for i, w := range works {
		if w.Name != names[i] {
			t.Errorf("path %d is %s, want %s", i, w.Name, names[i])
		}
		var wg sync.WaitGroup
		for caller := range 4 {
			wg.Go(func() {
				for n := range 3 {
					if err := w.Do(t.Context(), caller, n); err != nil {
						t.Errorf("%s, call %d: %v", w.Name, n, err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestHold_ReadsMemoryWhileCallsWait: Hold reads the memory of the process that holds the waiting calls.
func TestHold_ReadsMemoryWhileCallsWait(t *testing.T) {
	if testing.Short() {
		t.Skip("four processes")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w, err := gatewaybench.Hold(t.Context(), binary, t.TempDir(), 20)
	if err != nil {
		t.Fatal(err)
	}
	if w.Calls != 20 || w.Before <= 0 || w.After <= 0 {
		t.Errorf("%+v", w)
	}
}

// TestGoals_CompareWithTheReverseProxy: the gateway adds the difference to the path that it is compared with. Paths without
// measurements have no row.
func TestGoals_CompareWithTheReverseProxy(t *testing.T) {
	run := func(work string, offered, perSecond float64, p50, p99 int64) bench.Run {
		return bench.Run{
			System: "gateway", Work: work, Round: 1, Offered: offered, PerSecond: perSecond, Latency: bench.Latency{P50: p50, P99: p99},
		}
	}
	take := run(gatewaybench.Taken, 3000, 3000, 590, 800)
	take.Late = &bench.Latency{P50: 500}
	r := gatewaybench.Results{Results: &bench.Results{Runs: []bench.Run{
		run(gatewaybench.Proxy, 0, 10_000, 3000, 9000), run(gatewaybench.Proxy, 500, 500, 200, 900),
		run(gatewaybench.Batched, 0, 7_000, 4000, 9900), run(gatewaybench.Batched, 500, 500, 270, 1300),
		take,
	}}, Waiting: gatewaybench.Waiting{Calls: 100, Before: 1_000_000, After: 4_000_000}}
	var out bytes.Buffer
	if err := r.Goals(&out, gatewaybench.Rates{Calls: 500, Takes: 3000}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"from a batch: p50 more than httputil.ReverseProxy 70µs at most 80µs",
		"from a batch: p99 more than httputil.ReverseProxy 400µs at most 500µs",
		"from a batch: share of the throughput of httputil.ReverseProxy 70 % at least 65 %",
		"take from a batch: p50 without the generator's delay 90µs at most 100µs",
		"memory of one of 100 waiting calls 30000 bytes at most 40000 bytes",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if strings.Contains(got, "ungoverned") {
		t.Errorf("a path that was not measured is compared in\n%s", out.String())
	}
}
