// Package entry decodes and encodes log entries (package logpb) for replicas. An unknown field or command is an error,
// plain Reserves are decoded in place, and frequent names share one string. It also has the digests that identify a
// repeated request.
package entry
