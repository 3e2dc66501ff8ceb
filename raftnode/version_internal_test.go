package raftnode

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/peer"
)

// TestVersionFor: entries have the newest version that every member applies, once all are known, and at least that of the state.
func TestVersionFor(t *testing.T) {
	b := func(oldest, newest uint32) peer.Build { return peer.Build{Oldest: oldest, Newest: newest} }
	at := func(level, oldest, newest uint32) peer.Build {
		return peer.Build{Oldest: oldest, Newest: newest, Level: level}
	}
	for name, tt := range map[string]struct {
		own     peer.Build
		members []peer.Build
		all     bool
		want    uint32
	}{
		"a new cluster of equal builds":         {b(2, 3), []peer.Build{b(2, 3), b(2, 3), b(2, 3)}, true, 3},
		"one member is behind":                  {at(2, 2, 3), []peer.Build{b(2, 3), b(2, 2), b(2, 3)}, true, 2},
		"one member has not been heard":         {at(2, 2, 3), []peer.Build{b(2, 3), {}, b(2, 3)}, false, 2},
		"the last member was upgraded":          {at(2, 2, 3), []peer.Build{b(2, 3), b(2, 3), b(2, 4)}, true, 3},
		"what was raised stays":                 {at(3, 2, 3), []peer.Build{b(2, 3), b(2, 2)}, true, 3},
		"nothing known of a new cluster":        {b(2, 3), []peer.Build{b(2, 3), {}, {}}, false, 2},
		"members that apply more than this one": {at(2, 2, 2), []peer.Build{b(2, 5), b(2, 5)}, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if got := versionFor(tt.own, tt.members, tt.all); got != tt.want {
				t.Errorf("entries of version %d, want %d", got, tt.want)
			}
		})
	}
}

// TestBuilds_Bounded: callers choose the names under which builds are stored.
func TestBuilds_Bounded(t *testing.T) {
	var b builds
	for i := range 10 * maxBuilds {
		b.learn(fmt.Sprint("n", i), peer.Build{Newest: 2})
	}
	if len(b.of) != maxBuilds {
		t.Fatalf("%d builds are remembered", len(b.of))
	}
	b.keep([]raft.Server{{ID: "n1"}, {ID: "absent"}})
	if _, known := b.get("n1"); !known || len(b.of) != 1 || !b.learn("n0", peer.Build{}) {
		t.Fatalf("kept %v", b.of)
	}
}
