// Package ledger counts the use of one quota. Rule is the compiled definition. Ledger has the held, open and counted
// amounts, for windows, rates with or without a burst, and slots.
//
// It is integer arithmetic. Each call passes the time, as a View in the rule's own time base, in nanoseconds. The
// package does not know leases, holders or waiters: package fsm adds and removes amounts, and keeps the invariants
// between quotas. The rules are in docs/consistency.md and docs/policy.md.
package ledger
