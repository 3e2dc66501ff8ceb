// Package task has pieces of work with a retry budget. The state keeps the budget, not the runner of a task, so neither
// a restart nor a second runner resets it. A task has one attempt at a time, a deadline for each, and a delay after one
// that did not finish it.
//
// It manages tasks, and charges accounts for them. Host is what it needs of the rest of the state machine.
package task
