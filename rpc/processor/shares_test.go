package processor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pass waits for virtual time.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // virtual time

// machine has processors that each call occupies for a time, and that have nothing else to do.
type machine struct {
	began      time.Time
	processors chan struct{}

	mu   sync.Mutex
	used time.Duration
}

const callTakes = time.Millisecond

// serve occupies one of the processors for the time of a call.
func (m *machine) serve() {
	m.processors <- struct{}{}
	pass(callTakes)
	<-m.processors
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += callTakes
}

func (m *machine) read() Clocks {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := time.Since(m.began) * time.Duration(cap(m.processors))
	return Clocks{Used: m.used, Unused: max(all-m.used, 0), HasUsed: true, HasUnused: true}
}

// closedLoop makes atOnce calls at once until ctx ends, each again as soon as it was served or refused. It counts them.
type closedLoop struct {
	name            string
	callType        CallType
	atOnce          int
	think           time.Duration
	served, refused int
	longest         time.Duration
}

func (c *closedLoop) run(ctx context.Context, s *Shares, m *machine, wg *sync.WaitGroup) {
	var mu sync.Mutex
	from := time.Now().Add(levelled)
	for range c.atOnce {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				call := s.Enter(c.name, c.callType)
				err := call.Wait(ctx)
				mu.Lock()
				_, busy := errors.AsType[*BusyError](err)
				switch {
				case began.Before(from):
				case busy:
					c.refused++
				case err == nil:
					c.served++
					c.longest = max(c.longest, time.Since(began))
				}
				mu.Unlock()
				if err == nil {
					m.serve()
				}
				call.Leave()
				pass(c.think)
			}
		})
	}
}

// levelled is how long the level takes to settle.
const levelled = 10 * time.Second

// calls runs callers on a machine for some seconds after the level has settled.
func calls(t *testing.T, seconds, others int, callers ...*closedLoop) *Shares {
	t.Helper()
	m := &machine{began: time.Now(), processors: make(chan struct{}, runtime.GOMAXPROCS(0))}
	s := New(t.Context(), func() int { return others }, m.read)
	ctx, cancel := context.WithTimeout(t.Context(), levelled+time.Duration(seconds)*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range callers {
		c.run(ctx, s, m, &wg)
	}
	wg.Wait()
	return s
}

// few makes callers that call now and then.
func few(names ...string) (all []*closedLoop) {
	for _, name := range names {
		all = append(all, &closedLoop{name: name, atOnce: 4, think: 20 * time.Millisecond})
	}
	return all
}

// alone returns how many calls of one of few are served if nobody else calls.
func alone(t *testing.T, seconds int) int {
	t.Helper()
	c := few("token:a")
	calls(t, seconds, 0, c...)
	return c[0].served
}

// TestShares_FewCallsNeverWait: a caller that could keep the machine busy alone gets what the others leave, and they never wait for it.
func TestShares_FewCallsNeverWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hostile, others := &closedLoop{name: "token:hostile", atOnce: 500}, few("token:a", "token:b")
		s := calls(t, 20, 0, append(others, hostile)...)
		for _, c := range others {
			if usual := alone(t, 20); c.longest > 0 || c.served < usual*6/10 {
				t.Errorf("%s: %d served, %d where it is alone, and one waited for %v", c.name, c.served, usual, c.longest)
			}
		}
		if part := float64(hostile.served) * callTakes.Seconds() / 20 / float64(runtime.GOMAXPROCS(0)); hostile.longest == 0 || part < 0.3 {
			t.Errorf("who calls most had %.2f of the processors, and none of its calls waited longer than %v", part, hostile.longest)
		}
		pass(2 * quietAfter)
		if v := s.View(); v.Used != 0 || len(s.callers) != 0 || !math.IsInf(s.level.perSecond, 1) {
			t.Errorf("%d callers are left, with %v calls a second each, and %+v", len(s.callers), s.level.perSecond, v)
		}
	})
}

// TestShares_AreAlikeWhereAllWantMore: where nobody gets enough, many calls at once are worth no more than a few.
func TestShares_AreAlikeWhereAllWantMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		callers := []*closedLoop{{name: "token:hostile", atOnce: 500}}
		for i := range 4 {
			callers = append(callers, &closedLoop{name: fmt.Sprint("token:", i), atOnce: runtime.GOMAXPROCS(0)})
		}
		calls(t, 20, 0, callers...)
		all := 0
		for _, c := range callers {
			all += c.served
		}
		if part := float64(callers[0].served) / float64(all); part > 0.3 {
			t.Errorf("one of five has %.2f", part)
		}
		if had := float64(all) * callTakes.Seconds() / 20 / float64(runtime.GOMAXPROCS(0)); had < 0.9 {
			t.Errorf("%.2f of the processors' time was used", had)
		}
	})
}

