package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

func TestOutcome_OfEveryError(t *testing.T) {
	detailed := func(code connect.Code, info *quotav1.ErrorInfo) error {
		err := connect.NewError(code, errors.New("x"))
		detail, detailErr := connect.NewErrorDetail(info)
		if detailErr != nil {
			t.Fatal(detailErr)
		}
		err.AddDetail(detail)
		return err
	}
	reason := func(r Reason) error {
		notAccepted := r == ReasonInvalid || r >= ReasonNoLeader
		return detailed(connect.CodeUnknown, &quotav1.ErrorInfo{Reason: quotav1.Reason(r), NotAccepted: notAccepted})
	}
	_, notUTF8 := proto.Marshal(&quotav1.Item{Quota: "\xff"})
	for _, tt := range []struct {
		name string
		err  error
		want outcome
	}{
		{"none", nil, answered},
		{"nobody listens", connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Err: io.EOF}), notAccepted},
		{"the connection broke", connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "read", Err: io.EOF}), unknown},
		{"the attempt took too long", connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded), unknown},
		{"it was given up", connect.NewError(connect.CodeCanceled, context.Canceled), unknown},
		{"a proxy's error", connect.NewError(connect.CodeUnavailable, errors.New("bad gateway")), unknown},
		{"a proxy's 429", connect.NewError(connect.CodeResourceExhausted, errors.New("slow down")), unknown},
		{"not quotad", connect.NewError(connect.CodeUnimplemented, errors.New("404")), answered},
		{"it cannot be encoded", connect.NewError(connect.CodeInternal, fmt.Errorf("marshal message: %w", notUTF8)), answered},
		{"its answer cannot be read", connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("unmarshal message: %w", notUTF8)), unknown},
		{"a server's internal error", connect.NewError(connect.CodeInternal, errors.New("panic")), unknown},
		{"not an API error", io.ErrUnexpectedEOF, unknown},
		{"no leader", reason(ReasonNoLeader), notAccepted},
		{"given up before it was accepted", reason(ReasonCanceled), notAccepted},
		{"given up later", detailed(connect.CodeCanceled, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CANCELED}), unknown},
		{"a wait that a stop cut short", detailed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_STOPPING}), unknown},
		{"overloaded", reason(ReasonOverloaded), notAccepted},
		{"stopping", reason(ReasonStopping), notAccepted},
		{"disk full", reason(ReasonDiskFull), notAccepted},
		{"too many in flight", reason(ReasonTooManyInFlight), notAccepted},
		{"no room for a result", detailed(connect.CodeResourceExhausted,
			&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CALLER_BUDGET, Budget: "result_bytes"}), notAccepted},
		{"too many calls", reason(ReasonCallerBudget), notAccepted},
		{"too many sessions", detailed(connect.CodeResourceExhausted,
			&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CALLER_BUDGET, Budget: "sessions"}), answered},
		{"unknown outcome", reason(ReasonUnknownOutcome), unknown},
		{"internal", reason(ReasonInternal), unknown},
		{"no reason", reason(0), unknown},
		{"malformed, though not accepted", reason(ReasonInvalid), answered},
		{"no token, though not accepted", reason(ReasonNoToken), answered},
		{"not allowed, though not accepted", reason(ReasonNotAllowed), answered},
		{"stale fence", reason(ReasonStaleFence), answered},
		{"unknown session", reason(ReasonUnknownSession), answered},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := classify(tt.err)
			if got != tt.want || (err == nil) != (tt.err == nil) {
				t.Errorf("outcome %d, want %d: %v", got, tt.want, err)
			}
			var refused *NotAcceptedError
			var doubt *UnknownOutcomeError
			var wrong *RequestError
			typed := map[outcome]bool{
				answered: errors.As(err, &wrong) || errors.As(err, &refused) && refused.final || err == nil, notAccepted: errors.As(err, &refused),
				unknown: errors.As(err, &doubt),
			}
			if !typed[got] {
				t.Errorf("outcome %d has the type %T", got, err)
			}
		})
	}
}

// TestRequestError_NamesNoPlaceInABatch: the client chooses which commands travel together.
func TestRequestError_NamesNoPlaceInABatch(t *testing.T) {
	for given, want := range map[string]string{
		"commands[5].items[0].amount": "items[0].amount", "commands[17].items is empty": "items is empty", "items[0].amount": "items[0].amount",
		"commands[x].items": "commands[x].items", "commands": "commands", "": "",
	} {
		_, err := classifyInfo(&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_INVALID, Field: given}, given)
		var wrong *RequestError
		if !errors.As(err, &wrong) || wrong.Field != want || wrong.Message != want {
			t.Errorf("%q: got %+v, want %q", given, err, want)
		}
	}
}
