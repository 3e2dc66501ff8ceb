package model

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// fleetShares are the shares of a fleet.
func fleetShares() *logpb.Policy {
	return &logpb.Policy{Shares: &logpb.Shares{CriticalPpm: 400_000, StandardPpm: 350_000, BackgroundPpm: 250_000}}
}

// rateStory is a story about a rate of 60,000 a minute. The books know of shares; the machine may not, and then grants what they forbid.
// All but the last entry are allowed.
type rateStory struct {
	// rule is the rule that the last entry breaks; empty: none.
	rule  string
	steps []step
	// shared: the machine knows of the shares too.
	shared bool
	// forged replaces the reason of the last entry's refusal; left is the available amount in it.
	forged logpb.Reason
	left   int64
}

func (s *rateStory) play(t *testing.T) {
	t.Helper()
	quota := rate("shared", "", 60_000, minute)
	apply := &logpb.ApplyQuotas{Quotas: []*logpb.Quota{quota}, ReplaceHolders: true, Holders: []*logpb.HolderRule{
		{Pattern: "boss", Class: 0}, {Pattern: "back", Class: 2},
	}}
	machine, judge := fsm.New(), New()
	at := sec
	steps := append([]step{{0, &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: apply}}}}, s.steps...)
	for i, step := range steps {
		at += step.after
		if quota.Policy = nil; s.shared {
			quota.Policy = fleetShares()
		}
		entry := &logpb.Entry{Version: fsm.EntryVersion, StampNs: at, Commands: []*logpb.Command{step.command}}
		payload, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		applied := machine.Apply(uint64(i+1), 1, payload)
		quota.Policy = fleetShares()
		last := i == len(steps)-1
		if ask := step.command.GetReserve(); last && s.forged != 0 {
			applied.Results = []*logpb.Result{{Kind: &logpb.Result_Refusal{Refusal: &logpb.Refusal{
				Reason: s.forged, Quota: quota.Name, RetryAtNs: at + sec, Available: s.left,
			}}}}
			applied.Events = []effect.Event{{Kind: effect.EventRefused, Quota: quota.Name, Holder: ask.Holder, Reason: s.forged}}
		}
		violations := judge.Entry(entry, &applied)
		switch {
		case !last || s.rule == "":
			if len(violations) > 0 {
				t.Fatalf("entry %d: %+v", i+1, violations)
			}
		case len(violations) != 1 || violations[0].Name != s.rule:
			t.Errorf("not found by %s: %+v, the results are %v", s.rule, violations, applied.Results)
		}
	}
}

