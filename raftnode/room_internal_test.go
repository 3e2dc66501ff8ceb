package raftnode

import "testing"

// TestRoomless_RefusesAfterALeadershipTriedToLeave: each case is a sequence of checks, with the expected reaction to a low disk.
func TestRoomless_RefusesAfterALeadershipTriedToLeave(t *testing.T) {
	first, second := &leadership{term: 1}, &leadership{term: 2}
	for name, looks := range map[string][]struct {
		low           bool
		lead          *leadership
		leaving       bool
		leave, refuse bool
	}{
		"there is room": {{lead: first}, {}},
		"a follower":    {{low: true}, {low: true}},
		"a leader that leaves": {
			{low: true, lead: first, leave: true}, {low: true, lead: first, leaving: true}, {low: true}, {low: true},
		},
		"a leader that cannot leave": {
			{low: true, lead: first, leave: true},
			{low: true, lead: first, leave: true, refuse: true},
			{low: true, lead: first, leaving: true, refuse: true},
			{lead: first, leaving: true},
			{low: true, lead: first, leave: true},
		},
		"a follower that is elected": {
			{low: true}, {low: true, lead: first, leave: true}, {low: true, lead: first, leaving: true}, {low: true},
		},
		"elected again": {
			{low: true, lead: first, leave: true},
			{low: true, lead: first, leave: true, refuse: true},
			{low: true, lead: second, leave: true},
			{low: true, lead: second, leave: true, refuse: true},
		},
		"elected again while it still leaves": {
			{low: true, lead: first, leave: true},
			{low: true, lead: second, leaving: true},
			{low: true, lead: second, leave: true},
			{low: true, lead: second, leave: true, refuse: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r roomless
			for i, look := range looks {
				leave, refuse := r.look(look.low, look.lead, look.leaving)
				if leave != look.leave || refuse != look.refuse {
					t.Errorf("look %d: leaves %v, refuses %v; want %v, %v", i+1, leave, refuse, look.leave, look.refuse)
				}
			}
		})
	}
}
