package sim

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
)

// Live is a run in real time: the agents, the records and the provider's count are the same, but times are real, and an
// Outside makes the calls. All state belongs to the goroutine of Run; other goroutines send it events.
type Live struct {
	*world
	side    Side
	seed    uint64
	outside Outside
	began   time.Time

	// reported carries events of other goroutines; over is closed when nobody receives them any more.
	reported chan func()
	over     chan struct{}
	// elsewhere are the goroutines that Run started; errand starts one of them.
	elsewhere sync.WaitGroup
	errand    func(func(context.Context) error)
}

// Outside performs the real part of a run. Many goroutines call its methods concurrently. An error ends the run; results
// after the end of the context are ignored.
type Outside interface {
	// Send sends a call directly to the provider, once.
	Send(context.Context, *Outgoing) (provider.Answer, error)
	// Call makes a call through quotad, with as many attempts as necessary; false: it was cancelled.
	Call(context.Context, *Outgoing) (bool, error)
	// KillLeader kills the cluster's leader.
	KillLeader(context.Context) error
}

// Outgoing is a call for an Outside to make.
type Outgoing struct {
	Holder string
	Agent  *fleet.Agent
	// Uses are the amounts to reserve.
	Uses []fleet.Use
	// Charged is the amount that the provider counts, Actual the real amount by use; Work is the provider's processing
	// time.
	Charged []provider.Amount
	Actual  []int64
	Work    time.Duration
	// GiveUp is the time at which the call is cancelled; the zero time: never.
	GiveUp time.Time

	live *Live
	call *call
}

// NewLive returns a run that begins now. It returns an error for agents that crash, are cut off, hold calls ahead, follow
// others, have a retry budget or use pools.
func NewLive(f *fleet.Fleet, side Side, seed uint64, outside Outside) (*Live, error) {
	for _, kind := range f.Agents {
		if kind.Hold > 0 || kind.Batch || len(kind.Crashes)+len(kind.Cuts)+len(kind.Follows) > 0 || kind.Retry != nil {
			return nil, errors.New(kind.Name + ": hold, batch, crashes, cuts, follows and retry are for virtual time only")
		}
		if slices.ContainsFunc(kind.Uses, func(u fleet.Use) bool { return len(f.Members(u.Quota)) > 0 }) {
			return nil, errors.New(kind.Name + ": pools are for virtual time only")
		}
	}
	began, now := time.Now(), *f
	now.Begins = began
	l := &Live{
		world: newWorld(&now, seed), side: side, seed: seed, outside: outside, began: began,
		reported: make(chan func()), over: make(chan struct{}),
	}
	l.transmit, l.newCaller = l.send, func(a *agent) caller { return &alone{agent: a} }
	if side == Governed {
		l.newCaller = func(a *agent) caller { return remote{agent: a, live: l} }
		for _, at := range f.Cluster.Kills {
			l.at(int64(at), func() { l.errand(outside.KillLeader) })
		}
	}
	l.populate(seed)
	return l, nil
}

// Provider returns the provider, which the run itself does not access before Result.
func (l *Live) Provider() *provider.Provider { return l.provider }

// Began is when the run began.
func (l *Live) Began() time.Time { return l.began }

func (l *Live) elapsed() int64 { return int64(time.Since(l.began)) }

// Run runs the fleet until its tasks are done or its time is over, and returns when nothing is in flight any more.
func (l *Live) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer l.elsewhere.Wait()
	defer close(l.over)
	defer cancel(nil)
	l.errand = func(do func(context.Context) error) {
		l.elsewhere.Go(func() {
			if err := do(ctx); err != nil {
				cancel(err) // after the run's end it has no effect
			}
		})
	}
	wake := time.NewTimer(0)
	defer wake.Stop()
	for last := int64(l.fleet.For); l.now < last && !l.allDone(); {
		next, ok := l.next()
		if !ok {
			next = last
		}
		wake.Reset(time.Until(l.began.Add(time.Duration(min(next, last)))))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case happened := <-l.reported:
			l.now = l.elapsed()
			happened()
		case <-wake.C:
			l.now = l.elapsed()
			if ok && next <= l.now {
				l.run()
			}
		}
	}
	return nil
}

// Result computes the result. The goroutines that use the provider must have ended.
func (l *Live) Result() *Result { return l.book.result(l.side, l.seed) }

// tell sends an event to the run, unless the run is over.
func (l *Live) tell(happened func()) {
	select {
	case l.reported <- happened:
	case <-l.over:
	}
}

// outgoing prepares a call for the Outside.
func (l *Live) outgoing(c *call) *Outgoing {
	out := &Outgoing{
		Holder: c.agent.name, Agent: c.agent.kind, Uses: c.uses, Charged: c.charged, Actual: c.actual,
		Work: time.Duration(c.agent.dice.span(c.agent.kind.Latency)), live: l, call: c,
	}
	if c.agent.kind.Patience != fleet.Forever {
		out.GiveUp = l.began.Add(time.Duration(c.asked) + c.agent.kind.Patience)
	}
	return out
}

// Sent reports that an attempt at the call has been written.
func (o *Outgoing) Sent() { o.live.tell(func() { o.live.noteSent(o.call) }) }

// Answered reports the provider's answer to an attempt.
func (o *Outgoing) Answered(said provider.Answer) {
	o.live.tell(func() {
		o.live.book.answered(o.call, said)
		if said.Refused && o.live.side == Governed {
			o.live.book.wantedAgain(o.call)
		}
	})
}

// send is transmit in real time.
func (l *Live) send(c *call, _ int64, then func(provider.Answer)) {
	out := l.outgoing(c)
	l.errand(func(ctx context.Context) error {
		said, err := l.outside.Send(ctx, out)
		if err == nil {
			l.tell(func() { then(said) })
		}
		return err
	})
}

// remote is a caller through quotad in real time.
type remote struct {
	*agent
	live *Live
}

func (r remote) call(c *call) {
	out := r.live.outgoing(c)
	r.live.errand(func(ctx context.Context) error {
		made, err := r.live.outside.Call(ctx, out)
		if err == nil {
			r.live.tell(func() { r.finished(c, made) })
		}
		return err
	})
}
