package fsm

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
)

// history draws random commands that mostly make sense: they name leases, operations and tickets that exist or existed.
type history struct {
	*rapid.T
	leases   []*logpb.Granted
	tickets  []uint64
	sessions []uint64
	nextOp   uint64
	seq      map[uint64]uint64
	// fences are those of begun attempts.
	fences []uint64
}

var (
	randomQuotas  = []string{"rate", "burst", "hour", "minute", "anchored", "slots", "org", "org/team", "ends", "keys", "tokens"}
	randomHolders = []string{"boss", "std-1", "std-2", "std-3", "low-1", "low-2"}
)

func randomWorldQuotas() []*logpb.Quota {
	burst := rateOf("burst", 60, minute)
	burst.GetRate().Burst = 10
	short := &logpb.Quota{Name: "minute", Rule: &logpb.Quota_Window{
		Window: &logpb.Window{Limit: 20, EveryNs: minute, SkewNs: 200 * millisecond},
	}}
	team := rateOf("org/team", 8, 10*second)
	team.Parent = "org"
	pooled := under(rateOf("org/pooled", 6, 10*second), "org")
	ends := rateOf("ends", 12, 10*second)
	ends.Charged, ends.MaxCallNs = logpb.Charged_CHARGED_END, 5*second
	clamped := rateOf("rate", 30, 10*second)
	clamped.ClampHold, clamped.HeadroomPpm = true, 200_000
	return []*logpb.Quota{
		policed(clamped, &logpb.Policy{Shares: fleetShares(), RampNs: 30 * second, Breaker: &logpb.Breaker{
			Failures: 2,
			ClosedNs: 20 * second,
		}}), burst,
		policed(insteadOf(hourly("hour", 50), "burst"), &logpb.Policy{
			Zones: logpb.Zones_ZONES_SMOOTH, Shares: fleetShares(), AgeingNs: minute, Prediction: &logpb.Prediction{AheadNs: hour}, Metering: true,
		}),
		strict(short),
		policed(insteadOf(anchored("anchored", 40), "hour"), &logpb.Policy{
			Shares: &logpb.Shares{Holders: []*logpb.HolderShare{{Holder: "boss", SharePpm: 200_000}, {Holder: "std-1", SharePpm: 100_000}}},
		}),
		policed(slotsOf("slots", 3), &logpb.Policy{RampNs: 20 * second, AgeingNs: 10 * second}),
		policed(rateOf("org", 10, 10*second), &logpb.Policy{
			Prediction: &logpb.Prediction{}, Shares: &logpb.Shares{CriticalPpm: 300_000, CapPpm: 500_000, QuietNs: 20 * second},
		}),
		policed(insteadOf(team, "rate"), &logpb.Policy{Breaker: &logpb.Breaker{Failures: 3}, AgeingNs: 20 * second, Metering: true}),
		policed(ends, &logpb.Policy{Shares: fleetShares(), AgeingNs: 10 * second}),
		policed(pooled, &logpb.Policy{AgeingNs: 20 * second}), sticky(poolOf("keys", "rate", "burst")), poolOf("tokens", "burst", "org/pooled"),
	}
}

// randomWorkflows have the random holders, some of them in both.
func randomWorkflows(t *rapid.T) []*logpb.Workflow {
	all := []*logpb.Workflow{
		chain("chain", "low-1", "std-1", "boss", "std-2"), graph("rest", after("std-2"), after("std-3"), after("std-1", "std-3", "std-2")),
	}
	for _, w := range all {
		w.Threshold = rapid.Int32Range(1, 3).Draw(t, "threshold")
		w.BatonTimeNs, w.CalmNs, w.PauseNs = 3*second, rapid.SampledFrom([]int64{5 * second, minute}).Draw(t, "calm"), 4*second
	}
	return all[:rapid.IntRange(0, 2).Draw(t, "workflows")]
}

func (h *history) item() *logpb.Item {
	it := &logpb.Item{Quota: rapid.SampledFrom(randomQuotas).Draw(h.T, "quota")}
	if rapid.IntRange(0, 5).Draw(h.T, "estimate") > 0 {
		amount := rapid.Int64Range(1, 6).Draw(h.T, "amount")
		it.Amount = &amount
	}
	return it
}

