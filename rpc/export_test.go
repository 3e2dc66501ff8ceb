package rpc

import (
	"context"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Audited are the calls that leave a line in the log.
func Audited() []string { return slices.Sorted(maps.Keys(audited)) }

// OfOperators, OfHolding and TakesMore are the calls that admission tells apart; NotOfOperators those that the operators' port does not
// serve.
func OfOperators() map[string]bool { return ofOperators }

// OfHolding see OfOperators.
func OfHolding() map[string]bool { return ofHolding }

// TakesMore see OfOperators.
func TakesMore() map[string]bool { return takesMore }

// NotOfOperators see OfOperators.
func NotOfOperators() map[string]bool { return notOfOperators }

// AlwaysBusy makes a server find its processors busy, whatever they do.
func AlwaysBusy(c *Config) {
	began := time.Now()
	c.clocks = func() processor.Clocks {
		return processor.Clocks{Used: time.Since(began) * time.Duration(runtime.GOMAXPROCS(0)), HasUsed: true, HasUnused: true}
	}
}

// NeverBusy makes a server find its processors idle, whatever else the machine does.
func NeverBusy(c *Config) {
	c.clocks = func() processor.Clocks { return processor.Clocks{} }
}

// Await is await, for tests of states that exist only between two steps.
var Await = (*Server).await

// Taken makes the answer to a take without a token that was granted a lease.
func Taken(ctx context.Context, s *Server, lease *quotav1.Lease) error {
	who := anybody.at(accountOfAddress(""))
	_, err := s.taken(context.WithValue(ctx, requestKey{}, &request{who: who, received: time.Now(), header: http.Header{}}), lease)
	return err
}

// HoldForLeader is how long a call waits for a leader.
const HoldForLeader = holdForLeader

// RouteLimits are a route's limits, for tests.
type RouteLimits struct {
	Methods []string
	Body    int64
	Endless bool
}

// Routes returns what a server serves, by path.
func Routes(s *Server) map[string]RouteLimits {
	all := map[string]RouteLimits{}
	for _, r := range s.routes() {
		all[r.pattern] = RouteLimits{Methods: r.limits.methods, Body: r.limits.body, Endless: r.limits.endless}
	}
	return all
}

// HasConnections tells whether a listener has connections of an account.
func HasConnections(l *Listener, account string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.callers.shares.Has(account)
}

// CallBytes and StreamBytes are what a node's plan has for one call and one stream.
const (
	CallBytes   = callBytes
	StreamBytes = streamBytes
)
