package client

import (
	"strings"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Item names an amount of one quota, in whole units of it (requests, tokens, slots, micro-dollars).
type Item struct {
	// Quota is the quota's name, such as github/core.
	Quota string
	// Amount is 1 to 2^53-1. In a ReserveRequest 0 stands for the quota's default estimate, and for all that is held in
	// Consume and Release. In a Settlement 0 is 0.
	Amount int64
}

// Class is a priority. A holder's class is set by the operator; a caller may lower it, never raise it.
type Class int32

// The classes, highest first.
const (
	// ClassDefault is the class that the operator gave the holder.
	ClassDefault Class = 0
	// Critical is class 0.
	Critical Class = 1
	// Standard is class 1, that of holders nobody mapped.
	Standard Class = 2
	// Background is class 2.
	Background Class = 3
)

// String returns the class's name.
func (c Class) String() string {
	switch c {
	case Critical:
		return "critical"
	case Standard:
		return "standard"
	case Background:
		return "background"
	case ClassDefault:
	}
	return "default"
}

// Zone is a quota's zone, by the share of its window that is left.
type Zone int32

// The zones.
const (
	// ZoneNone: no zones are configured.
	ZoneNone Zone = 0
	// Green: plenty is left.
	Green Zone = 1
	// Amber: little is left.
	Amber Zone = 2
	// Red: almost nothing is left.
	Red Zone = 3
)

// String returns the zone's name.
func (z Zone) String() string {
	switch z {
	case Green:
		return "green"
	case Amber:
		return "amber"
	case Red:
		return "red"
	case ZoneNone:
	}
	return "none"
}

// Side says where a holder stands in its workflow as seen from one that is limited.
type Side int32

// The sides.
const (
	// SideNone: no holder is limited now.
	SideNone Side = 0
	// Upstream: its work ends up at the limited one. It should begin nothing new.
	Upstream Side = 1
	// Downstream: its work comes from the limited one.
	Downstream Side = 2
	// Self: it is the limited one.
	Self Side = 3
	// OtherBranch: it stands on another branch.
	OtherBranch Side = 4
)

// String returns the side's name.
func (s Side) String() string {
	switch s {
	case Upstream:
		return "upstream"
	case Downstream:
		return "downstream"
	case Self:
		return "self"
	case OtherBranch:
		return "other_branch"
	case SideNone:
	}
	return "none"
}

// BackPressure says how a holder's workflow stands, so that it slows down before it is stopped.
type BackPressure struct {
	// Workflow is the workflow.
	Workflow string
	// Sequential: its holders go one at a time.
	Sequential bool
	// Step is the holder that is limited and concerns this one most; empty: none any more, it is only not calm yet.
	Step string
	// Quota is by which it is limited, LimitedFor for how long as far as known.
	Quota      string
	LimitedFor time.Duration
	// Side is where this holder stands as seen from that one.
	Side Side
	// Baton is the holder with the baton, while one step at a time runs; empty: none.
	Baton string
}

// Reason is the code of a refusal (1 to 99), of an error (100 and above), or of either ([ReasonCallerBudget], [ReasonBudgetFull]), with the
// API's names. It is an error itself: errors.Is(err, client.ReasonCooldown) asks for it wherever it sits.
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

// Reasons of refusals and of errors: what callers share has a part for each, and their name says what it is.
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

// String returns the reason as the API writes it, without its prefix: STALE_FENCE.
func (r Reason) String() string {
	return strings.TrimPrefix(quotav1.Reason(r).String(), "REASON_")
}

// Error implements error.
func (r Reason) Error() string { return r.String() }

// QuotaKind is the kind of a quota.
type QuotaKind int

// The kinds.
const (
	// KindWindow allows so many per fixed window.
	KindWindow QuotaKind = 1
	// KindRate allows so many per period, wherever the period starts.
	KindRate QuotaKind = 2
	// KindSlots allows so many at the same time.
	KindSlots QuotaKind = 3
	// KindPool is several quotas of one of the other kinds, of which a Reserve is granted one.
	KindPool QuotaKind = 4
)

// Quota is a quota as the cluster saw it when it answered.
type Quota struct {
	// Name is its name.
	Name string
	// Kind is its kind.
	Kind QuotaKind
	// Usable is what may be used per window or period, or at once.
	Usable int64
	// Period is the length of its window or period, 30 days for a month; 0: it has none, or the client does not know it.
	Period time.Duration
	// Held is reserved and not spendable yet.
	Held int64
	// Consumed is spendable or spent, and still counting.
	Consumed int64
	// Available is neither; below 0 after an overrun.
	Available int64
	// AvailableWithParents is the least that is available here and in all ancestors.
	AvailableWithParents int64
	// Zone is its zone.
	Zone Zone
	// CooldownLeft is what is left of a cooldown; 0: none.
	CooldownLeft time.Duration
	// WindowClosesIn is what is left until the window closes; -1: no window, or its end is not known.
	WindowClosesIn time.Duration
	// Waiting is how many Reserves wait for it.
	Waiting int64
	// Leases is how many live leases have an item of it.
	Leases int64
	// Overrun is what was used above its estimates in the present window or period.
	Overrun int64
	// DefaultEstimate is the amount of an item that names none.
	DefaultEstimate int64
	// ReopensIn is what is left until it is fully open again after a cooldown; 0: it is.
	ReopensIn time.Duration
	// Observes: it grants everything, and only counts. Observed is how many grants it would have refused.
	Observes bool
	Observed int64
	// Members are those of a pool, in their order. A pool's amounts are the sums of theirs, but for AvailableWithParents, which is the most
	// that one of those has that are open; CooldownLeft is that of the first to open where all are closed.
	Members []PoolMember
}

// PoolMember is a member of a pool.
type PoolMember struct {
	// Name is the member's name, such as a key's, Quota its quota's.
	Name, Quota string
	// Usable is what may count at most of its quota, Available what is available there and in all ancestors, the least.
	Usable, Available int64
	// CooldownLeft is what is left of a cooldown; 0: none.
	CooldownLeft time.Duration
}

// Cause classifies what a provider said.
type Cause int32

// The causes.
const (
	// CauseOK is an ordinary answer; only its counts matter.
	CauseOK Cause = 1
	// CauseSaturated is too fast or too many at once.
	CauseSaturated Cause = 2
	// CauseExhausted is used up until its reset.
	CauseExhausted Cause = 3
	// CauseAccount is a limit on the whole account.
	CauseAccount Cause = 4
	// CausePlan is not in the plan or not paid.
	CausePlan Cause = 5
	// CauseOverloaded is the provider's own trouble.
	CauseOverloaded Cause = 6
	// CauseNotALimit is no rate limit at all.
	CauseNotALimit Cause = 7
)

// Signal is what a provider said about one quota. A nil pointer is unknown, which is not 0.
type Signal struct {
	// Quota is an item of the lease that is reported on, or an ancestor of one.
	Quota string
	// Cause classifies the answer.
	Cause Cause
	// Limit is the limit that the provider named.
	Limit *int64
	// Remaining is what it said is left.
	Remaining *int64
	// ResetAfter is how long until the window resets, counted from the answer's arrival.
	ResetAfter *time.Duration
	// ResetResolution is the precision of the reset.
	ResetResolution time.Duration
	// RetryAfter is how long it asked to wait.
	RetryAfter *time.Duration
}

// Reported says what a report did to one quota.
type Reported struct {
	// Quota is the quota.
	Quota string
	// CooldownLeft is what is left of the cooldown for which it grants nothing; 0: none, or it only observes.
	CooldownLeft time.Duration
	// Attempt counts cooldowns in a row.
	Attempt int
	// ResetLearned: the report taught the window's reset.
	ResetLearned bool
}
