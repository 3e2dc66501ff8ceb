package rpc

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestWaits_OnlyWhereTheAnswerMay: a Reserve waits with its call if it has a wait and does not ask for an answer at once.
func TestWaits_OnlyWhereTheAnswerMay(t *testing.T) {
	for _, test := range []struct {
		name    string
		wait    time.Duration
		noBlock bool
		want    bool
	}{
		{"no wait", 0, false, false},
		{"a wait", time.Second, false, true},
		{"a place in the queue, answered at once", time.Second, true, false},
	} {
		if got := waits(&quotav1.ReserveRequest{Wait: durationpb.New(test.wait), NoBlock: test.noBlock}); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
