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

// Live is a run in real time: the same agents, the same books, the same provider's count, but moments are real, and calls
// are made by somebody else. All of it belongs to the goroutine of Run; what happens elsewhere is told to it.
type Live struct {
	*world
	side    Side
	seed    uint64
	outside Outside
	began   time.Time

	// told are what happened elsewhere; over is closed when nobody listens any more.
	told chan func()
	over chan struct{}
	// elsewhere are the goroutines that Run started; errand starts one of them.
	elsewhere sync.WaitGroup
	errand    func(func(context.Context) error)
}

// Outside makes what is real about a run. Its methods are called by many goroutines at once. An error ends the run; what
// they return once the context has ended counts for nothing.
type Outside interface {
	// Send sends a call straight to the provider, once.
	Send(context.Context, *Outgoing) (provider.Answer, error)
	// Call makes a call through quotad, with as many attempts as it takes; false: it was given up.
	Call(context.Context, *Outgoing) (bool, error)
	// KillLeader kills the cluster's leader.
	KillLeader(context.Context) error
}

// Outgoing is a call for somebody else to make.
type Outgoing struct {
	Holder string
	Agent  *fleet.Agent
	// Charged is what the provider counts for it, Actual what it really uses, by use; Work is how long the provider works.
	Charged []provider.Amount
	Actual  []int64
	Work    time.Duration
	// GiveUp is the moment at which it is given up; the zero time: never.
	GiveUp time.Time

	live *Live
	call *call
}

// NewLive returns a run that begins now. Agents that crash, are cut off, hold calls ahead, hand work on, keep to a retry budget or use
// pools are not its kind.
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
		told: make(chan func()), over: make(chan struct{}),
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

// Provider returns the provider, which the run itself does not touch before Result.
func (l *Live) Provider() *provider.Provider { return l.provider }

// Began is the moment at which the run began.
func (l *Live) Began() time.Time { return l.began }

func (l *Live) elapsed() int64 { return int64(time.Since(l.began)) }

// Run runs the fleet until its tasks are done or its time is up, and returns when nothing is under way any more.
func (l *Live) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer l.elsewhere.Wait()
	defer close(l.over)
	defer cancel(nil)
	l.errand = func(do func(context.Context) error) {
		l.elsewhere.Go(func() {
			if err := do(ctx); err != nil {
				cancel(err) // after the run's end it says nothing
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
		case happened := <-l.told:
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

// Result adds the run up. Whoever lets the provider count must have ended.
func (l *Live) Result() *Result { return l.book.result(l.side, l.seed) }

// tell has the run learn of something, unless it is over.
func (l *Live) tell(happened func()) {
	select {
	case l.told <- happened:
	case <-l.over:
	}
}

// outgoing hands a call out.
func (l *Live) outgoing(c *call) *Outgoing {
	out := &Outgoing{
		Holder: c.agent.name, Agent: c.agent.kind, Charged: c.charged, Actual: c.actual,
		Work: time.Duration(c.agent.dice.span(c.agent.kind.Latency)), live: l, call: c,
	}
	if c.agent.kind.Patience != fleet.Forever {
		out.GiveUp = l.began.Add(time.Duration(c.asked) + c.agent.kind.Patience)
	}
	return out
}

// Sent tells that an attempt at the call has set out.
func (o *Outgoing) Sent() { o.live.tell(func() { o.live.noteSent(o.call) }) }

// Answered tells what the provider answered to an attempt.
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