func (h *history) items(most int) []*logpb.Item {
	var items []*logpb.Item
	for range rapid.IntRange(0, most).Draw(h.T, "items") {
		it := h.item()
		if !func() bool {
			for _, other := range items {
				if other.Quota == it.Quota {
					return true
				}
			}
			return false
		}() {
			items = append(items, it)
		}
	}
	return items
}

func (h *history) lease() (id, fence uint64, items []*logpb.GrantedItem) {
	if len(h.leases) == 0 {
		return 1, 1, nil
	}
	g := h.leases[rapid.IntRange(0, len(h.leases)-1).Draw(h.T, "lease")]
	fence = g.Fence
	if rapid.IntRange(0, 20).Draw(h.T, "wrong fence") == 0 {
		fence--
	}
	return g.Lease, fence, g.Items
}

func (h *history) op() uint64 {
	if rapid.IntRange(0, 2).Draw(h.T, "old op") > 0 && h.nextOp > 1 {
		return rapid.Uint64Range(1, h.nextOp).Draw(h.T, "op")
	}
	h.nextOp++
	return h.nextOp
}

func (h *history) reserve() *logpb.Command {
	r := &logpb.Reserve{Holder: rapid.SampledFrom(randomHolders).Draw(h.T, "holder"), Items: h.items(3)}
	if len(r.Items) == 0 {
		r.Items = []*logpb.Item{h.item()}
	}
	r.Consume = rapid.Bool().Draw(h.T, "consume")
	r.TtlNs = rapid.SampledFrom([]int64{0, second, 3 * second, 20 * second, minute}).Draw(h.T, "ttl")
	if rapid.Bool().Draw(h.T, "waits") {
		r.WaitNs = rapid.SampledFrom([]int64{second, 10 * second, minute}).Draw(h.T, "wait")
	}
	r.Fallback = rapid.Bool().Draw(h.T, "fallback")
	r.Resume = rapid.IntRange(0, 12).Draw(h.T, "resume") == 0
	if rapid.IntRange(0, 12).Draw(h.T, "pins") == 0 {
		r.Member = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(h.T, "member")
	}
	return reserve(r)
}

// someOf returns items of a grant with amounts between 0 and slightly too much.
func (h *history) someOf(items []*logpb.GrantedItem) []*logpb.Item {
	var some []*logpb.Item
	for _, it := range items {
		if rapid.Bool().Draw(h.T, "this item") {
			some = append(some, itemOf(it.Quota, rapid.Int64Range(0, it.Amount+2).Draw(h.T, "part")))
		}
	}
	return some
}

// command draws a command and its payer.
func (h *history) command() *logpb.Command {
	c := h.uncharged()
	c.Caller = rapid.SampledFrom([]string{"", "token:a", "token:b", "address:192.0.2.1", "address:192.0.2.2"}).Draw(h.T, "caller")
	c.PerHolder = strings.HasPrefix(c.Caller, "address:")
	if strings.HasPrefix(c.Caller, "token:") && rapid.IntRange(0, 3).Draw(h.T, "reach") == 0 {
		c.By = "*"
	}
	c.Operator = rapid.IntRange(0, 5).Draw(h.T, "operator") == 0
	return c
}

