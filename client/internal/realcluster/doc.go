// Package realcluster has the client's tests against real nodes: the state machine, Raft and the API in this process, on
// loopback addresses. What they cannot see is what only whole processes do: a power cut, a stopped process, another clock.
package realcluster
