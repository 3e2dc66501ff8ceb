// Package processor divides a node's processor time among its callers where it is scarce.
package processor

import (
	"context"
	"fmt"
	"maps"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/quotad/quotad/raftnode/budget"
)

// Name is the name of this budget in refusals, metrics and status.
const Name = "processor"

// Charges, in calls. Each call is one, which costs a node some hundred microseconds whatever it asks for. A forwarded call is one more,
// and each round of a stream a quarter. In addition 4 KiB that are read are one, which is sixty commands of a batch, and so are 16 KiB
// that are written.
const (
	perForward = 1.0
	perRound   = 0.25
	perRead    = 1.0 / (4 << 10)
	perWritten = 1.0 / (16 << 10)
)

// Patience is how long a call waits for its turn before it is refused.
const Patience = 5 * time.Second

const (
	// judgeEvery is how often the level is set while calls arrive.
	judgeEvery = 100 * time.Millisecond
	// quietAfter is how long a caller counts after its last call.
	quietAfter = time.Second
	// saved bounds how much a caller may save, in time at its level; it may always save leastSaved calls.
	saved      = 20 * time.Millisecond
	leastSaved = 16
	// leastAfter is the shortest time after which a refused call may be repeated.
	leastAfter = 100 * time.Millisecond
)

// BusyError says that a caller used up its part of the processor's time for longer than its call can wait.
type BusyError struct {
	// RetryAfter is when the caller's part should have room again.
	RetryAfter time.Duration
}

// Error implements error.
func (e *BusyError) Error() string {
	return fmt.Sprintf("the node is busy, and the caller has used up its part of the processor time for the next %v",
		e.RetryAfter.Round(time.Millisecond))
}

// Shares divides processor time. While the node is not busy, or a caller is alone, nobody waits. Otherwise no caller may make more calls
// a second than a level, which falls until the node is not busy. It does not fall below the rate of the second-largest caller, or below a
// fiftieth of the processors' time. So a caller with fewer calls never waits, however much others call. Shares is safe for concurrent
// use.
type Shares struct {
	// Nobody has to wait any more once until ends. others returns how many have work here in addition to the callers; read reads the
	// processors' clocks.
	until  context.Context //nolint:containedctx // it is the server's end, not a call's
	others func() int
	read   func() Clocks

	mu      sync.Mutex
	level   level
	callers map[string]*caller
	// operated is the time of an operator's last call.
	operated time.Time
	seen     sample
}

// New makes shares of the processors whose clocks read returns. others returns how many have work here in addition to the callers. Once
// until ends, nobody has to wait any more.
func New(until context.Context, others func() int, read func() Clocks) *Shares {
	return &Shares{
		until: until, others: others, read: read, callers: map[string]*caller{}, level: newLevel(), seen: sample{since: time.Now(), at: read()},
	}
}

// caller is one caller's account.
type caller struct {
	// calls counts the calls in flight; called is when the last one was charged.
	calls  int
	called time.Time
	// has is how many calls it has saved of each type, or below 0 how many it made in advance, as of at.
	has [callTypes]float64
	at  time.Time
	// charged is its charge since the level was set, and perSecond its rate in the time before.
	charged, perSecond float64
}

// settled tells whether the caller has made no calls in advance.
func (c *caller) settled() bool {
	for _, has := range c.has {
		if has < 0 {
			return false
		}
	}
	return true
}

// CallType is the purpose of a call. All that a caller does is within its part, but a call waits for its own type only. So a caller that
// has used up its part with calls that take more can still release.
type CallType int

// The types of calls.
const (
	// Taking calls want more, or read.
	Taking CallType = iota
	// Holding calls release, renew, or report.
	Holding
	// Streaming calls receive events.
	Streaming
	// Unknown calls are those of callers that are not known.
	Unknown
	callTypes
)

// partOf is how much of a caller's part each type of call has.
var partOf = [callTypes]float64{Taking: 1, Holding: 0.25, Streaming: 0.1, Unknown: 0.1}

