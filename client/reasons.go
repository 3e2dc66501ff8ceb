package client

import (
	"strings"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Reason is the code of a refusal (1 to 99), of an error (100 and above), or of either ([ReasonCallerBudget], [ReasonBudgetFull]), with
// the API's names. It is an error itself: errors.Is(err, client.ReasonCooldown) finds it at any depth.
type Reason int32

// Reasons of refusals, in their order of precedence.
const (
	ReasonNeverFits         Reason = 1
	ReasonAboveClamp        Reason = 2
	ReasonSuspended         Reason = 3
	ReasonCooldown          Reason = 4
	ReasonExhausted         Reason = 5
	ReasonBehindWaiters     Reason = 6
	ReasonCannotServeInTime Reason = 7
	ReasonWaitExpired       Reason = 8
	ReasonWithdrawn         Reason = 9
	ReasonQueueFull         Reason = 10
	ReasonBreakerOpen       Reason = 12
	ReasonZone              Reason = 13
	ReasonReopening         Reason = 14
	ReasonShare             Reason = 15
	ReasonCap               Reason = 16
	ReasonParked            Reason = 19
	ReasonTaskShelved       Reason = 20
	ReasonTaskInFlight      Reason = 21
	ReasonTaskLater         Reason = 22
	ReasonSequential        Reason = 17
	ReasonBackPressure      Reason = 18
)

// Reasons of both refusals and errors: the caller's part of a shared budget is used up, or the whole budget.
const (
	ReasonCallerBudget Reason = 172
	ReasonBudgetFull   Reason = 173
)

// Reasons of errors.
const (
	ReasonInvalid           Reason = 100
	ReasonUnknownQuota      Reason = 101
	ReasonStaleFence        Reason = 102
	ReasonNeverIssued       Reason = 103
	ReasonStaleOperation    Reason = 104
	ReasonOperationReused   Reason = 105
	ReasonTooManyOperations Reason = 106
	ReasonItemClosed        Reason = 107
	ReasonNotHeld           Reason = 108
	ReasonAlreadySettled    Reason = 109
	ReasonPastSpendBy       Reason = 110
	ReasonForeignLease      Reason = 111
	ReasonUnknownSession    Reason = 112
	ReasonSeqTooOld         Reason = 113
	ReasonSeqReused         Reason = 114
	ReasonSessionsFull      Reason = 115
	ReasonTooManyInFlight   Reason = 116
	ReasonUnknownTicket     Reason = 117
	ReasonUnknownTask       Reason = 130
	ReasonStaleAttempt      Reason = 131
	ReasonTasksFull         Reason = 132
	ReasonForeignTask       Reason = 133
	ReasonNoLeader          Reason = 150
	ReasonOverloaded        Reason = 151
	ReasonUnknownOutcome    Reason = 152
	ReasonStopping          Reason = 153
	ReasonNoToken           Reason = 154
	ReasonNotAllowed        Reason = 155
	ReasonCanceled          Reason = 161
	ReasonDiskFull          Reason = 162
	ReasonMemoryFull        Reason = 177
	ReasonInternal          Reason = 199
)

// String returns the reason's API name without its prefix: STALE_FENCE.
func (r Reason) String() string {
	return strings.TrimPrefix(quotav1.Reason(r).String(), "REASON_")
}

// Error implements error.
func (r Reason) Error() string { return r.String() }
