// Package entry decodes and encodes log entries (package logpb) as replicas need it: a field or command that this binary does not know is
// an error, plain Reserves are decoded in place, and names that come often are one string. It also has the digests by which a request that
// is sent again is known.
package entry
