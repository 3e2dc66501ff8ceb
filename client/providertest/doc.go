// Package providertest is an API provider for tests and demonstrations: an HTTP server that enforces GitHub's and
// OpenAI's rate limits by itself, with their headers, statuses and error bodies.
//
// It counts apart from quotad and shares no code with it, so that it can judge a fleet that quotad governs. Everything
// that arrives is recorded, admitted or not: [Provider.Records] and [Peak] tell afterwards what the provider saw in its
// worst moment.
//
// A [Provider] is an http.Handler, a [Server] one that listens. Paths below /v1/ are OpenAI's, all others GitHub's. A
// caller is told apart by its bearer token, its key; each key has limits of its own. Two request headers help to read
// the records: [HolderHeader] names the caller, and [CallHeader] names a call, so that a call that arrives twice is known
// to be a retry.
//
// Time may pass faster than life: with a Scale of 60 an hour of the limits lasts one minute. What the provider answers
// (resets, waits) is always in the caller's time.
//
// All methods may be used by any number of goroutines at once.
package providertest
