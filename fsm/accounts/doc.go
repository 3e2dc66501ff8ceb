// Package accounts has what callers share of the state, and who has how much of it: a budget for each thing that requests can fill, with a
// part for operators, a least part for each caller, and at most half of what others leave for anybody
// (docs/decisions/0023-caller-budgets.md).
//
// It counts, and knows nothing of what it counts: package fsm charges where something is kept, and gives back where it goes.
package accounts
