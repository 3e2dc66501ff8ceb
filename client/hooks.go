package client

import (
	"context"
	"net/http"
	"time"
)

// Hooks are callbacks for events of a client, such as for metrics and traces: see the packages client/metrics and client/tracing. Nil
// callbacks are skipped. The client calls them synchronously and concurrently, so they should return at once, and they must not call
// the client.
type Hooks struct {
	// Wait is called before a lease is requested, with the caller's context and with the holder filled in. The function that it
	// returns, unless nil, is called with the answer; the time between is the wait in the cluster's queue.
	Wait func(ctx context.Context, request ReserveRequest) func(*Lease, error)
	// Refusal is called with each refusal of the cluster.
	Refusal func(*RefusalError)
	// Retry is called when a Transport will retry a call, after the given time, that the provider refused for a limit.
	Retry func(request *http.Request, after time.Duration)
	// Cooldown is called when a report by this client closed a quota, or found it closed.
	Cooldown func(Reported)
	// Batch is called when a limiter has fetched a batch ahead, with its size in units.
	Batch func(unit []Item, units int64)
}

// WithHooks adds hooks. If given several times, all of them are called.
func WithHooks(hooks Hooks) Option {
	return func(s *settings) error {
		s.hooks = append(s.hooks, hooks)
		return nil
	}
}

type hookList []Hooks

// wait calls the Wait hooks and returns the function to call when the wait ends.
func (h hookList) wait(ctx context.Context, request ReserveRequest) func(*Lease, error) {
	var ends []func(*Lease, error)
	for i := range h {
		if h[i].Wait == nil {
			continue
		}
		if end := h[i].Wait(ctx, request); end != nil {
			ends = append(ends, end)
		}
	}
	return func(lease *Lease, err error) {
		for _, end := range ends {
			end(lease, err)
		}
	}
}

func (h hookList) refusal(refusal *RefusalError) {
	for i := range h {
		if h[i].Refusal != nil {
			h[i].Refusal(refusal)
		}
	}
}

func (h hookList) retry(request *http.Request, after time.Duration) {
	for i := range h {
		if h[i].Retry != nil {
			h[i].Retry(request, after)
		}
	}
}

func (h hookList) cooldown(reported []Reported) {
	for i := range h {
		for _, quota := range reported {
			if h[i].Cooldown != nil && quota.CooldownLeft > 0 {
				h[i].Cooldown(quota)
			}
		}
	}
}

func (h hookList) batch(unit []Item, units int64) {
	for i := range h {
		if h[i].Batch != nil {
			h[i].Batch(unit, units)
		}
	}
}
