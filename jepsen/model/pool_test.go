package model

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// poolStory has two keys with requests and slots each, and a pool of both. Leases are numbered in the order of their grants.
func poolStory() []*logpb.Command {
	both := func(holder, member string) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
			Holder: holder, Member: member,
			Items: []*logpb.Item{{Quota: "keys", Amount: proto.Int64(6)}, {Quota: "seats", Amount: proto.Int64(1)}},
		}}}
	}
	return []*logpb.Command{
		{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
			rate("key/a", "", 10, 10*sec), rate("key/b", "", 10, 10*sec), pool("keys", false, "key/a", "key/b"),
			slots("seat/a", "", 2, sec), slots("seat/b", "", 2, sec), pool("seats", true, "seat/a", "seat/b"),
		}}}},
		both("h", "b"),                  // 2: lease 1
		both("h", ""),                   // 3: lease 2, of a
		both("h", ""),                   // 4: refused
		reserve("low", "seats", 1, sec), // 5: lease 3
		reserve("low", "seats", 1, sec), // 6: lease 4: all seats are taken
		reserve("high", "seats", 1, sec, waits, inClass(0)),                         // 7: waits as 1
		reserve("low", "seats", 1, sec, waits, inClass(2)),                          // 8: waits as 3
		{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: 1, Fence: 1}}}, // 9: lease 5, of b, for 1
	}
}

// playPool applies the story to the state machine. Before an entry is judged, spoil may change its outcome.
func playPool(t *testing.T, spoil func(index uint64, applied *fsm.Applied)) (all []Violation) {
	t.Helper()
	machine, judge := fsm.New(), New()
	for i, command := range poolStory() {
		entry := &logpb.Entry{Version: fsm.EntryVersion, StampNs: sec + int64(i)*int64(time.Millisecond), Commands: []*logpb.Command{command}}
		payload, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		applied := machine.Apply(uint64(i+1), 1, payload)
		for k := range applied.Results {
			applied.Results[k] = proto.CloneOf(applied.Results[k])
		}
		spoil(uint64(i+1), &applied)
		all = append(all, judge.Entry(entry, &applied)...)
	}
	return all
}

func TestPoolStory_IsAllowed(t *testing.T) {
	served := false
	violations := playPool(t, func(index uint64, applied *fsm.Applied) {
		for _, e := range applied.Events {
			served = served || index == 9 && e.Ticket == 1 && e.Quota == "seat/b"
		}
	})
	if len(violations) != 0 || !served {
		t.Errorf("%+v, the first in line was served: %t", violations, served)
	}
}

// TestPoolStory_EachLieIsFound: the judge finds each change to one entry of the story.
func TestPoolStory_EachLieIsFound(t *testing.T) {
	for name, lie := range map[string]struct {
		rule  string
		index uint64
		tell  func(*fsm.Applied)
	}{
		"the member is not the one that was meant": {"all-or-nothing", 2, func(a *fsm.Applied) {
			granted(a).Items[0].Quota, granted(a).Items[0].Member = "key/a", "a"
			granted(a).Items[1].Quota, granted(a).Items[1].Member = "seat/a", "a"
		}},
		"requests and seats are of two keys": {"all-or-nothing", 3, func(a *fsm.Applied) {
			granted(a).Items[1].Quota, granted(a).Items[1].Member = "seat/b", "b"
		}},
		"a quota is granted that is no member": {"all-or-nothing", 3, func(a *fsm.Applied) { granted(a).Items[0].Quota = "key/b" }},
		"the pool is not named":                {"all-or-nothing", 3, func(a *fsm.Applied) { granted(a).Items[0].Pool = "" }},
		"a member is full": {"ceiling", 3, func(a *fsm.Applied) {
			for i, quota := range []string{"key/b", "seat/b"} {
				granted(a).Items[i].Quota, granted(a).Items[i].Member = quota, "b"
			}
		}},
		"it is refused, and a member is free": {"false-refusal", 3, func(a *fsm.Applied) {
			a.Results[0] = &logpb.Result{Kind: &logpb.Result_Refusal{Refusal: &logpb.Refusal{
				Reason: logpb.Reason_REASON_EXHAUSTED, Quota: "key/b",
				Available: 4, RetryAtNs: 20 * sec,
			}}}
			a.Events = nil
		}},
		"a lower class is served first": {"class-order", 9, func(a *fsm.Applied) {
			for i := range a.Events {
				if e := &a.Events[i]; e.Ticket == 1 {
					e.Ticket, e.Holder = 3, "low"
					e.Result.GetGranted().Ticket, e.Result.GetGranted().Class = 3, 2
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			violations := playPool(t, func(index uint64, applied *fsm.Applied) {
				if index == lie.index {
					lie.tell(applied)
				}
			})
			if !slices.ContainsFunc(violations, func(v Violation) bool { return v.Name == lie.rule && v.Index >= lie.index }) {
				t.Errorf("%s did not find it, but %+v", lie.rule, violations)
			}
		})
	}
}
