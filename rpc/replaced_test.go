package rpc

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestFollowers_EndReplaced: calls end once their leader has been replaced for the grace. They do not end while no leader is known, or
// after another node led for a moment only. Calls of the present leader continue.
func TestFollowers_EndReplaced(t *testing.T) {
	f := newFollowers(func() string { return "" })
	f.looking = true // this test calls endReplaced
	old, releaseOld := f.follow(t.Context(), "a")
	defer releaseOld()
	present, releasePresent := f.follow(t.Context(), "b")
	defer releasePresent()
	now := time.Unix(0, 0)
	for _, step := range []struct {
		leader string
		after  time.Duration
		ended  bool
	}{
		{"a", 0, false},
		{"", replacedGrace, false},
		{"b", replacedGrace, false}, // since now
		{"b", replacedGrace - 1, false},
		{"", 1, false},
		{"b", replacedGrace, false}, // since now
		{"b", replacedGrace, true},
	} {
		now = now.Add(step.after)
		if !f.endReplaced(step.leader, now) {
			t.Fatalf("%+v: nobody looks any more", step)
		}
		if (old.Err() != nil) != step.ended || present.Err() != nil {
			t.Fatalf("%+v: %v, %v", step, old.Err(), present.Err())
		}
	}
	if !errors.Is(context.Cause(old), errLeaderReplaced) {
		t.Errorf("ended by %v", context.Cause(old))
	}
	releasePresent()
	if f.endReplaced("b", now) || f.looking {
		t.Error("somebody looks for the leader of no calls")
	}
}
