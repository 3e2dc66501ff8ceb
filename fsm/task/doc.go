// Package task has pieces of work with a retry budget. The budget is kept in the state, and not with who works on a task, so that neither a
// restart nor a second runner gets a fresh one: an attempt at a time, a deadline for each, and a wait after one that did not finish.
//
// It decides what becomes of tasks, and charges accounts with them. What else it needs of the state machine is Host.
package task
