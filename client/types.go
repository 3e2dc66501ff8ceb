package client

import "time"

// Item is an amount of one quota, in whole units of it (requests, tokens, slots, micro-dollars).
type Item struct {
	// Quota is the quota's name, such as github/core.
	Quota string
	// Amount is 1 to 2^53-1. In a ReserveRequest 0 means the quota's default estimate, in Consume and Release all that is held. In a
	// Settlement 0 is 0.
	Amount int64
}

// Class is a priority. The operator sets a holder's class; a caller may lower it, never raise it.
type Class int32

// The classes, highest first.
const (
	// ClassDefault is the class that the operator gave the holder.
	ClassDefault Class = 0
	// Critical is the highest class.
	Critical Class = 1
	// Standard is the class of holders without a mapping.
	Standard Class = 2
	// Background is the lowest class.
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

// Side is a holder's position in its workflow, relative to a limited holder.
type Side int32

// The sides.
const (
	// SideNone: no holder is limited now.
	SideNone Side = 0
	// Upstream: its work flows to the limited holder. It should begin nothing new.
	Upstream Side = 1
	// Downstream: its work comes from the limited holder.
	Downstream Side = 2
	// Self: it is the limited holder.
	Self Side = 3
	// OtherBranch: it is on another branch.
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

// BackPressure is the state of a holder's workflow, so that the holder slows down before it is stopped.
type BackPressure struct {
	// Workflow is the workflow's name.
	Workflow string
	// Sequential: its steps run one at a time.
	Sequential bool
	// Step is the limited holder that concerns this one most; empty: none is limited any more, but the workflow has not recovered yet.
	Step string
	// Quota is the quota that limits it; LimitedFor is for how long, as far as known.
	Quota      string
	LimitedFor time.Duration
	// Side is this holder's position relative to Step.
	Side Side
	// Baton is the holder with the baton, while one step at a time runs; empty: none.
	Baton string
}

// QuotaKind is the kind of a quota.
type QuotaKind int

// The kinds.
const (
	// KindWindow allows a number of units per fixed window.
	KindWindow QuotaKind = 1
	// KindRate allows a number of units per period, wherever the period starts.
	KindRate QuotaKind = 2
	// KindSlots allows a number of units at the same time.
	KindSlots QuotaKind = 3
	// KindPool is several quotas of one of the other kinds; a Reserve is granted one of them.
	KindPool QuotaKind = 4
)

// Quota is a quota's state when the cluster answered.
type Quota struct {
	Name string
	Kind QuotaKind
	// Usable is the usable amount per window or period, or at the same time.
	Usable int64
	// Period is the length of its window or period, 30 days for a month; 0: it has none, or the client does not know it.
	Period time.Duration
	// Held is reserved and not spendable yet.
	Held int64
	// Consumed is spendable or spent, and still counts.
	Consumed int64
	// Available is neither held nor consumed; negative after an overrun.
	Available int64
	// AvailableWithParents is the least available amount of this quota and all its ancestors.
	AvailableWithParents int64
	Zone                 Zone
	// CooldownLeft is the remaining cooldown; 0: none.
	CooldownLeft time.Duration
	// WindowClosesIn is the time until the window closes; -1: no window, or its end is unknown.
	WindowClosesIn time.Duration
	// Waiting is the number of Reserves that wait for it.
	Waiting int64
	// Leases is the number of live leases with an item of it.
	Leases int64
	// Overrun is the use above estimates in the present window or period.
	Overrun int64
	// DefaultEstimate is the amount of an item without one.
	DefaultEstimate int64
	// ReopensIn is the time until it is fully open again after a cooldown; 0: it is.
	ReopensIn time.Duration
	// Observes: it grants every request and only counts. Observed is the number of grants that it would have refused.
	Observes bool
	Observed int64
	// Members are a pool's members, in order. A pool's amounts are the sums of theirs, except AvailableWithParents: the most that one
	// open member has. If all members are closed, CooldownLeft is that of the first to open.
	Members []PoolMember
}

// PoolMember is a member of a pool.
type PoolMember struct {
	// Name is the member's name, such as that of a key; Quota is the name of its quota.
	Name, Quota string
	// Usable is the usable amount of its quota; Available is the least available amount of that quota and its ancestors.
	Usable, Available int64
	// CooldownLeft is the remaining cooldown; 0: none.
	CooldownLeft time.Duration
}

// Cause classifies a provider's answer.
type Cause int32

// The causes.
const (
	// CauseOK: an ordinary answer; only its counts matter.
	CauseOK Cause = 1
	// CauseSaturated: too fast, or too many at once.
	CauseSaturated Cause = 2
	// CauseExhausted: used up until its reset.
	CauseExhausted Cause = 3
	// CauseAccount: a limit on the whole account.
	CauseAccount Cause = 4
	// CausePlan: not in the plan, or not paid.
	CausePlan Cause = 5
	// CauseOverloaded: the provider's own overload.
	CauseOverloaded Cause = 6
	// CauseNotALimit: not a rate limit.
	CauseNotALimit Cause = 7
)

// Signal is a provider's statement about one quota. A nil pointer is unknown, which differs from 0.
type Signal struct {
	// Quota is an item of the reported lease, or an ancestor of one.
	Quota string
	// Cause classifies the answer.
	Cause Cause
	// Limit is the stated limit.
	Limit *int64
	// Remaining is the stated remaining amount.
	Remaining *int64
	// ResetAfter is the time until the window resets, from the answer's arrival.
	ResetAfter *time.Duration
	// ResetResolution is the precision of the reset.
	ResetResolution time.Duration
	// RetryAfter is the requested wait.
	RetryAfter *time.Duration
}

// Reported is the effect of a report on one quota.
type Reported struct {
	Quota string
	// CooldownLeft is the remaining cooldown, in which the quota grants nothing; 0: none, or the quota only observes.
	CooldownLeft time.Duration
	// Cooldowns is the number of consecutive cooldowns.
	Cooldowns int
	// ResetLearned: the window's reset was learnt from the report.
	ResetLearned bool
}
