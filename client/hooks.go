package client

import (
	"context"
	"net/http"
	"time"
)

// Hooks are called when something happens in a client, such as for metrics and traces: see the packages client/metrics and
// client/tracing. Those that are nil are left out. They are called where it happens, several at a time, and should return at once;
// they must not call the client.
type Hooks struct {
	// Wait is called when a lease is asked for, with the caller's context and the holder filled in. What it returns, unless nil, is called
	// when there is an answer: what lies between is the wait in the cluster's queue.
	Wait func(ctx context.Context, request ReserveRequest) func(*Lease, error)
	// Refusal is called with each no of the cluster.
	Refusal func(*RefusalError)
	// Retry is called when a Transport will send a call again that the provider refused for a limit, after so long.
	Retry func(request *http.Request, after time.Duration)
	// Cooldown is called when a report that this client made found a quota closed, or closed it.
	Cooldown func(Reported)
	// Batch is called when a limiter has fetched a batch of so many units ahead.
	Batch func(unit []Item, units int64)
}

// WithHooks adds hooks. Given several times, all of them are called.
func WithHooks(hooks Hooks) Option {
	return func(s *settings) error {
		s.hooks = append(s.hooks, hooks)
		return nil
	}
}

type hookList []Hooks

// wait calls the hooks of a wait that begins, and returns what is to be called when it has ended.
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