// anonymous is the name of all unknown callers. Together they have what one caller has in that type. With fewer than anonymousCount calls
// in judgeEvery, such as a few health checks, nobody waits for their sake.
const (
	anonymous      = ""
	anonymousCount = 4
)

// Call is one call in flight. A nil one is free: it never waits and is charged to nobody.
type Call struct {
	shares   *Shares
	of       *caller
	callType CallType
}

// Enter starts a call of a caller.
func (s *Shares) Enter(name string, callType CallType) *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe()
	of := s.callers[name]
	if of == nil {
		of = &caller{at: time.Now()}
		for callType := range of.has {
			of.has[callType] = s.level.saves()
		}
		s.callers[name] = of
	}
	of.calls++
	return &Call{shares: s, of: of, callType: callType}
}

// EnterAnonymous starts a call of an unknown caller.
func (s *Shares) EnterAnonymous() *Call { return s.Enter(anonymous, Unknown) }

// EnterOperator starts a call of an operator, which is free. Others may have to wait for its sake.
func (s *Shares) EnterOperator() *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe()
	s.operated = time.Now()
	return nil
}

// Leave ends the call.
func (c *Call) Leave() {
	if c == nil {
		return
	}
	c.shares.mu.Lock()
	defer c.shares.mu.Unlock()
	c.of.calls--
}

