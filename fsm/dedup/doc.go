// Package dedup remembers requests, so that a repeated request is carried out once: numbered requests of a session, and
// requests with an idempotency key. It has the sessions, the stored results of both, how these leave, and their records
// in snapshots. The machine carries requests out (Host).
package dedup
