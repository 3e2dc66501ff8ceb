package fsm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/logpb"
)

// openCall is an operation of a mixed history, as its holder sees it.
type openCall struct {
	lease  *logpb.Granted
	op     uint64
	quota  string
	amount int64
	use    int64 // the amount that it really spends
	at     int64 // when, in real time
}

// mixed is a fleet that does everything with its leases: it consumes them in parts, waits, returns unspent amounts,
// settles the actual use, releases, renews, or omits all of that.
type mixed struct {
	fleet
	limit  int64
	of     map[string][]spend // by quota and by parent
	leases []*logpb.Granted
	ops    map[uint64]uint64
	calls  []openCall
	asked  map[uint64]string // quota by ticket
}

// TestMixedHistories_NeverExceed: whatever holders do with their leases and report, no interval of one period sees more
// than usable. This holds in a quota and in its parent, in a pool or not, with shares or without. A quota whose limit
// changes never sees more than its largest limit.
func TestMixedHistories_NeverExceed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const period = 10 * second
		m := &mixed{
			fleet: fleet{T: rt, w: newWorld(rt)}, limit: 20, of: map[string][]spend{}, ops: map[uint64]uint64{}, asked: map[uint64]string{},
		}
		policy := &logpb.Policy{}
		if rapid.Bool().Draw(rt, "policies") {
			policy = &logpb.Policy{
				Shares: fleetShares(), AgeingNs: 5 * second, Prediction: &logpb.Prediction{},
				RampNs: rapid.SampledFrom([]int64{0, 5 * second}).Draw(rt, "ramp"),
			}
		}
		child := func(name string) *logpb.Quota {
			return with(policed(rateOf(name, 14, period), policy), func(q *logpb.Quota) { q.Parent = "org" })
		}
		m.w.quotas(policed(rateOf("org", 20, period), policy), child("org/a"), child("org/b"), poolOf("any", "org/a", "org/b"))
		m.w.do(criticalAndBackground())
		largest := int64(20)
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			m.pass(rapid.SampledFrom([]int64{0, 0, 20 * millisecond, 300 * millisecond, 4 * second, period - 300*millisecond, period}).Draw(rt,
				"pass"))
			switch rapid.IntRange(0, 11).Draw(rt, "what") {
			case 0, 1, 2:
				m.reserve()
			case 3, 4, 5:
				m.consumeSome()
			case 6, 7:
				m.settleOne()
			case 8:
				m.endOne()
			case 9:
				limit := rapid.Int64Range(5, 30).Draw(rt, "limit")
				largest = max(largest, limit)
				m.do(applyQuotas(policed(rateOf("org", limit, period), policy)))
			case 10:
				m.report()
			case 11:
				m.w.reborn()
			}
		}
		for quota, usable := range map[string]int64{"org": largest, "org/a": 14, "org/b": 14} {
			if most := peak(m.of[quota], period); most > usable {
				rt.Fatalf("an interval of one period saw %d of %s, usable is %d", most, quota, usable)
			}
		}
	})
}

// do carries out a command, and records its grants at once, in the same moment.
func (m *mixed) do(command *logpb.Command) *logpb.Result {
	r := m.w.do(command)
	m.learnGrants()
	return r
}

func (m *mixed) quota() string {
	return rapid.SampledFrom([]string{"org/a", "org/b", "org", "any", "any"}).Draw(m.T, "quota")
}

func (m *mixed) reserve() {
	quota := m.quota()
	a := ask(rapid.SampledFrom([]string{"x", "y", "crit", "back"}).Draw(m.T, "holder"),
		itemOf(quota, rapid.SampledFrom([]int64{1, 3, 7, 14}).Draw(m.T, "amount")))
	a.TtlNs = rapid.SampledFrom([]int64{second, 5 * second, 30 * second}).Draw(m.T, "ttl")
	a.Consume = rapid.Bool().Draw(m.T, "consume")
	if rapid.Bool().Draw(m.T, "waits") {
		a.WaitNs = 10 * second
	}
	m.do(reserve(a))
}

// learnGrants records all grants of the last entry.
func (m *mixed) learnGrants() {
	take := func(g *logpb.Granted) {
		if g == nil || m.ops[g.Lease] > 0 {
			return
		}
		m.leases = append(m.leases, g)
		m.ops[g.Lease] = 1
		if g.Consumed != nil {
			m.begin(g, 1, g.Consumed)
		}
	}
	for _, r := range m.w.last.Results {
		take(r.GetGranted())
	}
	for i := range m.w.last.Events {
		take(m.w.last.Events[i].Result.GetGranted())
	}
}

