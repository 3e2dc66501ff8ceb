package fsm

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// sizes are the numbers of live leases at the start of the scale benchmarks.
var sizes = []int{10_000, 100_000, 1_000_000}

// bigState returns a machine with many live leases of one quota, by up to 100,000 holders.
func bigState(leases int) *scale {
	s := &scale{m: New(), random: rand.New(rand.NewPCG(1, 2)), leases: leases} //nolint:gosec // a benchmark's choices
	s.pick = s.random.IntN
	s.apply(applyQuotas(rateOf("q", 1<<50, minute)))
	commands := make([]*logpb.Command, 0, 500)
	for i := range leases {
		a := ask(fmt.Sprintf("h%d", i%100_000), itemOf("q", 1))
		a.TtlNs = day
		if commands = append(commands, reserve(a)); len(commands) == cap(commands) {
			s.apply(commands...)
			commands = commands[:0]
		}
	}
	return s
}

// scale drives a large state.
type scale struct {
	m      *Machine
	index  uint64
	now    int64
	random *rand.Rand
	leases int
	// pick draws an index below n: uniformly, or with a skew.
	pick func(n int) int
	// follows: nobody reads the results.
	follows bool
	// caller is charged for commands; empty: nobody is.
	caller string
}

// apply applies an entry and returns how long that took, without encoding.
func (s *scale) apply(commands ...*logpb.Command) time.Duration {
	s.index++
	data, err := proto.Marshal(&logpb.Entry{
		Version: EntryVersion, StampNs: s.now, WallEarlyNs: epochStart, WallLateNs: epochStart, Commands: commands,
	})
	if err != nil {
		panic(err)
	}
	apply := s.m.Apply
	if s.follows {
		apply = s.m.Follow
	}
	started := time.Now()
	apply(s.index, 1, data)
	return time.Since(started)
}

// mix returns commands on random leases: half renew one, half reserve and consume a new one.
func (s *scale) mix(n int) []*logpb.Command {
	commands := make([]*logpb.Command, n)
	for i := range commands {
		id := uint64(s.pick(s.leases) + 1)
		commands[i] = renew(&logpb.Renew{Lease: id, Fence: id})
		if i%2 == 1 {
			a := ask(fmt.Sprintf("h%d", s.pick(100_000)), itemOf("q", 1))
			a.Consume = true
			commands[i] = reserve(a)
		}
	}
	return commands
}

// skewed makes pick draw small numbers far more often than large ones.
func (s *scale) skewed() {
	s.pick = func(n int) int {
		return int(rand.NewZipf(s.random, 1.2, 10, uint64(n-1)).Uint64())
	}
}

// weighed builds a state and returns its size in bytes.
func weighed[T any](build func() T) (state T, bytes float64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	state = build()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return state, float64(after.HeapAlloc) - float64(before.HeapAlloc)
}

