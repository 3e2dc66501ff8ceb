// Package peer is the port on which nodes call each other: one listener, two protocols. Raft's streams are framed, so that no message can
// make raft take more memory than its kind needs; questions (Port.Ask) are lines of JSON.
//
// It knows connections: who may have how many (connSlots), which ones are open with whom (links), and that an open one ends where a new
// one would be refused. What a node is and whom it lets in is its node's to say (Local).
package peer
