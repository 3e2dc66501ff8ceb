package client

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestNames_AreTheAPIs holds the client's copies of the API's enums against the schema: a value has the API's name in lower case, and
// each of the API's values is known here.
func TestNames_AreTheAPIs(t *testing.T) {
	t.Parallel()
	for prefix, enum := range map[string]struct {
		names map[int32]string
		none  string // the client's name of the value 0
		of    func(int32) fmt.Stringer
	}{
		"CLASS_": {quotav1.Class_name, "default", func(n int32) fmt.Stringer { return Class(n) }},
		"ZONE_":  {quotav1.Zone_name, "none", func(n int32) fmt.Stringer { return Zone(n) }},
		"SIDE_":  {quotav1.Side_name, "none", func(n int32) fmt.Stringer { return Side(n) }},
	} {
		for _, number := range slices.Sorted(maps.Keys(enum.names)) {
			want := strings.ToLower(strings.TrimPrefix(enum.names[number], prefix))
			if number == 0 {
				want = enum.none
			}
			if got := enum.of(number).String(); got != want {
				t.Errorf("%s %d is %q, want %q", strings.Trim(prefix, "_"), number, got, want)
			}
		}
		if got := enum.of(99).String(); got != enum.none {
			t.Errorf("an unknown %s is %q", strings.Trim(prefix, "_"), got)
		}
	}
}

func TestState_HasAName(t *testing.T) {
	t.Parallel()
	for state, want := range map[State]string{
		NoLease: "no-lease", Live: "live", Expired: "expired", ClusterAway: "cluster-away", 0: "unknown",
	} {
		if got := state.String(); got != want {
			t.Errorf("state %d is %q, want %q", state, got, want)
		}
	}
}
