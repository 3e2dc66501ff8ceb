package model

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// capped plays commands on a calendar window of ten seconds that reports lower, as with a provider whose quota others use too. Its clocks
// can be set ahead, and a backup of it restored.
type capped struct {
	t       *testing.T
	machine *fsm.Machine
	judge   *Judge
	entries []*logpb.Entry // all valid ones since the beginning
	index   uint64
	now     int64 // cluster time
	ahead   int64 // how far all members' clocks are ahead
	apart   int64 // how much further ahead a minority's clocks are
	found   []Violation
}

const tenSeconds = "foretold"

func newCapped(t *testing.T) *capped {
	t.Helper()
	c := &capped{t: t, machine: fsm.New(), judge: New(), now: sec}
	c.do(0, &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
		{Name: tenSeconds, Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 200, EveryNs: 10 * sec, SkewNs: 500 * mil}}},
	}}}})
	return c
}

func (c *capped) do(after int64, command *logpb.Command) *logpb.Result {
	c.t.Helper()
	c.now += after
	wall := birth + c.now + c.ahead
	return c.apply(&logpb.Entry{
		Version: fsm.EntryVersion, StampNs: c.now, WallEarlyNs: wall, WallLateNs: wall + 2*mil + c.apart, Commands: []*logpb.Command{command},
	})
}

func (c *capped) apply(entry *logpb.Entry) *logpb.Result {
	c.t.Helper()
	payload, err := proto.Marshal(entry)
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	c.entries = append(c.entries, entry)
	applied := c.machine.Apply(c.index, 1, payload)
	c.found = append(c.found, c.judge.Entry(entry, &applied)...)
	return applied.Results[0]
}

// consumes makes one call, which the window must allow.
func (c *capped) consumes() (lease, fence uint64) {
	c.t.Helper()
	lease, fence, ok := c.tries()
	if !ok {
		c.t.Fatal("nothing was granted")
	}
	return lease, fence
}

// tries consumes once, if the window allows it.
func (c *capped) tries() (lease, fence uint64, ok bool) {
	c.t.Helper()
	granted := c.do(0, &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
		Holder: "caller", Items: []*logpb.Item{item1(tenSeconds, 1)}, Consume: true, TtlNs: 60 * sec,
	}}}).GetGranted()
	return granted.GetLease(), granted.GetFence(), granted != nil
}

// reports sends the provider's answer to a call, and returns the total to which that lowers the window; nil: it does not.
func (c *capped) reports(after int64, lease, fence uint64, remaining int64) *int64 {
	c.t.Helper()
	result := c.do(after, &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{
		Lease: lease, Fence: fence, Op: 1, Signals: []*logpb.Signal{{Quota: tenSeconds, Cause: logpb.Cause_CAUSE_OK, Remaining: &remaining}},
	}}})
	if result.GetReported() == nil {
		c.t.Fatalf("the report had the result %v", result)
	}
	return result.GetReported().Quotas[0].CappedTo
}

func (c *capped) reset() {
	c.t.Helper()
	if result := c.do(0, &logpb.Command{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}}); result.GetClockReset() == nil {
		c.t.Fatalf("the clock was not reset: %v", result)
	}
}

// restores resets machine and books to the state after some entries.
func (c *capped) restores(count int) {
	c.t.Helper()
	back := &capped{t: c.t, machine: fsm.New(), judge: New()}
	for _, entry := range c.entries[:count] {
		back.apply(entry)
	}
	var snapshot bytes.Buffer
	if err := back.machine.Freeze().WriteSnapshot(&snapshot); err != nil {
		c.t.Fatal(err)
	}
	machine, err := fsm.Restore(&snapshot)
	if err != nil {
		c.t.Fatal(err)
	}
	state := c.machine.State()
	c.index++
	epoch := state.Epoch() + 1
	machine.Rebase(c.index, 1, epoch, state.ClusterID(), state.Members(), state.Clock())
	judge, broken := c.judge.Restored(back.judge, epoch)
	if broken != nil {
		c.found = append(c.found, *broken)
	}
	c.machine, c.judge, c.entries = machine, judge, back.entries
}

// lowered lowers the window by a report to the few units that were consumed and remain, a second before the clocks go wrong.
func lowered(c *capped) {
	c.t.Helper()
	lease, fence := c.consumes()
	if total := c.reports(0, lease, fence, 8); total == nil || *total != 9 {
		c.t.Fatalf("the window was not lowered to 9: %v", total)
	}
	c.now += sec
}

// TestCaps_OverClockResets: a cap lasts as long as a single caller's report counts. A reset of the clock, with or without a restore before
// it, moves its end with the views and does not extend it.
func TestCaps_OverClockResets(t *testing.T) {
	for name, play := range map[string]func(c *capped){
		"a clock reset": func(c *capped) {
			c.ahead = 4500 * mil
			c.consumes() // while the clocks are ahead
			c.ahead = 0
			c.reset()
		},
		"a restore and a clock reset": func(c *capped) {
			backup := len(c.entries)
			c.ahead = 4500 * mil
			c.consumes()
			c.restores(backup)
			c.ahead = 0
			c.reset()
		},
		"a clock reset and a restore of before it": func(c *capped) {
			c.ahead = 4500 * mil
			c.consumes()
			backup := len(c.entries)
			c.ahead = 0
			c.reset()
			c.restores(backup)
			c.reset() // the restored views are ahead again
		},
		"a clock reset and a restore of after it": func(c *capped) {
			c.ahead = 4500 * mil
			c.consumes()
			c.ahead = 0
			c.reset()
			c.restores(len(c.entries))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapped(t)
			lowered(c)
			play(c)
			lease, fence := c.consumes() // in the window that began with the reset
			raised := false
			for range 100 { // the cap ends within the window that began with the reset
				total := c.reports(100*mil, lease, fence, 60)
				raised = raised || total != nil && *total > 10
			}
			if len(c.found) > 0 {
				t.Errorf("%+v", c.found[0])
			}
			if !raised {
				t.Error("no report lowered the window after its first cap had ended")
			}
		})
	}
}

// TestCaps_WhileClocksDisagree: while the views of Unix time are far apart, a cap ends once both have passed a boundary. The same caller's
// next report begins a cap that lasts its own time, also after the views meet again.
func TestCaps_WhileClocksDisagree(t *testing.T) {
	const year = 365 * 24 * 3600 * sec
	c := newCapped(t)
	c.apart = year
	lowered(c)
	c.now += 11 * sec // both views passed a boundary
	lease, fence := c.consumes()
	if total := c.reports(0, lease, fence, 1); total == nil {
		t.Fatal("the second report lowered nothing")
	}
	c.now += 5 * sec
	c.apart, c.ahead = 0, year // the time of the first report is over by both views, that of the second is not
	refused := false
	for range 10 {
		if _, _, granted := c.tries(); !granted {
			refused = true
		}
	}
	if !refused {
		t.Error("the second cap ended with the first one's time")
	}
	if len(c.found) > 0 {
		t.Errorf("%+v", c.found[0])
	}
}
