// Package fsm is quotad's deterministic state machine: it decides which holder gets how much of which quota.
//
// It takes encoded log entries (package logpb) in index order and returns results by position and events as values. It
// has no clock, goroutine, randomness, lock or I/O, and no map's order reaches a result. So every replica that applied
// the same entries has the same state. Entries carry the time.
//
// One goroutine at a time may use a Machine. Its caller (package raftnode) holds a lock around Apply and around the
// reading methods of the State that Machine.State returns. Machine.Freeze returns, in constant time, a State that never
// changes again: any goroutine may read it while commands continue. Snapshots and long lists use it.
//
// Package ledger counts the use of one quota, and package entry encodes entries; these and other leaves do not depend
// on the machine. DESIGN.md lists packages and files, the invariants between entries, and the reasons for constants.
package fsm
