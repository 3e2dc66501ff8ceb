package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Results are the measurements, in the form of their file.
type Results struct {
	Machine Machine      `json:"machine"`
	Started time.Time    `json:"started"`
	Command string       `json:"command"`
	Commit  string       `json:"commit,omitempty"`
	Rounds  int          `json:"rounds"`
	Seconds float64      `json:"seconds"`
	Seed    uint64       `json:"seed"`
	Systems []SystemInfo `json:"systems"`
	Runs    []Run        `json:"runs"`
	Local   []Local      `json:"local,omitempty"`
}

// SystemInfo is a measured system.
type SystemInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Run is one run of a work.
type Run struct {
	load

	System string `json:"system"`
	Work   string `json:"work"`
	Round  int    `json:"round"`
	// Callers is the number of concurrent callers; Batch is the number of decisions per call.
	Callers int `json:"callers"`
	Batch   int `json:"batch"`
	// Offered is the open loop's rate in decisions per second, whether or not the system reached it; 0: a closed loop.
	Offered float64 `json:"offered,omitempty"`
	// Half says that the rate is half of the rate of the closed loop before.
	Half bool `json:"half,omitempty"`
	// Decisions is the number of decisions in Took seconds; PerSecond is their rate.
	Decisions int64 `json:"decisions"`
	// Unanswered is the number of calls of an open loop without an answer when it was cut off, at twice its length.
	Unanswered int64   `json:"unanswered,omitempty"`
	Took       float64 `json:"took"`
	PerSecond  float64 `json:"per_second"`
	// Latency is the latency of calls. Late is how late the open loop's generator made them, which Latency includes.
	Latency Latency  `json:"latency"`
	Late    *Latency `json:"late,omitempty"`
	// Cost is the cost of the servers' processes; CallerCPUSeconds is the processor time of this process.
	Cost             Cost    `json:"cost"`
	CallerCPUSeconds float64 `json:"caller_cpu_seconds"`
}

// Latency is a histogram of latencies, in microseconds.
type Latency struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p99.9"`
	Max  int64 `json:"max"`
	// Histogram is the whole histogram in HdrHistogram's V2 compressed encoding.
	Histogram string `json:"histogram,omitempty"`
}

// Local is the cost of a take in the caller's own process.
type Local struct {
	Name       string `json:"name"`
	Goroutines int    `json:"goroutines"`
	Round      int    `json:"round"`
	// NanosecondsPerTake is wall-clock time divided by the takes of all goroutines; AllocsPerTake is allocations per take.
	NanosecondsPerTake float64 `json:"ns_per_take"`
	AllocsPerTake      float64 `json:"allocs_per_take"`
}

// count computes the fields that follow from the load.
func (r *Run) count(w Work, offered float64) {
	r.Offered = offered
	r.Decisions = r.calls * int64(max(w.Batch, 1))
	r.Took, r.Unanswered = r.took.Seconds(), r.unanswered
	r.PerSecond = float64(r.Decisions) / r.Took
	r.Latency = latencyOf(r.latency)
	if r.late != nil {
		late := latencyOf(r.late)
		late.Histogram = ""
		r.Late = &late
	}
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	l := Latency{
		P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99), P999: h.ValueAtQuantile(99.9), Max: h.Max(),
	}
	if encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase); err == nil {
		l.Histogram = string(encoded)
	}
	return l
}

// ReadResults reads a file of WriteResults.
func ReadResults(path string) (*Results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Results{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Merge merges several histograms.
func Merge(all []Latency) (*hdrhistogram.Histogram, error) {
	merged := newHistogram()
	for _, l := range all {
		h, err := hdrhistogram.Decode([]byte(l.Histogram))
		if err != nil {
			return nil, fmt.Errorf("a histogram cannot be read: %w", err)
		}
		merged.Merge(h)
	}
	return merged, nil
}

// Summary is the median of a work's runs on a system.
type Summary struct {
	System, Work string
	Callers      int
	Batch        int
	Runs         []Run
	// PerSecond is the median; Least and Most are the extremes of the rounds.
	PerSecond, Least, Most float64
	// P50, P99 and P999 are medians of the rounds' latencies.
	P50, P99, P999 time.Duration
	// CPU is the servers' processor seconds per million decisions, CallerCPU that of the callers. Bytes and Syncs are per
	// decision. Syncs below 0: not counted.
	CPU, CallerCPU, Bytes, Syncs float64
	// Unanswered is the fraction of an open loop's calls without an answer when it was cut off.
	Unanswered float64
}

// Summarize returns the summary of a work on a system: of closed loops (offered is 0), or of open loops at a rate. OwnHalf
// selects the open loops at half of the rate of their round's closed loop.
func (r *Results) Summarize(system, work string, offered float64) (Summary, bool) {
	s := Summary{System: system, Work: work}
	for _, run := range r.Runs {
		if run.System == system && run.Work == work && run.matches(offered) {
			s.Runs = append(s.Runs, run)
		}
	}
	if len(s.Runs) == 0 {
		return s, false
	}
	s.Callers, s.Batch = s.Runs[0].Callers, s.Runs[0].Batch
	s.PerSecond = s.median(func(r Run) float64 { return r.PerSecond })
	rates := make([]float64, len(s.Runs))
	for i, run := range s.Runs {
		rates[i] = run.PerSecond
	}
	s.Least, s.Most = slices.Min(rates), slices.Max(rates)
	duration := func(of func(Latency) int64) time.Duration {
		return time.Duration(s.median(func(r Run) float64 { return float64(of(r.Latency)) })) * time.Microsecond
	}
	s.P50 = duration(func(l Latency) int64 { return l.P50 })
	s.P99 = duration(func(l Latency) int64 { return l.P99 })
	s.P999 = duration(func(l Latency) int64 { return l.P999 })
	each := func(of func(Run) float64) float64 {
		return s.median(func(r Run) float64 { return of(r) / float64(r.Decisions) })
	}
	s.Unanswered = s.median(func(r Run) float64 {
		return float64(r.Unanswered) / max(float64(r.Unanswered)+float64(r.Decisions)/float64(max(r.Batch, 1)), 1)
	})
	s.CPU = 1e6 * each(func(r Run) float64 { return r.Cost.CPUSeconds })
	s.CallerCPU = 1e6 * each(func(r Run) float64 { return r.CallerCPUSeconds })
	s.Bytes = each(func(r Run) float64 { return float64(r.Cost.WriteBytes) })
	s.Syncs = each(func(r Run) float64 {
		if r.Cost.Syncs == nil {
			return -float64(r.Decisions)
		}
		return float64(*r.Cost.Syncs)
	})
	return s, true
}

// OwnHalf makes Summarize select open loops at half of the rate of the same round's closed loop.
const OwnHalf = -1.0

// matches reports whether a run belongs to the loops that Summarize selects.
func (r *Run) matches(offered float64) bool {
	if offered == OwnHalf {
		return r.Half
	}
	return r.Offered == offered && !r.Half
}

func (s *Summary) median(of func(Run) float64) float64 {
	values := make([]float64, len(s.Runs))
	for i, run := range s.Runs {
		values[i] = of(run)
	}
	return Median(values)
}

// Median returns the middle value, or the mean of the two middle ones; 0 for none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}

// Works returns the names of all works in the order of their first runs.
func (r *Results) Works() []string {
	var names []string
	for _, run := range r.Runs {
		if !slices.Contains(names, run.Work) {
			names = append(names, run.Work)
		}
	}
	return names
}