// TestShares_LeaveOneAlone: a caller that is alone never waits, unless others have work here.
func TestShares_LeaveOneAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alone := &closedLoop{name: "token:a", atOnce: 50}
		calls(t, 10, 0, alone)
		follower := &closedLoop{name: "token:a", atOnce: 50}
		calls(t, 10, 1, follower)
		if alone.longest > 0 || follower.longest == 0 || follower.served < alone.served*7/10 {
			t.Errorf("alone: %d served, and one waited for %v; next to a leader's log: %d and %v", alone.served, alone.longest, follower.served,
				follower.longest)
		}
	})
}

// busyWith makes shares of a follower whose processors are always busy with the work of others.
func busyWith(t *testing.T) *Shares {
	began := time.Now()
	return New(t.Context(), func() int { return 1 }, func() Clocks {
		return Clocks{Used: time.Since(began) * time.Duration(runtime.GOMAXPROCS(0)), HasUsed: true, HasUnused: true}
	})
}

// TestShares_PausesGainNothing: a node is busy with the work of others. A caller whose calls all wait for their turn, and anonymous callers
// that call seldom for a moment, have no more than the level gives them.
func TestShares_PausesGainNothing(t *testing.T) {
	const length = 30 * time.Second
	for _, tc := range []struct {
		name     string
		caller   string
		callType CallType
		atOnce   int
		bytes    int
	}{
		{"streams that all wait", "token:hostile", Streaming, 100, 64 << 10},
		{"calls that all wait", "token:hostile", Taking, 100, 1 << 20},
		{"anonymous callers who come one by one", anonymous, Unknown, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := busyWith(t)
				ctx, cancel := context.WithTimeout(t.Context(), levelled+length)
				defer cancel()
				from := time.Now().Add(levelled)
				var mu sync.Mutex
				var wg sync.WaitGroup
				charged := 0.0
				for range tc.atOnce {
					wg.Go(func() {
						for ctx.Err() == nil {
							call := s.Enter(tc.caller, tc.callType)
							if call.Wait(ctx) == nil {
								call.ChargeWritten(tc.bytes)
								mu.Lock()
								if time.Now().After(from) {
									charged += 1 + float64(tc.bytes)*perWritten
								}
								mu.Unlock()
							}
							call.Leave()
							pass(callTakes)
						}
					})
				}
				wg.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				// Each waiting call may be charged once in advance.
				most := 2*s.level.lowest()*partOf[tc.callType]*length.Seconds() + float64(tc.atOnce)*(1+float64(tc.bytes)*perWritten)
				if charged > most {
					t.Errorf("%.0f calls' worth was received in %v, want %.0f at most", charged, length, most)
				}
			})
		})
	}
}

// TestShares_AnonymousCallersSetNoMeasure: the calls of anonymous callers do not raise what a caller may make.
func TestShares_AnonymousCallersSetNoMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := busyWith(t)
		for range 100 {
			for name, callType := range map[string]CallType{"token:hostile": Taking, anonymous: Unknown} { // in any order
				call := s.Enter(name, callType)
				_, _ = call.take()
				call.charge(1000)
				call.Leave()
			}
			pass(judgeEvery)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if lowest := least * s.level.capacity(); s.level.perSecond > 1.01*lowest {
			t.Errorf("%.0f calls a second, want %.0f", s.level.perSecond, lowest)
		}
	})
}

// TestShares_FewHealthChecksDelayNobody: a few of them make no caller wait; many make themselves wait.
func TestShares_FewHealthChecksDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, checks := &closedLoop{name: "token:a", atOnce: 50}, &closedLoop{name: anonymous, callType: Unknown, atOnce: 1, think: time.Second}
		calls(t, 5, 0, busy, checks)
		if busy.longest > 0 || checks.longest > 0 {
			t.Errorf("a caller waited for %v, a check for %v", busy.longest, checks.longest)
		}
		known, flood := few("token:a"), &closedLoop{name: anonymous, callType: Unknown, atOnce: 500}
		calls(t, 20, 0, append(known, flood)...)
		if usual := alone(t, 20); known[0].longest > 0 || known[0].served < usual*6/10 || flood.longest == 0 {
			t.Errorf("a caller waited for %v and had %d of %d served; the flood waited for %v", known[0].longest, known[0].served, usual,
				flood.longest)
		}
	})
}

