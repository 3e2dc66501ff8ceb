package fsm

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestRestore_KeepsTheBoundsOfApply: a snapshot with a value that no command could have caused is refused, even with a
// valid checksum. The largest value that Apply can reach is restored.
func TestRestore_KeepsTheBoundsOfApply(t *testing.T) {
	records := recordsOf(livelier(t))
	head := func(change func(*logpb.SnapshotHead)) func(*logpb.SnapshotRecord) {
		return func(r *logpb.SnapshotRecord) {
			if r.GetHead() != nil {
				change(r.GetHead())
			}
		}
	}
	rule := func(change func(*logpb.HolderRule)) func(*logpb.SnapshotRecord) {
		return func(r *logpb.SnapshotRecord) {
			if r.GetRule() != nil {
				change(r.GetRule())
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*logpb.SnapshotRecord)
		// accepted by Restore, by RestoreBackup
		taken, backup bool
	}{
		"as it is":               {change: func(*logpb.SnapshotRecord) {}, taken: true, backup: true},
		"a class above":          {change: rule(func(r *logpb.HolderRule) { r.Class = 3 })},
		"a class below":          {change: rule(func(r *logpb.HolderRule) { r.Class = -1 })},
		"a weight":               {change: rule(func(r *logpb.HolderRule) { r.Weight = maxWeight + 1 })},
		"no pattern":             {change: rule(func(r *logpb.HolderRule) { r.Pattern = "" })},
		"an epoch beyond":        {change: head(func(h *logpb.SnapshotHead) { h.Epoch = MaxEpoch + 1 })},
		"the last epoch":         {change: head(func(h *logpb.SnapshotHead) { h.Epoch = MaxEpoch }), taken: true},
		"the last but one epoch": {change: head(func(h *logpb.SnapshotHead) { h.Epoch = MaxEpoch - 1 }), taken: true, backup: true},
		"grants":                 {change: head(func(h *logpb.SnapshotHead) { h.Grants = 1 << 48 })},
		"a lease's number":       {change: head(func(h *logpb.SnapshotHead) { h.LastLease = 1<<62 + 1 }), taken: true},
		"a session's number":     {change: head(func(h *logpb.SnapshotHead) { h.LastSession = 1<<64 - 1 }), taken: true},
		"a wait set's number":    {change: head(func(h *logpb.SnapshotHead) { h.LastWaitSet = 1<<31 + 1 }), taken: true},
		"a time":                 {change: head(func(h *logpb.SnapshotHead) { h.NowNs = fixed.MaxTime + 1 })},
		"an early view":          {change: head(func(h *logpb.SnapshotHead) { h.WallEarlyNs = fixed.MaxTime + 1 })},
		"views the wrong way":    {change: head(func(h *logpb.SnapshotHead) { h.WallLateNs = h.WallEarlyNs - 1 })},
		"no limits":              {change: head(func(h *logpb.SnapshotHead) { h.Limits = nil })},
		"limits of nothing":      {change: head(func(h *logpb.SnapshotHead) { h.Limits.MaxWaiters = new(int64(0)) })},
		"an operators' part": {
			change: head(func(h *logpb.SnapshotHead) { h.Limits.OperatorsPpm = new(int64(accounts.MaxOperatorsPPM + 1)) }),
		},
		"reports to come": {change: func(r *logpb.SnapshotRecord) {
			if r.GetAccount().GetReports() > 0 {
				r.GetAccount().Minute++
			}
		}},
		"an overrun": {change: func(r *logpb.SnapshotRecord) {
			for _, e := range r.GetQuota().GetLog() {
				e.Overrun = e.Amount
			}
		}},
		"a quota without a number": {change: func(r *logpb.SnapshotRecord) {
			if r.GetQuota().GetDefinition().GetSlots() != nil && r.GetQuota().GetDefinition().Parent == "" {
				r.GetQuota().Number = 0
			}
		}},
		"an ancestor of another kind": {change: func(r *logpb.SnapshotRecord) {
			if r.GetQuota().GetDefinition().GetName() == "falls" {
				r.GetQuota().Definition.Parent = "rate"
			}
		}},
		"a window that no boundary ends": {change: func(r *logpb.SnapshotRecord) {
			if r.GetQuota().GetDefinition().GetName() == "hour" {
				r.GetQuota().Window--
			}
		}},
		"a window to come": {change: func(r *logpb.SnapshotRecord) {
			if r.GetQuota().GetDefinition().GetName() == "hour" {
				r.GetQuota().Window += 2 * hour
			}
		}},
		"a pool of several kinds": {change: func(r *logpb.SnapshotRecord) {
			if members := r.GetQuota().GetDefinition().GetPool().GetMembers(); len(members) > 1 {
				members[1].Quota = "falls"
			}
		}},
		"a cap on slots": {change: func(r *logpb.SnapshotRecord) {
			if r.GetQuota().GetDefinition().GetSlots() != nil {
				r.GetQuota().Cap = new(int64(0))
			}
		}},
		"a use without an end": {change: func(r *logpb.SnapshotRecord) {
			if r.GetQuota().GetDefinition().GetName() == "rate" {
				r.GetQuota().UsedEnds = nil
			}
		}},
	} {
		changed := make([]*logpb.SnapshotRecord, len(records))
		for i, record := range records {
			changed[i] = proto.CloneOf(record)
			c.change(changed[i])
		}
		snapshot := encodedRecords(t, changed)
		if _, err := Restore(bytes.NewReader(snapshot)); c.taken && err != nil || !c.taken && !errors.Is(err, ErrCorruptSnapshot) {
			t.Errorf("%s: taken: %t, wanted %t: %v", name, err == nil, c.taken, err)
		}
		if _, err := RestoreBackup(bytes.NewReader(snapshot)); c.backup && err != nil || !c.backup && !errors.Is(err, ErrCorruptSnapshot) {
			t.Errorf("%s: taken as a backup: %t, wanted %t: %v", name, err == nil, c.backup, err)
		}
	}
	many := &restoring{m: New()}
	for range maxRules {
		many.m.rules.list = append(many.m.rules.list, &logpb.HolderRule{Pattern: "x"})
	}
	if many.take(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Rule{Rule: &logpb.HolderRule{Pattern: "x"}}}) == nil {
		t.Error("more rules than there can be")
	}
}

