package rpc

// Await is await, for tests of what only happens between two steps.
var Await = (*Server).await