func (h *history) uncharged() *logpb.Command {
	id, fence, items := h.lease()
	switch rapid.IntRange(0, 21).Draw(h.T, "kind") {
	case 0, 1, 2, 3, 4, 5:
		return h.reserve()
	case 6:
		command := h.reserve()
		command.IdempotencyKey = rapid.SampledFrom([]string{"k1", "k2", "k3", "k4", "k5"}).Draw(h.T, "key")
		return command
	case 7, 8, 9:
		return consumeCmd(&logpb.Consume{
			Lease: id, Fence: fence, Op: h.op(), Items: h.someOf(items),
			DoneBelow: rapid.SampledFrom([]uint64{0, 0, 0, h.nextOp / 2}).Draw(h.T, "done below"),
		})
	case 10, 11, 12:
		s := &logpb.Settle{
			Lease: id, Fence: fence, Op: h.op(), Final: rapid.Bool().Draw(h.T, "final"),
			Release: rapid.IntRange(0, 5).Draw(h.T, "release") == 0,
		}
		if rapid.Bool().Draw(h.T, "unspent") {
			s.Unspent = h.someOf(items)
		}
		if rapid.Bool().Draw(h.T, "actual") {
			s.Actual = h.someOf(items)
		}
		return settle(s)
	case 13:
		return release(&logpb.Release{Lease: id, Fence: fence, Items: h.someOf(items)})
	case 14:
		return renew(&logpb.Renew{Lease: id, Fence: fence})
	case 15:
		if len(h.tickets) > 0 {
			return withdraw(rapid.SampledFrom(h.tickets).Draw(h.T, "ticket"))
		}
		return h.reserve()
	case 16, 17:
		return report(&logpb.Report{Lease: id, Fence: fence, Op: h.op(), Signals: h.signals(items)})
	case 18:
		return h.admin(id)
	case 19, 20:
		return h.task()
	}
	if len(h.sessions) == 0 {
		return &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "x"}}}
	}
	session := rapid.SampledFrom(h.sessions).Draw(h.T, "session")
	if rapid.IntRange(0, 7).Draw(h.T, "closes") == 0 {
		return closesSession(session)
	}
	command := h.reserve()
	command.Session = session
	h.seq[command.Session]++
	command.Seq = h.seq[command.Session]
	return command
}

// task draws a command on one of three tasks, which use quotas.
func (h *history) task() *logpb.Command {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(h.T, "task")
	fence := uint64(1)
	if len(h.fences) > 0 {
		fence = rapid.SampledFrom(h.fences).Draw(h.T, "attempt")
	}
	switch rapid.IntRange(0, 9).Draw(h.T, "task's") {
	case 0, 1, 2, 3:
		c := begins(name, rapid.SampledFrom(randomHolders).Draw(h.T, "holder"), rapid.Int32Range(0, 3).Draw(h.T, "most"))
		c.GetBeginTask().TtlNs = rapid.SampledFrom([]int64{0, second, 20 * second}).Draw(h.T, "ttl")
		for _, it := range h.items(2) {
			c.GetBeginTask().Quotas = append(c.GetBeginTask().Quotas, it.Quota)
		}
		return c
	case 4, 5, 6:
		return endsAfter(name, fence, logpb.TaskOutcome(rapid.Int32Range(1, 5).Draw(h.T, "outcome")),
			rapid.SampledFrom([]int64{0, second, minute}).Draw(h.T, "wait"), logpb.Cause(rapid.Int32Range(0, 7).Draw(h.T, "cause")))
	case 7:
		return renewsTask(name, fence, 0)
	case 8:
		return forgets(name)
	}
	return retries(name)
}

func (h *history) signals(items []*logpb.GrantedItem) []*logpb.Signal {
	var signals []*logpb.Signal
	for _, it := range items {
		s := &logpb.Signal{Quota: it.Quota, Cause: logpb.Cause(rapid.IntRange(1, 7).Draw(h.T, "cause"))}
		if rapid.Bool().Draw(h.T, "remaining") {
			s.Remaining = new(rapid.Int64Range(0, 50).Draw(h.T, "left"))
		}
		if rapid.IntRange(0, 3).Draw(h.T, "names a limit") == 0 {
			s.Limit = new(rapid.Int64Range(0, 80).Draw(h.T, "limit"))
		}
		if rapid.Bool().Draw(h.T, "reset") {
			s.ResetAfterNs = new(rapid.Int64Range(0, hour).Draw(h.T, "after"))
		}
		if rapid.Bool().Draw(h.T, "retry") {
			s.RetryAfterNs = new(rapid.Int64Range(0, 20*second).Draw(h.T, "retry after"))
		}
		signals = append(signals, s)
	}
	return signals
}

