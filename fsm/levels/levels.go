// Package levels has the feature levels: the version of log entries that introduces each change of meaning. A state's
// level is the highest version of an applied entry, so all replicas change at the same entry.
package levels

const (
	// Oldest is the lowest version of entries that this build applies.
	Oldest = 5
	// Newest is the highest.
	Newest = 12

	// Rates is the feature level that introduces shares of rates.
	Rates = 6
	// Reports is the level at which rates follow the remainders that their provider reports, rates have predictions, and
	// cooldowns name retry times by class.
	Reports = 7
	// Pools is the feature level that introduces pools.
	Pools = 7
	// PoolItems is the level at which a Reserve that names a pool may have fewer items.
	PoolItems = 8
	// RetriesCountSetAside is the level at which a waiter of a rate with shares is retried when its amount is lent on top of the
	// amounts set aside.
	RetriesCountSetAside = 8
	// Overtaken is the level at which amounts consumed after a reporting operation do not count as use by others, and shares
	// of a rate are parts of the amount that others leave.
	Overtaken = 8
	// SingleReporter is the level at which one caller's reports hold a rate back for a bounded time, and close it for an hour at most.
	SingleReporter = 8
	// Spread is the level at which retry times are also spread if a ramp makes callers wait for longer than the cooldown.
	Spread = 9
	// ReportsPerCaller is the level at which a report of an operation is stale only compared with a later one of the same caller.
	ReportsPerCaller = 9
	// OwnSessions is the level at which sessions and idempotency keys belong to the caller that made them, not to all callers of the same
	// reach.
	OwnSessions = 9
	// Resets is the level at which one caller's report does not move a reset that another caller named, and delays its effect
	// only briefly.
	Resets = 10
	// Results is the level at which results of sessions do not use the operators' part of their bytes.
	Results = 10
	// Repaced is the level at which a change of a rate's rule that keeps its price keeps its pacer.
	Repaced = 10
	// Counted is the level at which amounts of critical calls on a rate that return or end reduce their use only as far as they
	// were counted there. The calls may have begun before the rate had shares.
	Counted = 11
	// NodeLimits is the level at which limits include those that callers share on each node.
	NodeLimits = 11
	// ShortLead is the level at which a rate's pacer is ahead at most as long as consumed amounts count.
	ShortLead = 12
	// FirstToOpen is the level at which the refusal of a pool names the member that opens first, not the one with the first retry time.
	FirstToOpen = 12
	// ForecastInLine is the level at which refusals of a Reserve behind waiters carry the forecast.
	ForecastInLine = 12
)
