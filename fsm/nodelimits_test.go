package fsm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestSetLimits_OfEachNode: the state keeps the limits of what callers share of each node within bounds, in snapshots
// too. Default limits are left out there, so the bytes are the same as before these limits existed.
func TestSetLimits_OfEachNode(t *testing.T) {
	w := newWorld(t)
	before := w.m.State().encodeLimits()
	for name, c := range map[string]struct {
		field          func(*logpb.SetLimits) **int64
		born, min, max int64
	}{
		"calls":       {func(l *logpb.SetLimits) **int64 { return &l.MaxCalls }, 24_000, 64, 1_000_000},
		"streams":     {func(l *logpb.SetLimits) **int64 { return &l.MaxStreams }, 4096, 16, 1_000_000},
		"connections": {func(l *logpb.SetLimits) **int64 { return &l.MaxConnections }, 10_000, 64, 1_000_000},
	} { // in any order: each is back at its default in the end
		to := func(limit int64) *logpb.Command { return limitsTo(func(l *logpb.SetLimits) { *c.field(l) = &limit }) }
		if got := **c.field(w.m.State().Limits()); got != c.born {
			t.Errorf("%s: %d at first", name, got)
		}
		for _, beyond := range []int64{-1, 0, c.min - 1, c.max + 1} {
			if f := w.raw(to(beyond))[0].GetFailure(); f.GetReason() != logpb.Reason_REASON_INVALID {
				t.Errorf("%s: %d is taken: %v", name, beyond, f)
			}
		}
		for _, within := range []int64{c.min, c.max, 5000, c.born} {
			if version := entry.VersionOf([]*logpb.Command{to(within)}); version != levels.NodeLimits {
				t.Errorf("%s: an entry of version %d can carry it", name, version)
			}
			w.do(to(within))
			restored, err := Restore(bytes.NewReader(snapshotOf(t, w.m.Freeze())))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []*Machine{w.m, restored} {
				if got := **c.field(m.State().Limits()); got != within {
					t.Errorf("%s: %d after it was set to %d", name, got, within)
				}
			}
			if written := *c.field(w.m.State().encodeLimits()); (written == nil) != (within == c.born) {
				t.Errorf("%s: a snapshot with %d says %v", name, within, written)
			}
		}
		w.m.accounts.Limits.Calls = accounts.MinCalls - 1
		if _, err := Restore(bytes.NewReader(snapshotOf(t, w.m.Freeze()))); !errors.Is(err, ErrCorruptSnapshot) {
			t.Errorf("a snapshot with a limit that cannot be set: %v", err)
		}
		w.m.accounts.Limits.Calls = accounts.DefaultMaxCalls
	}
	if after := w.m.State().encodeLimits(); after.String() != before.String() {
		t.Errorf("after all have their defaults again: %v, before %v", after, before)
	}
}