// limits draws limits that are sometimes reached, or the usual ones.
func (h *history) limits() *logpb.Command {
	bound := func(name string, usual int64) *int64 {
		return new(rapid.SampledFrom([]int64{2, 8, 40, usual}).Draw(h.T, name))
	}
	return limitsTo(func(l *logpb.SetLimits) {
		l.MaxLeases, l.MaxKeys, l.MaxWaiters = bound("leases", accounts.DefaultMaxLeases), bound("keys",
			accounts.DefaultMaxKeys), bound("waiters", 200_000)
		l.MaxTasks, l.MaxReports, l.MaxSessions = bound("tasks", accounts.DefaultMaxTasks), bound("reports",
			accounts.DefaultMaxReports), bound("sessions", 262_144)
		l.MaxResultBytes = new(rapid.SampledFrom([]int64{1000, 10_000, 256 << 20}).Draw(h.T, "results"))
		l.KeyLifeNs = new(rapid.SampledFrom([]int64{second, minute, day, math.MaxInt64}).Draw(h.T, "key life"))
		l.OperatorsPpm = new(rapid.SampledFrom([]int64{0, accounts.DefaultOperatorsPPM, accounts.MaxOperatorsPPM}).Draw(h.T, "operators"))
		l.CallerMinPpm = new(rapid.SampledFrom([]int64{0, accounts.DefaultCallerMinPPM, accounts.MaxCallerMinPPM}).Draw(h.T, "least"))
		l.MaxCalls = new(rapid.SampledFrom([]int64{accounts.MinCalls, accounts.DefaultMaxCalls}).Draw(h.T, "calls"))
		l.MaxStreams = new(rapid.SampledFrom([]int64{accounts.MinStreams, accounts.DefaultMaxStreams}).Draw(h.T, "streams"))
		l.MaxConnections = new(rapid.SampledFrom([]int64{accounts.DefaultMaxConnections, accounts.MaxOfNode}).Draw(h.T, "connections"))
	})
}

func (h *history) admin(lease uint64) *logpb.Command {
	switch rapid.IntRange(0, 13).Draw(h.T, "admin") {
	case 0:
		return &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: lease}}}
	case 1:
		return holders(&logpb.HolderRule{Pattern: "boss", Class: 0},
			&logpb.HolderRule{Pattern: "low-*", Class: 2, Weight: rapid.Int32Range(1, 4).Draw(h.T, "weight")})
	case 2:
		q := rateOf("rate", rapid.Int64Range(0, 60).Draw(h.T, "limit"), 10*second)
		return applyQuotas(q)
	case 3:
		all := randomWorldQuotas()
		for _, q := range all {
			if q.Name == "minute" { // with another skew the window may have begun by a later view
				q.GetWindow().SkewNs = rapid.SampledFrom([]int64{200 * millisecond, second, 5 * second}).Draw(h.T, "skew")
			}
		}
		return applyQuotas(all...)
	case 4:
		return overrides(rapid.SampledFrom(randomQuotas).Draw(h.T, "overridden"), rapid.Int64Range(0, 60).Draw(h.T, "limit"),
			rapid.SampledFrom([]int64{second, 20 * second, hour}).Draw(h.T, "lasts"))
	case 5:
		return endsOverride(rapid.SampledFrom(randomQuotas).Draw(h.T, "no longer overridden"))
	case 9:
		return reopens(rapid.SampledFrom(randomQuotas).Draw(h.T, "reopened"))
	case 7:
		return workflows(randomWorkflows(h.T)...)
	case 8:
		return deletesWorkflow("rest")
	case 10:
		return h.limits()
	case 11:
		return applyQuotas(poolOf("tokens", rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"rate", "burst", "org/pooled", "ends"}), 1, 3,
			rapid.ID).Draw(h.T, "members")...))
	case 12:
		return &logpb.Command{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}}
	case 13:
		return h.nodes()
	}
	return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{
		Quota: rapid.SampledFrom([]string{"minute", "org/team", "ends", "keys"}).Draw(h.T, "deleted"),
		Force: rapid.Bool().Draw(h.T, "force"),
	}}}
}

