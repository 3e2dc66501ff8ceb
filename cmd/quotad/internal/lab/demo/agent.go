package demo

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// agentConfig is the configuration of an agent process.
type agentConfig struct {
	role     string
	mode     mode
	provider string   // the provider's URL
	servers  []string // the cluster's nodes, for the mode governed
	// speaks is the program that makes its calls, through the gateway at this URL; empty: Go, without a gateway.
	speaks  language
	gateway string
	node    string // the folder of Node's packages, if it speaks node
	seed    uint64
}

// agent is a running agent.
type agent struct {
	role   role
	events *eventWriter
	caller caller
	dice   *dice
	calls  atomic.Uint64
}

// caller makes one call, with as many attempts as necessary, and returns the status of the last answer.
type caller interface {
	do(ctx context.Context, w wish) (status int, err error)
	close() error
}

// runAgent is the agent process: it works until ctx ends, and writes events to out.
func runAgent(ctx context.Context, cfg agentConfig, out io.Writer) error {
	r, known := roleOf(cfg.role)
	if !known {
		return fmt.Errorf("there is no agent %q", cfg.role)
	}
	a := &agent{role: r, events: &eventWriter{out: out}, dice: newDice(cfg.seed, cfg.role)}
	provider := newProvider(cfg.provider, cfg.mode.key(), r.Name)
	switch {
	case cfg.mode == own:
		a.caller = &ownCaller{provider: provider, dice: a.dice}
	case cfg.mode == governed && cfg.speaks != "":
		c, err := newForeignCaller(provider, cfg.speaks, cfg.gateway, cfg.node)
		if err != nil {
			return err
		}
		a.caller = c
	case cfg.mode == governed:
		c, err := newGovernedCaller(provider, r, cfg.servers)
		if err != nil {
			return err
		}
		a.caller = c
	default:
		return fmt.Errorf("there is no mode %q", cfg.mode)
	}
	a.events.write(event{Kind: agentReady})
	a.work(ctx)
	return a.caller.close()
}

// work does tasks and thinks until ctx ends.
func (a *agent) work(ctx context.Context) {
	var lines sync.WaitGroup
	lines.Go(func() { a.every(ctx, a.role.Every, a.task) })
	if a.role.ThinkEvery > 0 {
		lines.Go(func() {
			a.every(ctx, a.role.ThinkEvery, func(ctx context.Context) bool { return a.call(ctx, a.completion()) })
		})
	}
	lines.Wait()
}

// every does some work at each tick, never twice at once, until ctx ends.
func (a *agent) every(ctx context.Context, pace time.Duration, work func(context.Context) bool) {
	due := time.NewTicker(pace)
	defer due.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		if work(ctx) {
			a.events.write(event{Kind: taskEnded})
		}
		// The ticker keeps one of the ticks that passed meanwhile: the next work begins at once.
		for missed := int(time.Since(began)/pace) - 1; missed > 0; missed-- {
			a.events.write(event{Kind: taskMissed})
		}
		select {
		case <-due.C:
		case <-ctx.Done():
		}
	}
}

// task does one task and reports whether it succeeded.
func (a *agent) task(ctx context.Context) bool {
	ok := a.reads(ctx)
	for range a.role.Writes {
		ok = a.call(ctx, wish{api: github, method: "POST", path: "/repos/quotad/demo/issues/7/comments", body: `{"body":"reviewed"}`}) && ok
	}
	return ok
}

// reads makes the task's reads, Parallel at a time.
func (a *agent) reads(ctx context.Context) bool {
	var workers sync.WaitGroup
	var left, wrong atomic.Int64
	left.Store(int64(a.role.Reads))
	for range a.role.Parallel {
		workers.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				if !a.call(ctx, wish{api: github, method: "GET", path: "/repos/quotad/demo/pulls/7/files"}) {
					wrong.Add(1)
				}
			}
		})
	}
	workers.Wait()
	return wrong.Load() == 0 && ctx.Err() == nil
}

// completion asks for an answer of 150 to 750 tokens.
func (a *agent) completion() wish {
	most := 150 + a.dice.between(600)
	return wish{
		api: openai, method: "POST", path: "/v1/chat/completions",
		body: fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":"Review this change, please."}]}`, model, most),
	}
}

// call makes one call, writes its outcome as an event, and reports whether it succeeded.
func (a *agent) call(ctx context.Context, w wish) bool {
	w.id = fmt.Sprintf("%s-%d", a.role.Name, a.calls.Add(1))
	began := time.Now()
	ctx, sent := withSending(ctx)
	status, err := a.caller.do(ctx, w)
	e := event{Kind: callEnded, API: w.api}
	var last time.Time
	last, e.Tries = sent.last()
	e.Outcome, e.Detail = judge(ctx, status, err)
	e.Wait = time.Since(began)
	if e.Outcome == done {
		e.Wait = last.Sub(began)
	}
	a.events.write(e)
	return e.Outcome == done
}

// dice are random numbers that are the same in each run with the same seed.
type dice struct {
	mu     sync.Mutex
	random *rand.Rand
}

func newDice(seed uint64, name string) *dice {
	own := fnv.New64a()
	_, _ = own.Write([]byte(name)) // a hash never fails
	return &dice{random: rand.New(rand.NewPCG(seed, own.Sum64()))}
}

// between returns a number from 0 to n.
func (d *dice) between(n int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.Int64N(n + 1)
}
