// Package rpc is quotad's API over Connect, gRPC, gRPC-Web and plain HTTP with JSON.
//
// Its handlers only translate. They check a request against one table (validate.go), build a log command, and propose it to package
// raftnode. They turn the result into an answer whose deadlines are remaining durations. Calls that need the leader are forwarded once,
// in one place (call.go). A token identifies the caller before that; the node that executes the call checks permissions again.
//
// Generated code is in quotav1; its schema, with every unit, in proto/quota/v1.
package rpc