// nodes draws one of the commands that nodes send.
func (h *history) nodes() *logpb.Command {
	id := rapid.SampledFrom([]string{"n1", "n2"}).Draw(h.T, "node")
	switch rapid.IntRange(0, 3).Draw(h.T, "node's") {
	case 0:
		return founds("c")
	case 1:
		return raisesEpoch(rapid.Uint32Range(0, 2).Draw(h.T, "epoch"))
	case 2:
		return deleteMember(id)
	}
	return putMember(id, rapid.SampledFrom([]string{"a:1", "b:1"}).Draw(h.T, "address"))
}

// learn records the objects that results and events name.
func (h *history) learn(applied Applied) {
	for _, r := range applied.Results {
		if g := r.GetGranted(); g != nil {
			h.leases = append(h.leases, g)
		}
		if w := r.GetWaiting(); w != nil {
			h.tickets = append(h.tickets, w.Ticket)
		}
		if b := r.GetTaskBegun(); b.GetAttempt() != 0 {
			h.fences = append(h.fences, b.Fence)
		}
		if s := r.GetSessionOpened(); s != nil {
			h.sessions = append(h.sessions, s.Session)
		}
	}
	for _, e := range applied.Events {
		if g := e.Result.GetGranted(); g != nil {
			h.leases = append(h.leases, g)
		}
	}
}

// TestRandomHistories_HaveEveryKind: a new kind must be drawn too.
func TestRandomHistories_HaveEveryKind(t *testing.T) {
	draws := rapid.Custom(func(rt *rapid.T) *logpb.Command {
		h := &history{T: rt, seq: map[uint64]uint64{}, tickets: []uint64{1}}
		if rapid.Bool().Draw(rt, "has sessions") {
			h.sessions = []uint64{1}
		}
		return h.command()
	})
	has := map[protoreflect.Name]bool{}
	for seed := range 20_000 { // the rarest kind is one of 900
		has[kindOf(draws.Example(seed))] = true
	}
	for _, kind := range kindsOf(&logpb.Command{}) {
		if !has[kind] {
			t.Errorf("no %s is drawn", kind)
		}
	}
}

// TestRandomHistories drives a machine through random commands, and checks after every entry that all totals are the
// sums of their parts (in world.apply). At random entries a machine restored from its own snapshot replaces it. A twin
// without restores must give the same results, events and hashes, and a follower the same except results. Some restores
// are of a backup: all machines are fitted into a cluster whose time has advanced, and only the machine is written and
// read after that.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, twin, follower := newWorld(rt), New(), New()
		follower.freeList.most = 0 // ended objects are not reused: the outcome must not differ
		// Protobuf decodes the twin's entries, so no object is reused for the next command.
		twin.decoder.Wholly = true
		for _, m := range []*Machine{w.m, twin, follower} {
			m.bounds = tight(2) // most long work is left to later entries
		}
		h := &history{T: rt, seq: map[uint64]uint64{}}
		step := func(commands ...*logpb.Command) {
			w.apply(commands...)
			other := twin.Apply(w.index, 1, w.entries[len(w.entries)-1])
			sameApplied(rt, w.last, other)
			followed := follower.Follow(w.index, 1, w.entries[len(w.entries)-1])
			spoil(&follower.decoder)
			other.Results = nil
			sameApplied(rt, other, followed)
			h.learn(w.last)
		}
		step(applyQuotas(randomWorldQuotas()...), workflows(randomWorkflows(rt)...))
		for range rapid.IntRange(1, 120).Draw(rt, "entries") {
			switch rapid.IntRange(0, 9).Draw(rt, "cut") {
			case 0:
				w.reborn()
			case 1:
				w.rebased(rapid.SampledFrom(restoredAfter).Draw(rt, "restored after"), w.m, twin, follower)
				w.reborn()
			}
			w.now += rapid.SampledFrom([]int64{0, millisecond, 300 * millisecond, second, 4 * second, minute}).Draw(rt, "sleep")
			w.early = -rapid.Int64Range(0, second).Draw(rt, "early")
			w.late = rapid.Int64Range(0, second).Draw(rt, "late")
			var commands []*logpb.Command
			for range rapid.IntRange(0, 4).Draw(rt, "commands") {
				commands = append(commands, h.command())
			}
			step(commands...)
			checkCeiling(rt, w, slices.ContainsFunc(commands, func(c *logpb.Command) bool { return c.GetReport() != nil }))
		}
		ledger, whole := w.m.State().Hash()
		for name, other := range map[string]*Machine{"twin": twin, "follower": follower} {
			otherLedger, otherWhole := other.State().Hash()
			if ledger != otherLedger || whole != otherWhole {
				rt.Fatalf("the %s's hashes differ", name)
			}
		}
	})
}

