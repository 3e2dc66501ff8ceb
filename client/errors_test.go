package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TestUnknownOutcomeError_HidesNotAccepted: the last of several attempts was not accepted, but an earlier one may have been carried out. A
// caller that looks for a *NotAcceptedError, to send the request elsewhere, must not find one; the reasons stay.
func TestUnknownOutcomeError_HidesNotAccepted(t *testing.T) {
	last := &NotAcceptedError{Reason: ReasonNoLeader, Err: context.DeadlineExceeded}
	for name, err := range map[string]error{
		"itself":  last,
		"wrapped": fmt.Errorf("asking n1: %w", last),
		"beside":  fmt.Errorf("%w: %w", ErrClusterAway, last),
		"twice":   &NotAcceptedError{Reason: ReasonNoLeader, Err: errors.Join(ErrClusterAway, last)},
		"joined":  errors.Join(errors.New("another"), fmt.Errorf("%w, %w", last, ErrClusterAway)),
	} {
		t.Run(name, func(t *testing.T) {
			unknown := error(&UnknownOutcomeError{Reason: ReasonUnknownSession, Err: err})
			if _, found := errors.AsType[*NotAcceptedError](unknown); found {
				t.Errorf("taken for not accepted: %v", unknown)
			}
			for _, reason := range []error{ReasonUnknownSession, ReasonNoLeader, context.DeadlineExceeded, ErrClusterAway} {
				if errors.Is(err, reason) && !errors.Is(unknown, reason) {
					t.Errorf("%v is lost in %v", reason, unknown)
				}
			}
			if !errors.Is(unknown, ReasonUnknownSession) {
				t.Errorf("its own reason is lost: %v", unknown)
			}
		})
	}
	if err := error(&UnknownOutcomeError{Err: ErrClosed}); !errors.Is(err, ErrClosed) {
		t.Errorf("what has no refusal in it stays as it is: %v", err)
	}
}
