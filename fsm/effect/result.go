// Package effect has the outcomes of commands: results and events.
package effect

import (
	"fmt"

	"github.com/quotad/quotad/fsm/logpb"
)

// Done returns the result of a command that was carried out and returns nothing.
func Done() *logpb.Result {
	return &logpb.Result{Kind: &logpb.Result_Done{Done: &logpb.Done{}}}
}

// Fail returns the result of a command that changed nothing: the reason, and a hint for its caller.
func Fail(reason logpb.Reason, message, hint string) *logpb.Result {
	return Failed(&logpb.Failure{Reason: reason, Message: message, Hint: hint})
}

// Failed returns the result of a command that changed nothing, with its failure.
func Failed(f *logpb.Failure) *logpb.Result {
	return &logpb.Result{Kind: &logpb.Result_Failure{Failure: f}}
}

// Refused returns the result of a refused command.
func Refused(r *logpb.Refusal) *logpb.Result {
	return &logpb.Result{Kind: &logpb.Result_Refusal{Refusal: r}}
}

// NeverIssued returns the failure of a command with a fence above the newest one.
func NeverIssued(fence, newest uint64) *logpb.Failure {
	return &logpb.Failure{
		Reason: logpb.Reason_REASON_NEVER_ISSUED, FenceCounter: newest,
		Message: fmt.Sprintf("fence %d was never issued by this cluster", fence), Hint: "is this the right cluster?",
	}
}

// Invalid returns the failure of a command with an invalid argument.
func Invalid(message, hint string) *logpb.Failure {
	return &logpb.Failure{Reason: logpb.Reason_REASON_INVALID, Message: message, Hint: hint}
}
