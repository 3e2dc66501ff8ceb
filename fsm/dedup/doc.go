// Package dedup remembers requests, so that one that is sent again is carried out once: requests that are numbered in a session, and
// requests that have an idempotency key. It has sessions, the stored results of both, how these leave, and their records in snapshots.
// What a request does is the machine's (Host).
package dedup
