// Package logstore is what a node keeps durably beside the content of its snapshots: raft's log, votes and terms, in either of two stores,
// the small files that say who the node is, and the witness, a second account of all of them.
//
// It promises:
//
//   - What was synced is read back as it was written, or refused: every entry, value, list and page carries a checksum that is checked.
//   - A disk that lost a part of itself, or went back to an older state, is refused (ErrWiped); damage names file, place and advice (ErrDamaged).
//   - The first write that fails ends the node. Nothing is applied, answered or told to a follower that this node has not on disk.
//   - Reading a stopped node's directory (OpenOffline) changes no file. Migrate can be interrupted at any point, and called again.
//
// Disk is a directory before its log is open, Log is the log as raft sees it, Store is one of the two stores beneath it.
package logstore
