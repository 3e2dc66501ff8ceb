// Package ledger counts what is used of one quota: the definition worked out into a rule (Rule), and what is held, open and counted under
// it (Ledger), for windows, rates with or without a burst, and slots.
//
// It is arithmetic on integers. Time comes with each call, as a View in the rule's own time base, in nanoseconds. It knows nothing of
// leases, holders or waiters: package fsm says what is added and taken, and keeps the invariants between several quotas. The rules are in
// docs/consistency.md and docs/policy.md.
package ledger
