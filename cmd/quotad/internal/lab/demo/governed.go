package demo

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/quotad/quotad/client"
)

// governedCaller calls through quotad.
type governedCaller struct {
	provider *provider
	client   *client.Client
	github   *http.Client
	openai   *http.Client
	// reads limits reads by a local batch, for agents that make many in a row; nil: each read asks the cluster.
	reads *client.Limiter
}

func newGovernedCaller(p *provider, r role, servers []string) (*governedCaller, error) {
	c, err := client.New(servers, client.WithHolder(r.Name))
	if err != nil {
		return nil, err
	}
	// No call waits for longer than an hour of the provider, because the next hour has begun by then.
	wait := client.QueueWait(hour)
	// The demo's providers run on this machine.
	here := client.Hosts("*")
	g := &governedCaller{
		provider: p,
		client:   c,
		github:   &http.Client{Transport: client.NewTransport(c, p, client.GitHub(here), client.Match(matchGitHub), wait)},
		openai:   &http.Client{Transport: client.NewTransport(c, p, client.OpenAI(here), wait)},
	}
	if r.Paced {
		g.reads = c.Limiter("github/core")
	}
	return g, nil
}

// matchGitHub makes a request that creates content also draw on the content limit. It omits GitHub's limits on points and
// on concurrent requests: nine agents stay far below them.
func matchGitHub(r *http.Request) client.Call {
	items := []client.Item{{Quota: "github/core", Amount: 1}}
	if r.Method == http.MethodPost {
		items = append(items, client.Item{Quota: "github/content", Amount: 1})
	}
	return client.Call{Items: items}
}

// retryAway is the pause before an agent tries again when the cluster did not answer.
const retryAway = 200 * time.Millisecond

// do makes the call when the cluster allows it. After a refusal the agent tries again when the cluster says so, as it would
// after the provider's refusal; but the provider never sees the refused call.
func (g *governedCaller) do(ctx context.Context, w wish) (int, error) {
	for {
		status, err := g.once(ctx, w)
		delay := retryAway
		var refusal *client.RefusalError
		var unknown *client.UnknownOutcomeError
		switch {
		case errors.As(err, &refusal) && refusal.RetryAfter >= 0:
			delay = max(refusal.RetryAfter, 20*time.Millisecond)
		case errors.Is(err, client.ErrClusterAway), errors.As(err, &unknown):
		default:
			return status, err
		}
		if !pause(ctx, delay) {
			return status, err
		}
	}
}

func (g *governedCaller) once(ctx context.Context, w wish) (int, error) {
	through := g.github
	switch {
	case w.api == openai:
		through = g.openai
	case g.reads != nil && w.method == http.MethodGet:
		if err := g.reads.Wait(ctx); err != nil {
			return 0, err
		}
		through = &http.Client{Transport: g.provider}
	}
	status, _, err := g.provider.send(ctx, through, w)
	return status, err
}

func (g *governedCaller) close() error {
	if g.reads != nil {
		g.reads.Close()
	}
	g.provider.base.CloseIdleConnections()
	return g.client.Close()
}
