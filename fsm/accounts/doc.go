// Package accounts holds the budgets that callers share, one for each kind of object that requests add to the state,
// and each caller's use of them. A budget has a part for operators, a minimum for each caller, and allows a caller at
// most half of what the others leave (docs/decisions/0023-caller-budgets.md).
//
// It counts and does not know the counted objects: package fsm charges an object when it is stored, and releases the
// charge when it is dropped.
package accounts