// TestShares_FullCallerCanStillRelease: a caller that has used up its part with calls that take more can still release.
func TestShares_FullCallerCanStillRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taking := &closedLoop{name: "token:a", atOnce: 500}
		giving := &closedLoop{name: "token:a", callType: Holding, atOnce: 1, think: 100 * time.Millisecond}
		calls(t, 10, 0, append(few("token:b"), taking, giving)...)
		if taking.longest == 0 || giving.refused > 0 || giving.longest > 0 || giving.served < 70 {
			t.Errorf("one waited for %v; of %d that release %d were refused, and one waited for %v", taking.longest, giving.served, giving.refused,
				giving.longest)
		}
	})
}

// TestShares_CallTypesAreWithinAPart: releases and events count against a caller's part for taking. Taking does not reduce its part for
// releasing.
func TestShares_CallTypesAreWithinAPart(t *testing.T) {
	for _, tc := range []struct {
		first, then CallType
		waits       bool
	}{
		{Holding, Taking, true}, {Streaming, Taking, true}, {Taking, Holding, false}, {Taking, Streaming, false}, {Streaming, Holding, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := busyWith(t)
			s.mu.Lock()
			s.level.perSecond = 100
			s.mu.Unlock()
			s.Enter("token:a", tc.first).charge(leastSaved + 100)
			wait, err := s.Enter("token:a", tc.then).take()
			if err != nil || (wait >= time.Second/2) != tc.waits {
				t.Errorf("type %d after type %d: a wait of %v, %v", tc.then, tc.first, wait, err)
			}
		})
	}
}

// TestShares_ChargeBytes: a caller with large calls makes fewer of them. A large call in advance is paid off, also by a caller that is
// silent afterwards.
func TestShares_ChargeBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), func() int { return 0 }, func() Clocks { return Clocks{HasUsed: true, HasUnused: true} })
		for range 2 {
			call := s.Enter("token:a", Taking)
			call.ChargeRead(1 << 20)
			call.ChargeWritten(1 << 20)
			call.Leave()
		}
		s.mu.Lock()
		s.level.perSecond = 100
		s.mu.Unlock()
		err := s.Enter("token:a", Taking).Wait(t.Context())
		busy, ok := errors.AsType[*BusyError](err)
		if !ok {
			t.Fatal(err)
		}
		want := time.Duration(2*256+2*64-leastSaved) * time.Second / 100
		if got := busy.RetryAfter + Patience; got < want*9/10 || got > want*11/10 {
			t.Errorf("again in %v, want %v", got, want)
		}
	})
}

// TestCall_NilIsFree: an operator's call waits for nothing and is charged to nobody.
func TestCall_NilIsFree(t *testing.T) {
	var call *Call
	call.ChargeRead(1 << 30)
	call.ChargeWritten(1 << 30)
	if err := call.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	call.Leave()
}

// TestShares_WaitEndsWithItsContext: a caller that disconnects does not wait.
func TestShares_WaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), func() int { return 0 }, func() Clocks { return Clocks{} })
		s.mu.Lock()
		s.level.perSecond = 1
		s.mu.Unlock()
		call := s.Enter("token:a", Taking)
		call.ChargeRead(128 << 10)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := call.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		call.Leave()
	})
}

// TestReadClocks_NeverRunBack: the machine's clocks advance.
func TestReadClocks_NeverRunBack(t *testing.T) {
	before := ReadClocks()
	for began := time.Now(); time.Since(began) < 30*time.Millisecond; { // it takes processor time
	}
	after := ReadClocks()
	if runtime.GOOS == "linux" && (!before.HasUsed || !before.HasUnused) {
		t.Errorf("the system does not tell: %+v", before)
	}
	if after.HasUsed && after.Used <= before.Used || after.Unused < before.Unused {
		t.Errorf("%+v, then %+v", before, after)
	}
	if idle := before.idle(after, time.Second); idle < 0 || idle > 1 {
		t.Errorf("%v idle", idle)
	}
}

// TestShares_ACallTypeWaitsByItsPart: the amount that a call lacks arrives at its type's part of the level, which decides how long it
// waits.
func TestShares_ACallTypeWaitsByItsPart(t *testing.T) {
	for callType := range callTypes {
		synctest.Test(t, func(t *testing.T) {
			s := New(t.Context(), func() int { return 0 }, func() Clocks { return Clocks{} })
			s.level.perSecond = 100
			call := s.Enter("token:a", callType)
			defer call.Leave()
			call.of.has[callType] = -5
			wait, err := call.take()
			if want := time.Duration(5 / (100 * partOf[callType]) * float64(time.Second)); err != nil || (wait-want).Abs() > time.Microsecond {
				t.Errorf("type %d: waits for %v, want %v: %v", callType, wait, want, err)
			}
		})
	}
}
