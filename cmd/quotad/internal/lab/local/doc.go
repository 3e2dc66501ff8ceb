// Package local runs quotad on this machine as real processes, for demonstrations and for runs in real time: a nursery of
// child processes of its own binary, none of which outlives it, and a cluster of three nodes on loopback that can be
// killed, started again and looked at.
package local
