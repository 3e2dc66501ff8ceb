// Package local runs quotad on this machine as real processes, for demonstrations and for runs in real time: a nursery of
// child processes of its own binary, none of which outlives it, and a cluster of three nodes on loopback that can be
// killed, started again and looked at.
//
// It is the launcher of the laboratory. The fault suite has its own (jepsen/cluster): it may import nothing of cmd, its nodes live in
// network namespaces of their own, and a supervisor starts them again. The client's tests have their nodes in one process
// (client/internal/realcluster), and those of the binary start the one that they built.
package local