// Wait charges a call, or one round of a stream, once it is the caller's turn. It returns a *BusyError after Patience if the turn is
// later than that, and charges nothing.
func (c *Call) Wait(ctx context.Context) error {
	if c == nil {
		return nil
	}
	wait, refused := c.take()
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return refused
	case <-c.shares.until.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take charges the caller and returns how long the call has to wait, or how long until it is refused.
func (c *Call) take() (wait time.Duration, refused error) {
	cost := 1.0
	if c.callType == Streaming {
		cost = perRound
	}
	c.shares.mu.Lock()
	defer c.shares.mu.Unlock()
	c.shares.observe()
	c.shares.refill(c.of)
	if short := -c.of.has[c.callType]; short > 0 {
		wait = c.shares.level.takes(short / partOf[c.callType])
	}
	c.shares.seen.waited = c.shares.seen.waited || wait > 0
	if wait > Patience {
		return Patience, &BusyError{RetryAfter: max(wait-Patience, leastAfter)}
	}
	c.chargeLocked(cost)
	c.of.called = time.Now()
	return wait, nil
}

// refill gives a caller what it gained since its last refill.
func (s *Shares) refill(of *caller) {
	now := time.Now()
	passed := now.Sub(of.at)
	of.at = now
	for callType := range of.has {
		of.has[callType] = min(of.has[callType]+s.level.gives(passed)*partOf[callType], s.level.saves())
	}
}

// ChargeForward charges the caller for a call to another node on its behalf.
func (c *Call) ChargeForward() { c.charge(perForward) }

// ChargeRead charges the caller for bytes of a request that are read or decompressed.
func (c *Call) ChargeRead(bytes int) { c.charge(float64(bytes) * perRead) }

// ChargeWritten charges the caller for bytes of an answer.
func (c *Call) ChargeWritten(bytes int) { c.charge(float64(bytes) * perWritten) }

func (c *Call) charge(cost float64) {
	if c == nil {
		return
	}
	c.shares.mu.Lock()
	defer c.shares.mu.Unlock()
	c.chargeLocked(cost)
}

func (c *Call) chargeLocked(cost float64) {
	c.of.has[c.callType] -= cost
	if c.callType == Holding || c.callType == Streaming {
		c.of.has[Taking] -= cost
	}
	c.of.charged += cost
}

// sample holds what was observed since a moment.
type sample struct {
	since time.Time
	at    Clocks
	// waited is set when a call had to wait for its turn.
	waited bool
}

// Clocks are times of processors, counted from any moment.
type Clocks struct {
	// Used is what this process has used. Unused is how long the processors that it may run on were idle, summed up.
	Used, Unused time.Duration
	// HasUsed and HasUnused are false if the system does not report them.
	HasUsed, HasUnused bool
}

// ReadClocks reads the machine's clocks.
func ReadClocks() (c Clocks) {
	c.Used, c.HasUsed = used()
	c.Unused, c.HasUnused = unused()
	return c
}

// idle returns the part of some time in which processors were idle. A process that uses all the processors that it may use at once leaves
// none idle.
func (c Clocks) idle(until Clocks, passed time.Duration) float64 {
	all := passed.Seconds() * float64(runtime.GOMAXPROCS(0))
	idle := 1.0
	if c.HasUsed && until.HasUsed {
		idle = 1 - (until.Used-c.Used).Seconds()/all
	}
	if c.HasUnused && until.HasUnused {
		idle = min(idle, (until.Unused-c.Unused).Seconds()/all)
	}
	return max(idle, 0)
}

// observe sets the level once judgeEvery has passed. Only calls do that: without calls there is nothing to divide.
func (s *Shares) observe() {
	if time.Since(s.seen.since) >= judgeEvery {
		s.judge()
	}
}

// judge sets the level.
func (s *Shares) judge() {
	next := sample{since: time.Now(), at: s.read()}
	passed := next.since.Sub(s.seen.since)
	seen := seen{
		time: passed, used: next.at.Used - s.seen.at.Used, idle: s.seen.at.idle(next.at, passed), callers: s.others(), waited: s.seen.waited,
	}
	s.seen = next
	called := next.since.Sub(s.operated) < quietAfter
	if called {
		seen.callers++
	}
	var known []float64
	for name, of := range s.callers { // in any order
		s.refill(of) // at the old level
		seen.charged += of.charged
		seen.top = max(seen.top, of.charged)
		if name != anonymous {
			known = append(known, of.charged)
		}
		// A caller that has made calls in advance has called: all of its calls may be waiting for their turn now.
		ahead := !of.settled()
		seen.waited = seen.waited || ahead
		if ahead || next.since.Sub(of.called) < quietAfter {
			called = true
			if name != anonymous || ahead || of.charged >= anonymousCount {
				seen.callers++
			}
		} else if of.calls == 0 {
			delete(s.callers, name)
		}
		of.perSecond, of.charged = of.charged/passed.Seconds(), 0
	}
	seen.second = secondOf(known)
	s.level.judge(seen)
	if !called { // nothing is owed without callers
		s.level = newLevel()
		maps.DeleteFunc(s.callers, func(_ string, of *caller) bool { return of.calls == 0 })
	}
}

// secondOf returns the second largest of some numbers, 0 if there is none.
func secondOf(all []float64) (second float64) {
	top := 0.0
	for _, each := range all {
		second, top = max(second, min(top, each)), max(top, each)
	}
	return second
}

// Name returns the constant Name, as other budgets return theirs.
func (s *Shares) Name() string { return Name }

// InUse returns how many calls a second are made, and by how many callers.
func (s *Shares) InUse() (used int64, callers int) {
	v := s.View()
	return v.Used, len(v.Uses)
}

// View returns how many calls a second are made now, for how many there is processor time, and the most that each caller may make.
func (s *Shares) View() budget.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe()
	v := budget.View{Name: Name, Capacity: int64(s.level.capacity()), Minimum: int64(s.level.lowest())}
	most := int64(math.MaxInt64)
	if !math.IsInf(s.level.perSecond, 1) {
		most = int64(s.level.perSecond)
	}
	for name, of := range s.callers { // in any order
		if of.perSecond < 1 {
			continue
		}
		if name == anonymous {
			name = "strangers"
		}
		v.Used += int64(of.perSecond)
		v.Uses = append(v.Uses, budget.Use{Caller: name, Used: int64(of.perSecond), Most: most})
	}
	return v
}
