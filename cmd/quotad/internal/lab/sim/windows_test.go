package sim

import (
	"testing"
	"time"

	"github.com/quotad/quotad/client/pacing"
	"github.com/quotad/quotad/fsm"
)

// TestRetryWindows_AreOne: the state machine and the Go client use the same retry windows.
func TestRetryWindows_AreOne(t *testing.T) {
	for class, window := range pacing.DefaultWindows {
		from, to := fsm.RetryWindow(int32(class))
		if time.Duration(from) != window.From || time.Duration(to) != window.To {
			t.Errorf("class %d comes back from %v to %v, of the client from %v to %v", class, time.Duration(from), time.Duration(to), window.From,
				window.To)
		}
	}
}
