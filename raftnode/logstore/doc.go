// Package logstore keeps a node's durable data, except the content of its snapshots: raft's log, votes and terms, in either of two stores;
// the small files that identify the node; and the witness, a second record of all of them.
//
// It promises:
//
//   - Synced data is read back as it was written, or refused: every entry, value, list and page carries a checksum that is verified.
//   - A disk that lost a part of itself, or went back to an older state, is refused (ErrWiped);
//     damage names file, place and advice (ErrDamaged).
//   - The first failed write ends the node. A node applies, answers and tells followers only what it has on disk.
//   - Reading a stopped node's directory (OpenOffline) changes no file. Migrate can be interrupted at any point, and called again.
//
// Disk is a directory before its log is open. Log is the log as raft sees it. Store is one of the two stores below it.
package logstore