// TestSharesOfARate: each clause of the rule, once broken by a machine without shares and once at the first moment at which it applies; and
// each false refusal.
func TestSharesOfARate(t *testing.T) {
	asks := func(holder string, amount int64) *logpb.Command {
		return reserve(holder, "shared", amount, 20*minute, consumes)
	}
	many := func(holder string, count int) (steps []step) {
		for range count {
			steps = append(steps, step{0, asks(holder, 600)})
		}
		return steps
	}
	then := func(steps []step, more ...step) []step { return append(slices.Clip(steps), more...) }
	boss := []step{{0, asks("boss", 600)}}
	free := then(boss, many("std", 59)...)
	// The amounts granted to the boss and 59 others return until 37.56 s, and the next is lent a fiftieth of a period earlier.
	lends := 36_360 * mil
	back := &logpb.Command{Kind: &logpb.Command_Settle{Settle: &logpb.Settle{
		Lease: 60, Fence: 60, Op: 1, Unspent: []*logpb.Item{{Quota: "shared", Amount: new(int64(600))}},
	}}}
	saturated := &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{Lease: 1, Fence: 1, Op: 1, Signals: []*logpb.Signal{
		{Quota: "shared", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(sec)},
	}}}}
	lowered := then(free, step{0, &logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: &logpb.SetOverride{
		Quota: "shared", Limit: new(int64(45_000)), ForNs: 10 * minute,
	}}}})
	lowLends := 48_880 * mil // 37.56 s x 60,000 / 45,000, less a fiftieth of the period
	critical := func(after, amount int64) []step {
		return []step{{0, asks("std", 600)}, {after, asks("boss", 53_000)}, {0, asks("boss", amount)}}
	}
	const kept, limited = logpb.Reason_REASON_SHARE, logpb.Reason_REASON_CAP
	const share, lie = "share", "false-refusal"
	for name, story := range map[string]rateStory{
		"nobody above asked":               {"", []step{{0, asks("std", 60_000)}}, false, 0, 0},
		"all that is free":                 {"", free, false, 0, 0},
		"more than is free":                {share, then(free, step{0, asks("std", 600)}), false, 0, 0},
		"a moment before it is lent":       {share, then(free, step{lends - 1, asks("std", 600)}), false, 0, 0},
		"the moment when it is lent":       {"", then(free, step{lends, asks("std", 600)}), false, 0, 0},
		"what came back is free":           {"", then(free, step{0, back}, step{0, asks("std", 600)}), false, 0, 0},
		"a moment before a lower limit":    {share, then(lowered, step{lowLends - 1, asks("std", 600)}), false, 0, 0},
		"what a lower limit lends":         {"", then(lowered, step{lowLends, asks("std", 600)}), false, 0, 0},
		"a critical one continues":         {"", then(free, many("boss", 39)...), false, 0, 0},
		"from the reserve":                 {share, then(boss, step{0, asks("std", 59_000)}), false, 0, 0},
		"from the reserve of a large call": {share, []step{{0, asks("boss", 2400)}, {0, asks("std", 56_000)}}, false, 0, 0},
		"all but the reserve":              {"", then(boss, step{0, asks("std", 58_800)}), false, 0, 0},
		"the reserve was for long ago":     {"", then(boss, step{15 * minute, asks("std", 60_000)}), false, 0, 0},
		"it asked less than quiet ago": {
			share, then(boss, step{15*minute - 2, asks("std", 30_000)}, step{1, asks("std", 29_700)}), false, 0, 0,
		},
		"background from standard's share": {
			share, then([]step{{0, asks("std", 600)}}, then(many("back", 64), step{0, asks("back", 600)})...), false, 0, 0,
		},
		"all from a cooldown at once": {
			share, then(boss, then([]step{{0, saturated}, {2 * sec, asks("std", 600)}}, many("std", 2)...)...), false, 0, 0,
		},
		"above the cap":             {share, critical(0, 1600), false, 0, 0},
		"at the cap":                {"", critical(0, 1000), false, 0, 0},
		"above it, and nobody asks": {"", critical(minute, 1600), false, 0, 0},
		"one that is larger alone":  {"", []step{{0, asks("std", 600)}, {0, asks("boss", 58_000)}}, false, 0, 0},

		"truly kept":                  {"", then(free, step{0, asks("std", 600)}), true, 0, 0},
		"truly kept until it is lent": {"", then(free, step{lends - 1, asks("std", 600)}), true, 0, 0},
		"truly kept of a lower limit": {"", then(lowered, step{lowLends - 1, asks("std", 600)}), true, 0, 0},
		"truly above the cap":         {"", critical(0, 1600), true, 0, 0},

		"kept, and nobody above asked":  {lie, []step{{0, asks("std", 600)}}, false, kept, 60_000},
		"kept for one below":            {lie, []step{{0, asks("back", 600)}, {0, asks("std", 600)}}, false, kept, 59_400},
		"kept from a critical one":      {lie, then(boss, boss...), false, kept, 59_400},
		"kept while it is free":         {lie, free, true, kept, 60_000 - 59*600},
		"kept when it is lent":          {lie, then(free, step{lends, asks("std", 600)}), true, kept, 24_000},
		"kept when a lower one lends":   {lie, then(lowered, step{lowLends, asks("std", 600)}), true, kept, 9000},
		"kept since long ago":           {lie, then(boss, step{15 * minute, asks("std", 600)}), false, kept, 60_000},
		"the cap of a lower class":      {lie, then(boss, step{0, asks("std", 600)}), false, limited, 59_400},
		"the cap, and nobody else asks": {lie, critical(minute, 1600), false, limited, 6400},
		"the cap, and little is used":   {lie, then([]step{{0, asks("std", 600)}}, many("boss", 2)...), false, limited, 58_800},
	} {
		t.Run(name, func(t *testing.T) { story.play(t) })
	}
}
