package rpc

// Await is await, for tests of what only happens between two steps.
var Await = (*Server).await

// HoldForLeader is how long a call waits for a leader.
const HoldForLeader = holdForLeader
