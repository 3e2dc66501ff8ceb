// Package demo is `quotad demo`: nine agents share one API key, once each on its own backoff and once through quotad.
//
// It starts real processes of its own binary: three nodes of a cluster, a provider that enforces GitHub's and OpenAI's
// limits (package providertest), and the agents of each fleet, which call the provider over HTTP. Half-way it kills the
// leader, and brings it back later. What the provider counted decides in the end; the agents only tell how long they
// waited.
//
// The parts: roles.go (who the agents are, and the limits), agent.go, ask.go, own.go and governed.go (an agent process),
// provider.go (the provider process), watch.go and tally.go (what is going on), view.go and frame.go (the terminal),
// report.go and table.go (the end), run.go (the order of events). Package local starts, kills and stops processes.
package demo
