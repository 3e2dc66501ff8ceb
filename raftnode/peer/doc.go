// Package peer is the port on which nodes call each other: one listener, two protocols. Raft's streams are framed, so that no message can
// make raft allocate more memory than a message of its kind needs. Questions (Port.Ask) are lines of JSON.
//
// The package manages connections: how many each caller may have (connSlots), and the remote node of each open one (links). An open
// connection ends as soon as a new one from the same node would be refused. The node itself decides what it is and which callers it admits
// (Local).
package peer