// begin draws the amount that an operation spends, and when.
func (m *mixed) begin(g *logpb.Granted, op uint64, c *logpb.Consumed) {
	left := max(c.SpendByNs-m.w.m.State().Clock().Now, 0)
	amount := c.Items[0].Amount
	use, after := amount, rapid.SampledFrom([]int64{0, left / 2, left}).Draw(m.T, "spent after")
	if rapid.Bool().Draw(m.T, "not all") {
		use = rapid.Int64Range(0, amount).Draw(m.T, "use")
	}
	o := openCall{lease: g, op: op, quota: c.Items[0].Quota, amount: amount, use: use, at: m.real + after}
	m.calls = append(m.calls, o)
	for _, name := range slices.Compact([]string{o.quota, "org"}) {
		m.of[name] = append(m.of[name], spend{at: o.at, amount: o.use})
	}
}

func (m *mixed) someLease() *logpb.Granted {
	if len(m.leases) == 0 {
		return nil
	}
	return rapid.SampledFrom(m.leases).Draw(m.T, "lease")
}

func (m *mixed) consumeSome() {
	g := m.someLease()
	if g == nil {
		return
	}
	m.ops[g.Lease]++
	op := m.ops[g.Lease]
	part := itemOf(g.Items[0].Quota, rapid.Int64Range(1, g.Items[0].Amount).Draw(m.T, "part"))
	r := m.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: op, Items: []*logpb.Item{part}}))
	if c := r.GetConsumed(); c != nil {
		m.begin(g, op, c)
	}
}

// settleOne returns the unspent part of an operation, before or after its spend, or settles its actual use.
func (m *mixed) settleOne() {
	if len(m.calls) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.calls)-1).Draw(m.T, "operation")
	o := m.calls[i]
	s := &logpb.Settle{Lease: o.lease.Lease, Fence: o.lease.Fence, Op: o.op}
	if rapid.Bool().Draw(m.T, "unspent") && o.amount > o.use {
		s.Unspent = []*logpb.Item{itemOf(o.quota, rapid.Int64Range(1, o.amount-o.use).Draw(m.T, "back"))}
	}
	if m.real >= o.at && rapid.Bool().Draw(m.T, "actual") { // it is known only then
		s.Actual = []*logpb.Item{itemOf(o.quota, o.use)}
		s.Final = true
	}
	if len(s.Unspent)+len(s.Actual) == 0 {
		return
	}
	m.do(settle(s))
}

// endOne releases, renews or resumes.
func (m *mixed) endOne() {
	g := m.someLease()
	if g == nil {
		return
	}
	switch rapid.IntRange(0, 3).Draw(m.T, "end") {
	case 0:
		m.do(releases(g.Lease))
	case 1:
		m.do(releases(g.Lease, itemOf(g.Items[0].Quota, 1)))
	case 2:
		m.do(renews(g.Lease, 5*second))
	case 3:
		a := ask("x", itemOf(m.quota(), 2))
		a.Resume = true
		m.do(reserve(a))
	}
}

// report reports some of a provider's answer: the remainder, its limit, or a refusal of the call.
func (m *mixed) report() {
	if len(m.calls) == 0 {
		return
	}
	o := rapid.SampledFrom(m.calls).Draw(m.T, "operation")
	said := signal(o.quota, rapid.SampledFrom([]logpb.Cause{
		logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_SATURATED,
		logpb.Cause_CAUSE_ACCOUNT,
	}).Draw(m.T, "cause"), remaining(rapid.Int64Range(0, 14).Draw(m.T, "remaining")))
	if rapid.Bool().Draw(m.T, "names a limit") {
		said.Limit = new(rapid.Int64Range(0, 30).Draw(m.T, "its limit"))
	}
	if said.Cause != logpb.Cause_CAUSE_OK {
		said.RetryAfterNs = new(rapid.SampledFrom([]int64{second, 7 * second}).Draw(m.T, "retry after"))
	}
	m.do(report(&logpb.Report{Lease: o.lease.Lease, Fence: o.lease.Fence, Op: o.op, Signals: []*logpb.Signal{said}}))
}
