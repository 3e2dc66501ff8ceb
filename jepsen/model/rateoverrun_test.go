package model

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestSharesOfARate_AfterAnOverrun: one counting period after an overrun, however large, a rate lends as usual.
func TestSharesOfARate_AfterAnOverrun(t *testing.T) {
	asks := func(holder string) step { return step{0, reserve(holder, "shared", 600, 20*minute, consumes)} }
	steps := []step{asks("boss"), {0, &logpb.Command{Kind: &logpb.Command_Settle{Settle: &logpb.Settle{
		Lease: 1, Fence: 1, Op: 1, Actual: []*logpb.Item{{Quota: "shared", Amount: new(int64(60_000_000))}},
	}}}}, asks("boss")}
	steps[2].after = 62*sec + 600*mil
	for range 59 {
		steps = append(steps, asks("std"))
	}
	at := func(after int64) []step {
		last := asks("std")
		last.after = after
		return append(slices.Clip(steps), last)
	}
	const lends, kept = 36_360 * mil, logpb.Reason_REASON_SHARE
	for name, story := range map[string]rateStory{
		"a moment before it is lent": {"share", at(lends - 1), false, 0, 0},
		"the moment when it is lent": {"", at(lends), true, 0, 0},
		"kept when it is lent":       {"false-refusal", at(lends), true, kept, 24_000},
	} {
		t.Run(name, func(t *testing.T) { story.play(t) })
	}
}
