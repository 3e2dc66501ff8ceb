// Package rpc is quotad's API over Connect, gRPC, gRPC-Web and plain HTTP with JSON.
//
// Its handlers only translate: they check a request against one table (validate.go), build a log command, propose it
// to package raftnode and turn the result into an answer in which every deadline is what is left of it. Calls that need
// the leader are handed on once, in one place (call.go); a caller is known by its token before that, and judged where
// its call is carried out.
//
// Generated code is in quotav1; its schema, with every unit, in proto/quota/v1.
package rpc
