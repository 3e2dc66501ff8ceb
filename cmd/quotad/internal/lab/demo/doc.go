// Package demo is `quotad demo`: nine agents share one API key, once with a backoff each and once through quotad.
//
// It starts real processes of its own binary: three nodes of a cluster, a provider that enforces GitHub's and OpenAI's
// limits (package providertest), and the agents of each fleet, which call the provider over HTTP. Midway it kills the
// leader, and restarts it later. The verdict rests on the provider's counts; the agents report only how long they waited.
//
// The parts: roles.go (who the agents are, and the limits), agent.go, ask.go, own.go and governed.go (an agent process),
// provider.go (the provider process), watch.go and tally.go (the current state), view.go and frame.go (the terminal),
// report.go and table.go (the end), run.go (the order of events). Package local starts, kills and stops processes.
package demo