// TestRestore_TakesAWindowThatBeganByALaterViewThanThePresentOne: the late view may fall, and a quota's skew may become smaller, but a
// window that has begun stays. If Restore refused such a window, every snapshot of that state would count as damaged.
func TestRestore_TakesAWindowThatBeganByALaterViewThanThePresentOne(t *testing.T) {
	skewed := func(skew int64) *logpb.Quota {
		q := hourly("h", 10)
		q.GetWindow().SkewNs = skew
		return q
	}
	for name, c := range map[string]struct {
		first, second *logpb.Quota
		at, late      int64
	}{
		"the later view falls": {skewed(second), nil, hour - 500*millisecond, -700 * millisecond},
		"the skew shrinks":     {skewed(5 * minute), skewed(second), hour - 4*minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.now, w.early = second, -2*second
			w.quotas(c.first)
			w.now = c.at
			w.do(consumesAtOnce("a", itemOf("h", 3)))
			window := w.m.quotas.named("h").ledger.Window
			if w.late = c.late; c.second != nil {
				w.quotas(c.second)
			}
			w.now++
			w.do(consumesAtOnce("a", itemOf("h", 1)))
			w.reborn()
			if got := w.m.quotas.named("h").ledger.Window; got != window || window != epochStart+2*hour {
				t.Fatalf("the window ends at %d, and did at %d", got-epochStart, window-epochStart)
			}
			w.sleep(2 * hour)
			if free := w.available("h"); free != 10 {
				t.Errorf("%d are available two hours later", free)
			}
			w.reborn()
		})
	}
}

// TestRestore_NoCallBeganLaterThanNow: the earlier view of Unix time never goes back, so no operation of a valid state
// began after it. One of a backup that did counts as begun now: its report could otherwise claim a reset that no
// snapshot can hold.
func TestRestore_NoCallBeganLaterThanNow(t *testing.T) {
	records := recordsOf(livelier(t))
	changed := 0
	for _, r := range records {
		if o := r.GetOperation(); o != nil {
			o.BeganWallNs = fixed.MaxTime
			changed++
		}
	}
	m, err := Restore(bytes.NewReader(encodedRecords(t, records)))
	if err != nil || changed == 0 {
		t.Fatalf("%d operations: %v", changed, err)
	}
	m.State().eachOperation(func(o *operation) bool {
		if o.beganWall > m.clock.WallEarly {
			t.Errorf("operation %d of lease %d began at %d, and it is %d", o.op, o.lease, o.beganWall, m.clock.WallEarly)
		}
		return true
	})
}
