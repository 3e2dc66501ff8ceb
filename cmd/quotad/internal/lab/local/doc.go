// Package local runs quotad on this machine as real processes, for demonstrations and for runs in real time. It has a
// nursery of child processes of its own binary, none of which outlives it, and a cluster of three nodes on loopback that
// can be killed, restarted and inspected.
//
// It is the launcher of the laboratory. The fault suite has its own (jepsen/cluster): it must not import anything of cmd,
// its nodes are in network namespaces of their own, and a supervisor restarts them. The client's tests run their nodes in
// one process (client/internal/realcluster). The tests of the binary start the one that they built.
package local