// restoredAfter are times between a backup and its restore.
var restoredAfter = []int64{0, millisecond, second, 4 * second, 15 * second, 2 * minute, hour}

// rebased fits machines into a cluster whose time has advanced, and which has applied some entries since.
func (w *world) rebased(elapsed int64, machines ...*Machine) {
	w.now, w.index = w.now+elapsed, w.index+1+uint64(elapsed/second)
	term, epoch, floor := w.m.State().Term(), w.m.State().Epoch()+1, w.clock()
	for _, m := range machines {
		m.Rebase(w.index, term, epoch, "", nil, floor)
	}
}

// checkCeiling checks that a grant left held + consumed within usable, in the quota and in its ancestors. Without a
// report in its entry, it also left the amount held back for others.
func checkCeiling(t *rapid.T, w *world, reported bool) {
	for i, e := range w.last.Events {
		if e.Kind != effect.EventGranted || i+1 < len(w.last.Events) {
			continue // later events may have charged an overrun or lowered the limit
		}
		for q := w.m.quotas.named(e.Quota); q != nil; q = w.m.quotas.get(q.parent) {
			l := q.ledgerAt(w.m.clock)
			left := l.Available(&q.rule)
			if reported {
				left += l.Others.Kept
			}
			if left < 0 {
				t.Fatalf("the last event granted %d of %q and left %d of %q", e.Amount, e.Quota, left, q.name)
			}
		}
	}
}

func sameApplied(t *rapid.T, a, b Applied) {
	if len(a.Results) != len(b.Results) || len(a.Events) != len(b.Events) {
		t.Fatalf("%d results and %d events, the twin has %d and %d\n%v\n%v",
			len(a.Results), len(a.Events), len(b.Results), len(b.Events), a.Events, b.Events)
	}
	for i := range a.Results {
		if !proto.Equal(a.Results[i], b.Results[i]) {
			t.Fatalf("result %d: %v, the twin's: %v", i, a.Results[i], b.Results[i])
		}
	}
	for i := range a.Events {
		x, y := a.Events[i], b.Events[i]
		if !proto.Equal(x.Result, y.Result) {
			t.Fatalf("event %d: %v, the twin's: %v", i, x, y)
		}
		x.Result, y.Result = nil, nil
		if fmt.Sprint(x) != fmt.Sprint(y) {
			t.Fatalf("event %d: %v, the twin's: %v", i, x, y)
		}
	}
	if a.Clock != b.Clock {
		t.Fatalf("clock %v, the twin's %v", a.Clock, b.Clock)
	}
}

func TestSnapshot_SameAfterRestore(t *testing.T) {
	w := newWorld(t)
	w.quotas(randomWorldQuotas()...)
	w.granted(ask("me", itemOf("rate", 3), itemOf("slots", 1)))
	var first, second bytes.Buffer
	if err := w.m.Freeze().WriteSnapshot(&first); err != nil {
		t.Fatal(err)
	}
	w.reborn()
	if err := w.m.Freeze().WriteSnapshot(&second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Fatal("a restored state writes another snapshot")
	}
}

// spoil makes a decoder decode something else: parts kept of the previous command change.
func spoil(d *entry.Decoder) {
	forgotten := &logpb.Reserve{Holder: "forgotten", Class: new(int32(99))}
	for range entry.PlainItems {
		forgotten.Items = append(forgotten.Items, itemOf("forgotten", -1))
	}
	command := reserve(forgotten)
	command.By, command.Caller = "forgotten", "forgotten"
	data, err := proto.Marshal(&logpb.Entry{Commands: []*logpb.Command{command}})
	if err != nil {
		panic(err)
	}
	if err := d.Decode(data); err != nil {
		panic(err)
	}
	if _, raw, err := d.Command(0); raw == nil || err != nil {
		panic("not decoded in place")
	}
}
