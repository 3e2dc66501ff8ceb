package fsm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// size is the size of a state.
type size struct{ quotas, leases, holders, waiters int }

// crowds are the sizes for which one cluster is meant, and a tenth of them: a command should cost about the same in
// both.
var crowds = []size{{10_000, 100_000, 10_000, 10_000}, {100_000, 1_000_000, 100_000, 100_000}}

func (s size) String() string {
	return fmt.Sprintf("quotas=%d,leases=%d,holders=%d,waiters=%d", s.quotas, s.leases, s.holders, s.waiters)
}

// crowd is a state in which every quota is exhausted by leases of many holders, and has waiters.
type crowd struct {
	scale
	of size
	// tickets are the waiting ones.
	tickets []uint64
}

func newCrowd(s size) *crowd {
	c := &crowd{scale: scale{m: New(), random: rand.New(rand.NewPCG(1, 2)), leases: s.leases}, of: s} //nolint:gosec // a benchmark's choices
	c.pick = c.random.IntN
	var quotas []*logpb.Quota
	for i := range s.quotas {
		quotas = append(quotas, slotsOf(c.quota(i), int64(s.leases/s.quotas)))
		if len(quotas) == 500 || i == s.quotas-1 {
			c.results(applyQuotas(quotas...))
			quotas = nil
		}
	}
	c.many(s.leases, func(i int) *logpb.Command {
		return asks(fmt.Sprintf("h%d", i%s.holders), day, itemOf(c.quota(i%s.quotas), 1))
	})
	c.many(s.waiters, func(i int) *logpb.Command { return c.wait(i) })
	return c
}

func (c *crowd) quota(i int) string { return fmt.Sprintf("team%d/q%d", i%100, i) }

// wait returns a Reserve that waits for a quota.
func (c *crowd) wait(i int) *logpb.Command {
	return waits(fmt.Sprintf("w%d", i%c.of.holders), minute, maxWait, itemOf(c.quota(i%c.of.quotas), 1))
}

// many applies n commands, at 500 in an entry.
func (c *crowd) many(n int, command func(i int) *logpb.Command) {
	var commands []*logpb.Command
	for i := range n {
		commands = append(commands, command(i))
		if len(commands) == 500 || i == n-1 {
			c.results(commands...)
			commands = nil
		}
	}
}

// results applies an entry, records the tickets of waiters, and returns how long that took.
func (c *crowd) results(commands ...*logpb.Command) (took time.Duration) {
	c.index++
	data, err := proto.Marshal(&logpb.Entry{
		Version: EntryVersion, StampNs: c.now, WallEarlyNs: epochStart, WallLateNs: epochStart, Commands: commands,
	})
	if err != nil {
		panic(err)
	}
	started := time.Now()
	applied := c.m.Apply(c.index, 1, data)
	took = time.Since(started)
	for _, result := range applied.Results {
		if waiting := result.GetWaiting(); waiting != nil {
			c.tickets = append(c.tickets, waiting.Ticket)
		}
	}
	return took
}

// work returns commands as a busy fleet sends them: half renew a lease, a quarter is refused by an exhausted quota, and
// a quarter starts to wait while another waiter withdraws.
func (c *crowd) work(n int) []*logpb.Command {
	var commands []*logpb.Command
	for len(commands) < n {
		id := uint64(c.pick(c.leases) + 1)
		commands = append(commands, renew(&logpb.Renew{Lease: id, Fence: id}))
		if len(commands)%4 == 1 {
			commands = append(commands, asks("another", minute, itemOf(c.quota(c.pick(c.of.quotas)), 1)))
			continue
		}
		at := c.pick(len(c.tickets))
		commands = append(commands, withdraw(c.tickets[at]), c.wait(c.pick(c.of.quotas)))
		c.tickets[at] = c.tickets[len(c.tickets)-1]
		c.tickets = c.tickets[:len(c.tickets)-1]
	}
	return commands
}

// BenchmarkCrowd measures a command in a large state, with uniform and with skewed access.
func BenchmarkCrowd(b *testing.B) {
	for _, s := range crowds {
		c, bytes := weighed(func() *crowd { return newCrowd(s) })
		for _, access := range []string{"uniform", "skewed"} {
			b.Run(s.String()+"/"+access, func(b *testing.B) {
				if access == "skewed" {
					c.skewed()
				}
				var took time.Duration
				n := 0
				for ; n < b.N; n += 100 {
					took += c.results(c.work(100)...)
				}
				b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/command")
				b.ReportMetric(bytes/1e6, "MB")
			})
		}
	}
}

