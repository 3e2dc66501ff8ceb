package raftnode

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// ended is a future of raft that has completed.
type ended struct{ err error }

func (e ended) Error() error { return e.err }

// TestTransfers_WaitForFormerRequest: a failed attempt may have left its request with a follower's replication. The next one waits
// until that request must have been read, however many callers ask. (hashicorp/raft issue 696; found by the simulation with membership
// changes, which was left with a blocked goroutine.)
func TestTransfers_WaitForFormerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transfers, began := newTransfers(), time.Now()
		late := errors.New("leadership transfer timeout")
		var at []time.Duration
		attempt := func(ctx context.Context, err error) error {
			return transfers.attempt(ctx, func() (raft.Future, error) {
				at = append(at, time.Since(began))
				return ended{err}, nil
			}, func(future raft.Future) error { return future.Error() })
		}
		if err := attempt(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if err := attempt(t.Context(), late); !errors.Is(err, late) {
			t.Error(err)
		}
		short, cancel := context.WithTimeout(t.Context(), transferPause-time.Millisecond)
		defer cancel()
		if err := attempt(short, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("too early: %v", err)
		}
		for range 2 {
			if err := attempt(t.Context(), late); !errors.Is(err, late) {
				t.Error(err)
			}
		}
		if want := []time.Duration{0, 0, transferPause, 2 * transferPause}; len(at) != 4 || at[2] != want[2] || at[3] != want[3] {
			t.Errorf("attempts at %v, want %v", at, want)
		}
		if transferPause <= transportTimeout {
			t.Errorf("%v is not longer than a call, %v", transferPause, transportTimeout)
		}
	})
}