// BenchmarkApply measures a command by the number of live leases, with uniform and with skewed access.
func BenchmarkApply(b *testing.B) {
	for _, size := range sizes {
		s, bytes := weighed(func() *scale { return bigState(size) })
		run := func(b *testing.B) {
			b.Helper()
			var took time.Duration
			for n := 0; n < b.N; n += 100 {
				took += s.apply(s.mix(100)...)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/command")
			b.ReportMetric(bytes/float64(size), "bytes/lease")
		}
		b.Run(fmt.Sprintf("leases=%d", size), run)
		s.skewed()
		b.Run(fmt.Sprintf("leases=%d-skewed", size), run)
	}
}

// BenchmarkSnapshot writes and restores a snapshot of a million leases, and reports how long commands had to wait
// meanwhile.
func BenchmarkSnapshot(b *testing.B) {
	s := bigState(sizes[len(sizes)-1])
	b.ResetTimer()
	for b.Loop() {
		frozen := s.m.Freeze()
		var snapshot bytes.Buffer
		written := make(chan time.Duration, 1)
		go func() {
			started := time.Now()
			if err := frozen.WriteSnapshot(io.MultiWriter(&snapshot)); err != nil {
				b.Error(err)
			}
			written <- time.Since(started)
		}()
		var pauses []time.Duration
		var wrote time.Duration
		for wrote == 0 {
			select {
			case wrote = <-written:
			default:
				pauses = append(pauses, s.apply(s.mix(50)...))
			}
		}
		slices.Sort(pauses)
		started := time.Now()
		restored, err := Restore(bytes.NewReader(snapshot.Bytes()))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(wrote.Seconds(), "s/write")
		b.ReportMetric(time.Since(started).Seconds(), "s/restore")
		started = time.Now()
		if err := restored.Verify(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(started).Seconds(), "s/verify")
		b.ReportMetric(float64(snapshot.Len())/1e6, "MB")
		b.ReportMetric(float64(pauses[len(pauses)/2].Microseconds())/1000, "ms/entry-p50")
		b.ReportMetric(float64(pauses[len(pauses)*99/100].Microseconds())/1000, "ms/entry-p99")
	}
}

// BenchmarkMassExpiry lets a million leases fall due at once, and reports the time of the entries that ended them.
func BenchmarkMassExpiry(b *testing.B) {
	for b.Loop() {
		s := bigState(sizes[len(sizes)-1])
		s.now = 2 * day
		var longest time.Duration
		entries := 0
		for s.m.State().Counts().Leases > 1000 {
			longest = max(longest, s.apply(s.mix(2)[1]))
			entries++
		}
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms/entry-max")
		b.ReportMetric(float64(entries), "entries")
	}
}

// BenchmarkDecide measures a Reserve that consumes, with all its work until its lease has ended, on the replica that
// answers and on a follower: entries of 500 on 1,000 quotas, leases of a second, of which 20,000 live.
func BenchmarkDecide(b *testing.B) {
	b.Run("answers", func(b *testing.B) { decide(b, &scale{m: New()}) })
	b.Run("follows", func(b *testing.B) { decide(b, &scale{m: New(), follows: true}) })
	b.Run("charged", func(b *testing.B) { decide(b, &scale{m: New(), caller: "token:bench"}) })
	b.Run("charged by holder", func(b *testing.B) { decide(b, &scale{m: New(), caller: "address:192.0.2.1"}) })
}

// consuming returns Reserves that consume, on several quotas in turn, for leases of a second.
func consuming(n, quotas int) []*logpb.Command {
	commands := make([]*logpb.Command, n)
	for i := range commands {
		a := ask("bench", itemOf(fmt.Sprintf("bench/q%03d", i%quotas), 1))
		a.Consume, a.TtlNs = true, second
		commands[i] = reserve(a)
	}
	return commands
}

func decide(b *testing.B, s *scale) {
	b.Helper()
	const entry, quotas, live = 500, 1000, 20_000
	for i := range quotas {
		s.apply(applyQuotas(rateOf(fmt.Sprintf("bench/q%03d", i), 1<<50, minute)))
	}
	commands := consuming(entry, quotas)
	for i := range commands {
		commands[i] = chargedTo(s.caller, commands[i])
	}
	step := func() time.Duration {
		s.now += second * entry / live
		return s.apply(commands...)
	}
	for range 2 * live / entry {
		step()
	}
	b.ReportAllocs()
	b.ResetTimer()
	var took time.Duration
	for n := 0; n < b.N; n += entry {
		took += step()
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/command")
}

// BenchmarkSession measures a session's request, with the storage of its result until the acknowledgement: entries of
// 250 Reserves that consume, and of the Settles that end their leases.
func BenchmarkSession(b *testing.B) {
	b.Run("answers", func(b *testing.B) { inSession(b, &scale{m: New()}) })
	b.Run("follows", func(b *testing.B) { inSession(b, &scale{m: New(), follows: true}) })
	b.Run("charged", func(b *testing.B) { inSession(b, &scale{m: New(), caller: "token:bench"}) })
}

func inSession(b *testing.B, s *scale) {
	b.Helper()
	const grants, quotas = 250, 1000
	for i := range quotas {
		s.apply(applyQuotas(rateOf(fmt.Sprintf("bench/q%03d", i), 1<<50, minute)))
	}
	s.apply(chargedTo(s.caller, &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "bench"}}}))
	reserves, seq, lease := consuming(grants, quotas), uint64(0), uint64(0)
	step := func() time.Duration {
		acked := seq + 1
		commands := slices.Clone(reserves)
		for range reserves {
			lease++
			commands = append(commands, settle(&logpb.Settle{Lease: lease, Fence: lease, Op: 1, Final: true, Release: true}))
		}
		for i, command := range commands {
			seq++
			commands[i] = chargedTo(s.caller, numbered(1, seq, acked, command))
		}
		return s.apply(commands...)
	}
	for range 8 {
		step()
	}
	if counts := s.m.State().Counts(); counts.Leases != 0 || counts.Sessions != 1 || counts.ResultBytes == 0 {
		b.Fatalf("%+v", counts)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var took time.Duration
	for n := 0; n < b.N; n += 2 * grants {
		took += step()
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/command")
}
