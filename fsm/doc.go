// Package fsm is quotad's deterministic state machine: it decides who gets how much of which quota.
//
// It takes encoded log entries (package logpb) in index order and gives back results by position and events as values.
// It has no clock, no goroutine, no randomness, no lock and no I/O, and lets no map's order reach a result, so that
// every replica that applied the same entries has the same state. Time comes with the entries.
//
// A Machine is used by one goroutine at a time; its caller (package raftnode) holds a lock around Apply and around the
// reading methods of the State that Machine.State returns. Machine.Freeze returns a State that never changes again, in
// constant time; it may be read from any goroutine while commands go on. Snapshots and long lists are made from it.
//
// What counts against one quota is package ledger's, and how entries are encoded package entry's; they and other leaves know nothing of the
// machine. DESIGN.md says which package and file has what, what holds between entries, and why constants have their values.
package fsm
