// Package levels has the feature levels: from which version of log entries on something has the meaning that it has. A state's level is the
// highest version of an entry that was applied to it, so all replicas change at the same entry.
package levels

const (
	// Oldest is the lowest version of entries that this build applies.
	Oldest = 5
	// Newest is the highest.
	Newest = 12

	// Rates is the feature level from which on rates have shares.
	Rates = 6
	// Reports is that from which on rates heed what their provider says is left, are predicted, and cooldowns say when to come back
	// by class.
	Reports = 7
	// Pools is the feature level from which on there are pools.
	Pools = 7
	// PoolItems is that from which on a Reserve that names a pool has fewer items.
	PoolItems = 8
	// Aside is that from which on a waiter of a rate with shares is tried again when its amount is lent next to what is set aside.
	Aside = 8
	// Overtaken is that from which on what was consumed after a reporting operation is not taken for what others use, and shares of a
	// rate are of what these leave.
	Overtaken = 8
	// OneWord is that from which on one caller's word holds a rate back for a bounded time, and closes it for an hour at most.
	OneWord = 8
	// Spread is that from which on callers also come back spread where a ramp makes them wait for longer than the cooldown.
	Spread = 9
	// Heard is that from which on a report of an operation is stale only next to a later one of the same caller.
	Heard = 9
	// Own is that from which on sessions and idempotency keys belong to the caller that made them, not to all of the same reach.
	Own = 9
	// Resets is that from which on one caller's word neither moves the reset that another one names nor keeps it from freeing for long.
	Resets = 10
	// Results is that from which on results of sessions leave the operators' part of their bytes alone.
	Results = 10
	// Repaced is that from which on a change of a rate's rule that leaves its price alone leaves its pacer alone.
	Repaced = 10
	// Counted is that from which on what critical calls on a rate give back, or end, leaves their use only as far as it was counted there:
	// it may have begun before the rate had shares.
	Counted = 11
	// NodeLimits is that from which on limits say what callers share of each node.
	NodeLimits = 11
	// ShortLead is that from which on a rate's pacer is ahead for no longer than what is consumed counts.
	ShortLead = 12
	// FirstToOpen is that from which on a refusal of a pool is about the member that opens first, not the one to come back to first.
	FirstToOpen = 12
	// ForecastInLine is that from which on refusals of a Reserve behind waiters say what is predicted.
	ForecastInLine = 12
)
