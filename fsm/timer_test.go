package fsm

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// freeFor returns the tickets that would be granted something if all waiters were tried now.
func freeFor(t tester, m *Machine) (tickets []uint64) {
	var snapshot bytes.Buffer
	if err := m.Freeze().WriteSnapshot(&snapshot); err != nil {
		t.Fatal(err)
	}
	c, err := Restore(&snapshot)
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range c.quotas.byNumber.Keys() {
		if q := c.quotas.editNow(number); q.waiting > 0 {
			c.quotas.dirty[number] = true
		}
	}
	c.queue.serve()
	for _, e := range c.events {
		if e.Kind == effect.EventGranted && e.Ticket != 0 {
			tickets = append(tickets, e.Ticket)
		}
	}
	return tickets
}

// TestTimers_LeaveNoServableWaiter: only quotas with a due timer or a change by a command are served. Waiters are still
// granted the same as if all quotas were served with each entry.
func TestTimers_LeaveNoServableWaiter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		plain := randomWorldQuotas()
		for _, q := range plain {
			q.Policy, q.Fallback = nil, ""
		}
		w.apply(applyQuotas(plain...))
		names := rapid.SliceOfNDistinct(rapid.SampledFrom(randomQuotas), 1, 2, rapid.ID).Draw(rt, "quotas")
		w.sleep(rapid.SampledFrom([]int64{0, 55 * minute}).Draw(rt, "begins"))
		items := func() (items []*logpb.Item) {
			for _, name := range names {
				items = append(items, itemOf(name, rapid.SampledFrom([]int64{1, 2, 5, 10, 30}).Draw(rt, "amount")))
			}
			return items[:rapid.IntRange(1, len(items)).Draw(rt, "of")]
		}
		var calls []*logpb.Granted
		for range rapid.IntRange(2, 40).Draw(rt, "entries") {
			holder := rapid.SampledFrom(randomHolders).Draw(rt, "holder")
			command := rapid.IntRange(0, 9).Draw(rt, "command")
			switch {
			case command < 2:
				if g := w.do(consumesAtOnce(holder, items()...)).GetGranted(); g != nil {
					calls = append(calls, g)
				}
			case command == 2:
				w.do(asks(holder, 3*second, items()...))
			case command < 5:
				w.do(waits(holder, 0, maxWait, items()...))
			case command == 5 && len(calls) > 0:
				g := rapid.SampledFrom(calls).Draw(rt, "call")
				quota := g.Items[0].Quota
				w.do(rapid.SampledFrom([]*logpb.Command{
					settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Final: true}),
					reports(g.Lease, 1, signal(quota, logpb.Cause_CAUSE_OK, resetAfter(rapid.Int64Range(second, 9*minute).Draw(rt, "reset")))),
					reports(g.Lease, 1, signal(quota, logpb.Cause_CAUSE_OK, remaining(rapid.Int64Range(0, 20).Draw(rt, "left")))),
					reports(g.Lease, 1, signal(quota, logpb.Cause_CAUSE_SATURATED, retryAfter(2*second))),
				}).Draw(rt, "says"))
			default:
				w.early, w.late = -rapid.Int64Range(0, second).Draw(rt, "early"), rapid.Int64Range(0, second).Draw(rt, "late")
				w.sleep(rapid.SampledFrom([]int64{millisecond, 300 * millisecond, second, 4 * second, minute, 4 * minute}).Draw(rt, "sleep"))
			}
			if free := freeFor(rt, w.m); len(free) > 0 {
				rt.Fatal(fmt.Sprintf("after entry %d tickets %v wait for what is free", w.index, free))
			}
		}
	})
}
