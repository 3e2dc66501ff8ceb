// Package client is the Go client of quotad: it asks a cluster for amounts of shared quotas before they are spent.
//
// # Which part to use
//
// Most callers should use [NewTransport] or [Client.Limiter].
//
//   - Calls over HTTP to a provider: [NewTransport]. It is an http.RoundTripper that asks before each request, settles
//     after it, and reports the provider's headers to the cluster. It retries calls that were refused for a limit, higher
//     classes first. It works under any vendor's SDK that takes an http.Client. Turn the SDK's own retries off.
//     Options name the providers ([GitHub], [OpenAI] and the others), each bound to its hosts.
//   - Calls that are not HTTP, or a loop that has to be paced: [Client.Limiter]. Wait and Allow work like those of
//     golang.org/x/time/rate, for a whole fleet; [Limiter.TryTake] corresponds to Reserve. There are no At forms, since the
//     time is the cluster's. Under load most takes are an atomic addition.
//   - Something held during work, such as one of several slots: [Do]. It reserves, keeps the lease alive while a function
//     runs, cancels the function's context if the lease is lost, and releases.
//   - Anything else: [Client.Reserve] and the methods of [Lease] and [Operation].
//
// # Guarantees
//
// Consume an amount before you spend it. A consumed amount should reach the provider by the operation's spend-by, so
// start the call by [Operation.LastTake]. Deadlines follow this machine's monotonic clock, count from before the
// answered request was sent, and are a little early. Leases are compared with the wall clock as well, since the
// monotonic one stops while a machine sleeps.
//
// A request has three outcomes. It is applied: the answer is a result, a [*RefusalError] (the cluster says no), or a
// [*RequestError] (the request itself is wrong). It is not accepted, [*NotAcceptedError]: it had no effect. Or its
// outcome is unknown, [*UnknownOutcomeError]. The client repeats requests, each under its own number, so that none is
// carried out twice; the last two errors remain when the caller's context has ended. errors.Is matches errors with a
// [Reason], such as client.ReasonCooldown, with [ErrClusterAway] and with the context's error.
//
// A client that no node has ever answered suspects its addresses: if connections to all of them fail, calls fail within a second with
// an error that names them ([Client.Ping] and [Client.Ready] check this explicitly). Once a node has answered, calls wait for the
// cluster until their deadline. If the leader is unreachable from here, as through a tunnel or a load balancer, another node forwards.
// All clients of a process, whatever their tokens, share one or two HTTP/2 connections to each node. Nodes with TLS have https URLs, or
// [WithTLS] names the CA of their certificates.
//
// Every call returns within its context's deadline; without one, within the call timeout ([WithCallTimeout]) plus its
// wait in the cluster's queue. While the cluster is away, amounts consumed before may be spent until their spend-by.
// After that all calls fail, unless a limiter fails open.
//
// # Logs, metrics and traces
//
// [WithHooks] registers callbacks for waits, refusals, retries, cooldowns and batches. Package metrics turns them into Prometheus
// counters, and package tracing into spans of OpenTelemetry (quotad.wait). Warnings go to the default logger of [log/slog], unless
// [WithLogger] is set. A refused call is an error; with [AnswerRefusals] it is the provider's own 429.
//
// # Limits
//
// The client governs calls; it does not make them safe. A process that is stopped between a take and the call, or a network slower than
// the quota's transit, can deliver a call to the provider after its spend-by.
//
// All types are safe for concurrent use. A [Client] has goroutines while there is work, and none after [Client.Close], which
// returns the unspent amounts of limiters.
package client
