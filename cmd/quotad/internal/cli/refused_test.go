package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestStartError_RefusedDisksAreOneExitCode: a refused disk always gives the same exit code, by which a service stops
// restarting the node, and each error has a hint.
func TestStartError_RefusedDisksAreOneExitCode(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		hint string
	}{
		"an empty disk of a member": {logstore.ErrWiped, "member replace"},
		"a part of it lost":         {&logstore.LostPartError{}, "member replace"},
		"an uncommitted restore":    {logstore.ErrUncommittedRestore, "member replace"},
		"a removed member's":        {raftnode.ErrRemoved, "member replace"},
		"a damaged one":             {&logstore.DamageError{File: "raft.db"}, "quotad verify"},
	} {
		t.Run(name, func(t *testing.T) {
			found := describe(t.Context(), startError(fmt.Errorf("cannot start: %w", c.err)))
			if found.code != ExitRefused || !strings.Contains(found.hint, c.hint) {
				t.Errorf("exit code %d, hint %q", found.code, found.hint)
			}
			offline := describe(t.Context(), offlineError(fmt.Errorf("cannot open: %w", c.err)))
			if !errors.Is(c.err, raftnode.ErrRemoved) && (offline.code != ExitFailure || offline.hint == "") {
				t.Errorf("of a stopped node: exit code %d, hint %q", offline.code, offline.hint)
			}
		})
	}
}

// TestErrors_SayWhereNodesRun: on a system without nodes, every command that needs a node or a data directory says why it
// fails and what to do.
func TestErrors_SayWhereNodesRun(t *testing.T) {
	unsupported := fmt.Errorf("cannot open: %w", &logstore.UnsupportedError{System: "windows"})
	for name, err := range map[string]error{
		"serve": startError(unsupported), "verify": offlineError(unsupported), "demo": unsupported,
	} {
		found := describe(t.Context(), err)
		why := strings.HasPrefix(found.message, "no node runs on windows: ")
		if found.code != ExitFailure || !why || !strings.Contains(found.hint, "--server") {
			t.Errorf("%s: exit code %d, %q, hint %q", name, found.code, found.message, found.hint)
		}
	}
}

// TestRemoveMember_IsSafeToRepeat: a removal whose answer was lost succeeds once the member is gone; a second command
// reports that the member is gone.
func TestRemoveMember_IsSafeToRepeat(t *testing.T) {
	unknown := typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_OUTCOME})
	gone := typed(connect.CodeNotFound, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_MEMBER, NotAccepted: true})
	if err := removeMember(t.Context(), fakeCluster(t, &fakeNode{errors: []error{unknown, gone}}), "n2", false); err != nil {
		t.Errorf("after a lost answer: %v", err)
	}
	err := removeMember(t.Context(), fakeCluster(t, &fakeNode{errors: []error{gone}}), "n2", false)
	if err == nil || describe(t.Context(), err).code != ExitNotFound || err.Error() != `there is no member "n2"` {
		t.Errorf("a second removal: %v", err)
	}
}

// TestIsRight_OnlyForClockNotAhead distinguishes a clock that needs no reset from one that could not be reset.
func TestIsRight_OnlyForClockNotAhead(t *testing.T) {
	for _, c := range []struct {
		reason quotav1.Reason
		want   bool
	}{
		{quotav1.Reason_REASON_CLOCK_NOT_AHEAD, true}, {quotav1.Reason_REASON_CLOCK_UNSURE, false}, {
			quotav1.Reason_REASON_UNKNOWN_OUTCOME,
			false,
		},
	} {
		if got := isRight(typed(connect.CodeFailedPrecondition, &quotav1.ErrorInfo{Reason: c.reason})); got != c.want {
			t.Errorf("%v: %v", c.reason, got)
		}
	}
	if isRight(nil) || isRight(errors.New("else")) || isRight(connect.NewError(connect.CodeUnavailable, context.Canceled)) {
		t.Error("an error without a reason counts as a clock that is right")
	}
}
