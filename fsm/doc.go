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
// The parts, each in its own file: machine.go (decode, stamp, dispatch), quota.go and ledger.go (the arithmetic of the
// three kinds), lease.go, operation.go, reserve.go, queue.go (who is next), session.go (exactly once), report.go
// (cooldowns), task.go and attempt.go (retry budgets), admin.go, read.go (views), snapshot.go, hash.go and verify.go
// (conservation, recomputed).
package fsm
