// Package client is the Go client of quotad: it asks a cluster for amounts of shared quotas before they are spent.
//
// # Which part to use
//
// Most callers should use [NewTransport] or [Client.Limiter].
//
//   - Calls over HTTP to a provider: [NewTransport]. It is an http.RoundTripper that asks before each request, settles
//     after it, tells the cluster what the provider's headers say, and sends what was refused for a limit again when it
//     is its class's turn. It works under any vendor's SDK that takes an http.Client. Turn the SDK's own retries off.
//     Options name the providers ([GitHub], [OpenAI] and the others), each bound to its hosts.
//   - Calls that are not HTTP, or a loop that has to be paced: [Client.Limiter]. Wait and Allow work as those of
//     golang.org/x/time/rate, for a whole fleet; [Limiter.TryTake] stands for its Reserve, and there are no At forms, since the
//     time is the cluster's. Under load most takes are an atomic addition.
//   - Something that is held while work is done, such as one of so many slots: [Do]. It reserves, keeps the lease alive
//     while a function runs, ends the function's context if the lease is lost, and releases.
//   - Anything else: [Client.Reserve] and the methods of [Lease] and [Operation].
//
// # What is promised
//
// An amount has to be consumed before it is spent, and what is consumed should reach the provider by the operation's
// spend-by; so a call should start by [Operation.LastTake]. Deadlines are kept on this machine's monotonic clock, counted
// from before the request that was answered, and a little early; leases are compared with the wall clock as well, since
// the monotonic one stands still while a machine sleeps.
//
// A request has three outcomes. It is applied: there is a result, or a [*RefusalError], which is the cluster's no, or a
// [*RequestError], which says that the request itself is wrong. It is not accepted, [*NotAcceptedError]: it had no effect.
// Or its outcome is unknown, [*UnknownOutcomeError]. The client repeats requests by itself, each under its own number, so
// that none is carried out twice; the last two errors are what remains when the caller's context has ended. Errors
// answer to errors.Is with a [Reason], such as errors.Is(err, client.ReasonCooldown), and with [ErrClusterAway] or the
// context's error.
//
// A client that has never heard of a node takes its addresses for wrong: where connections to all of them fail, calls end within a
// second with an error that names them ([Client.Ping] and [Client.Ready] ask on purpose). Once a node has answered, calls wait for the
// cluster as long as they may. A node that is not the leader forwards where the leader cannot be reached from here, as through a
// tunnel or a load balancer. All calls share one or two connections to each node, over HTTP/2.
//
// Every call returns within its context's deadline, or without one within the call timeout ([WithCallTimeout]) and what
// it waits in the cluster's queue. While the cluster is away, what was consumed before may be spent until its spend-by;
// then everything fails, closed by default.
//
// # What it tells
//
// [WithHooks] calls back on waits, refusals, retries, cooldowns and batches. Package metrics makes Prometheus counters of them, and package
// tracing spans of OpenTelemetry (quotad.wait). Warnings go to [log/slog]'s default logger, unless [WithLogger] says otherwise.
// A refused call is an error; [AnswerRefusals] makes it the provider's own 429 instead.
//
// # What it is not
//
// It governs calls; it does not make them safe. A process that is stopped between a take and the call, or a network that
// is slower than the quota's transit, can bring a call to the provider after its spend-by.
//
// All types are safe for concurrent use. A [Client] has goroutines while there is something to do, and none after
// [Client.Close], which returns what limiters have not spent.
package client