// BenchmarkCrowdEnds makes everything in such a state, and in one without waiters, fall due at once, after a snapshot
// and a restore.
func BenchmarkCrowdEnds(b *testing.B) {
	for _, s := range append(slices.Clone(crowds), size{100_000, 1_000_000, 100_000, 0}) {
		b.Run(s.String(), func(b *testing.B) {
			for b.Loop() {
				c := newCrowd(s)
				var snapshot bytes.Buffer
				started := time.Now()
				if err := c.m.Freeze().WriteSnapshot(&snapshot); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(started).Seconds(), "s/write")
				b.ReportMetric(float64(snapshot.Len())/1e6, "MB/snapshot")
				started = time.Now()
				if _, err := Restore(&snapshot); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(started).Seconds(), "s/restore")
				entries, longest := c.end()
				b.ReportMetric(float64(entries), "entries")
				b.ReportMetric(float64(longest.Microseconds())/1000, "ms/entry-max")
			}
		})
	}
}

// end lets all time pass, and returns how many entries ended everything, and the time of the longest one.
func (c *crowd) end() (entries int, longest time.Duration) {
	c.now += 2 * day
	for counts := c.m.State().Counts(); counts.Leases+counts.Waiting > 0; counts = c.m.State().Counts() {
		entries++
		longest = max(longest, c.results(withdraw(1<<60))) // an unknown ticket
	}
	return entries, longest
}

// TestCrowd: the initial state of the scale benchmarks has the stated size, keeps it under their work, and is
// consistent. It ends in the expected number of entries, since each carries out a bounded amount of due work.
func TestCrowd(t *testing.T) {
	c := newCrowd(size{quotas: 100, leases: 3000, holders: 50, waiters: 150})
	check := func(when string) {
		t.Helper()
		counts := c.m.State().Counts()
		if counts.Quotas != 100 || counts.Leases != 3000 || counts.Waiting != 150 {
			t.Errorf("%s: %+v", when, counts)
		}
		if err := c.m.State().Verify(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	check("at the beginning")
	for range 20 {
		c.results(c.work(100)...)
	}
	check("after uniform work")
	c.skewed()
	for range 20 {
		c.results(c.work(100)...)
	}
	check("after skewed work")
	if entries, _ := c.end(); entries < 3000/maxDuePerEntry || entries > 3000/maxDuePerEntry+3 {
		t.Errorf("it ended in %d entries", entries)
	}
	if err := c.m.State().Verify(); err != nil {
		t.Error(err)
	}
}

// TestServing_ContinuesInNextEntries: one entry serves a bounded number of waiters. The others follow in order with
// empty entries, across restores.
func TestServing_ContinuesInNextEntries(t *testing.T) {
	w := newWorld(t)
	w.m.bounds.serves.most = 4
	w.quotas(slotsOf("s", 1), slotsOf("other", 1))
	w.do(asks("first", 0, itemOf("s", 1)))
	w.do(asks("first", 0, itemOf("other", 1)))
	var order, granted []uint64
	for i := range 15 {
		quota := "s"
		if i == 7 {
			quota = "other" // it is independent of them
		}
		waiting := w.do(waits(fmt.Sprint("h", i), 0, 5*minute, itemOf(quota, 1))).GetWaiting()
		if quota == "s" {
			order = append(order, waiting.GetTicket())
		}
	}
	w.quotas(slotsOf("s", 100))
	for entry, want := range []int{4, 4, 4, 2, 0} {
		served := w.grantedTickets()
		if granted = append(granted, served...); len(served) != want {
			t.Errorf("entry %d serves %d", entry, len(served))
		}
		if at, _ := w.m.State().NextDue(); (at <= w.now+1) != (entry < 3) {
			t.Errorf("after entry %d something is due at %d", entry, at-w.now)
		}
		w.reborn()
		w.sleep(1)
	}
	if !slices.Equal(granted, order) {
		t.Errorf("served %v of %v", granted, order)
	}
}

// TestServing_ForgetsNoLine: amounts freed in several quotas at once reach all waiters, though one entry serves only a
// few.
func TestServing_ForgetsNoLine(t *testing.T) {
	const quotas, waiting = 3, 5
	w := newWorld(t)
	w.m.bounds.serves.most = 4
	define := func(limit int64) {
		var all []*logpb.Quota
		for q := range quotas {
			all = append(all, slotsOf(fmt.Sprint("s", q), limit))
		}
		w.quotas(all...)
	}
	define(1)
	for q := range quotas {
		w.do(asks("first", 0, itemOf(fmt.Sprint("s", q), 1)))
		for i := range waiting {
			w.do(waits(fmt.Sprint("h", q*waiting+i), 0, 5*minute, itemOf(fmt.Sprint("s", q), 1)))
		}
	}
	define(100)
	for range quotas * waiting {
		w.sleep(1)
	}
	if left := w.m.queue.waiters.Len(); left != 0 {
		t.Errorf("%d of %d still wait", left, quotas*waiting)
	}
}
