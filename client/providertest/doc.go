// Package providertest is an API provider for tests and demonstrations: an HTTP server that independently enforces GitHub's and
// OpenAI's rate limits, with their headers, statuses and error bodies.
//
// It counts separately from quotad and shares no code with it, so that it can check a fleet that quotad governs. It records every
// request, admitted or not: [Provider.Records] and [Peak] show afterwards what the provider saw in its worst moment.
//
// A [Provider] is an http.Handler, a [Server] one that listens. Paths below /v1/ are OpenAI's, all others GitHub's. A bearer token is a
// key, and each key has its own limits. Two request headers help to read the records: [HolderHeader] names the caller. [CallHeader]
// names a call, so that its second arrival counts as a retry.
//
// Time may pass faster than real time: with a Scale of 60 an hour of the limits lasts one minute. The provider's answers (resets,
// waits) are always in the caller's time.
//
// All methods are safe for concurrent use.
package providertest
