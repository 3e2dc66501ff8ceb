package raftnode

import "testing"

// TestLowDisk_RefusesAfterATransferAttempt: each case is a sequence of checks, with the expected reaction to a low disk.
func TestLowDisk_RefusesAfterATransferAttempt(t *testing.T) {
	first, second := &leadership{term: 1}, &leadership{term: 2}
	for name, checks := range map[string][]struct {
		low              bool
		lead             *leadership
		transferring     bool
		transfer, refuse bool
	}{
		"free space": {{lead: first}, {}},
		"a follower": {{low: true}, {low: true}},
		"a leader that can transfer": {
			{low: true, lead: first, transfer: true}, {low: true, lead: first, transferring: true}, {low: true}, {low: true},
		},
		"a leader that cannot transfer": {
			{low: true, lead: first, transfer: true},
			{low: true, lead: first, transfer: true, refuse: true},
			{low: true, lead: first, transferring: true, refuse: true},
			{lead: first, transferring: true},
			{low: true, lead: first, transfer: true},
		},
		"a follower that is elected": {
			{low: true}, {low: true, lead: first, transfer: true}, {low: true, lead: first, transferring: true}, {low: true},
		},
		"elected again": {
			{low: true, lead: first, transfer: true},
			{low: true, lead: first, transfer: true, refuse: true},
			{low: true, lead: second, transfer: true},
			{low: true, lead: second, transfer: true, refuse: true},
		},
		"elected again during its transfer": {
			{low: true, lead: first, transfer: true},
			{low: true, lead: second, transferring: true},
			{low: true, lead: second, transfer: true},
			{low: true, lead: second, transfer: true, refuse: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d lowDisk
			for i, check := range checks {
				transfer, refuse := d.check(check.low, check.lead, check.transferring)
				if transfer != check.transfer || refuse != check.refuse {
					t.Errorf("check %d: transfers %v, refuses %v; want %v, %v", i+1, transfer, refuse, check.transfer, check.refuse)
				}
			}
		})
	}
}
