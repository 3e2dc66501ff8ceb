package rpc

import (
	"github.com/quotad/quotad/fsm/accounts"
)

// MemoryPlan divides a node's memory limit among everything that callers can fill, so that all of it together stays below
// raftnode.MemoryMark.
type MemoryPlan struct {
	// State is the memory of the state with all of its budgets full, RequestBytes that of requests (bytes).
	State, RequestBytes int64
	// Calls, Streams and Connections are how many of each the API port takes.
	Calls, Streams, Connections int64
}

// Memory of one object in bytes, as tests measure: of a waiting call with its connection, of an open stream with its connection, and of a
// connection whose bodies nobody reads.
const (
	callBytes       = 44_000
	streamBytes     = 44_000
	connectionBytes = receivePerConnection
)

const (
	// planShare is the percentage of the limit that is divided. The rest is for garbage: the collector works harder above it.
	planShare = 80
	// processBytes is the memory of a process that holds nothing.
	processBytes = 64 << 20
	// leastPlanned is the smallest limit that is divided: a node with less has the budgets of this one.
	leastPlanned = 512 << 20
	// Requests take a sixteenth of the limit, at least enough for two of the longest.
	leastRequestBytes, mostRequestBytes = 64 << 20, 512 << 20
)

// PlanMemory divides a memory limit in bytes; 0: there is no limit, and everything has its default size. Requests take a sixteenth, the
// state half of the rest up to its default budgets, and calls, streams and connections what is left, in proportion to their default
// numbers.
func PlanMemory(limit int64) MemoryPlan {
	whole := MemoryPlan{
		State: accounts.DefaultMemory, RequestBytes: DefaultRequestBytes,
		Calls: accounts.DefaultMaxCalls, Streams: accounts.DefaultMaxStreams, Connections: accounts.DefaultMaxConnections,
	}
	if limit <= 0 {
		return whole
	}
	limit = max(limit, leastPlanned)
	plan := MemoryPlan{RequestBytes: min(max(limit/16, leastRequestBytes), mostRequestBytes)}
	left := limit/100*planShare - processBytes - plan.RequestBytes
	plan.State = min(whole.State, left/2)
	left -= plan.State
	full := whole.Calls*callBytes + whole.Streams*streamBytes + whole.Connections*connectionBytes
	part := func(number int64) int64 { return min(number, number*(left/1024)/(full/1024)) }
	plan.Calls, plan.Streams, plan.Connections = part(whole.Calls), part(whole.Streams), part(whole.Connections)
	return plan
}

// Memory returns how much memory all of the plan takes, in bytes.
func (p MemoryPlan) Memory() int64 {
	return processBytes + p.State + p.RequestBytes + p.Calls*callBytes + p.Streams*streamBytes + p.Connections*connectionBytes
}
