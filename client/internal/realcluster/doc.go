// Package realcluster has the client's tests against real nodes: the state machine, Raft and the API in this process, on loopback
// addresses. They cannot cover faults of whole processes: a power cut, a stopped process, a different clock.
package realcluster
