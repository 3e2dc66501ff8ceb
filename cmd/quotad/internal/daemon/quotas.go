package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// quotasRetry is how often to check for a leader until the first quotas are applied.
const quotasRetry = 100 * time.Millisecond

// settleIn prepares an empty cluster and then calls Ready.
func (p *process) settleIn(ctx context.Context, apiAddress string) {
	err := p.prepareOnce(ctx)
	if err != nil {
		p.logger.Error("cannot apply the quotas file or the first limits", "error", err)
	}
	if p.options.Ready != nil && ctx.Err() == nil {
		p.options.Ready(apiAddress, err)
	}
}

// prepareOnce applies the configured quotas, and limits that fit this node's memory, if the cluster has no quotas. Only the leader does
// so; a follower leaves it to the leader's own settings.
func (p *process) prepareOnce(ctx context.Context) error {
	limits := p.firstLimits()
	if p.options.Quotas == nil && limits == nil {
		return nil
	}
	ticker := time.NewTicker(quotasRetry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		id, _, self := p.node.Leader()
		if id != "" && id != p.node.ID() {
			return nil
		}
		if !self {
			continue
		}
		err := p.prepare(ctx, limits)
		if _, ok := errors.AsType[*raftnode.NotAcceptedError](err); !ok {
			return err
		}
	}
}

// firstLimits returns the limits of an empty cluster that fit this node's memory; nil: the default ones do.
func (p *process) firstLimits() *quotav1.Limits {
	plan := rpc.PlanMemory(p.memory)
	if plan.State >= accounts.DefaultMemory {
		return nil
	}
	l := accounts.LimitsFor(plan.State)
	return &quotav1.Limits{
		MaxSessions: &l.Sessions, MaxKeys: &l.Keys, MaxResultBytes: &l.ResultBytes, MaxWaiters: &l.Waiters, MaxTasks: &l.Tasks,
		MaxLeases: &l.Leases, MaxHolderBytes: &l.HolderBytes, MaxOperationBytes: &l.OperationBytes,
	}
}

// prepare applies limits and quotas once.
func (p *process) prepare(ctx context.Context, limits *quotav1.Limits) error {
	var empty, changed bool
	err := p.node.Read(ctx, raftnode.Linearizable, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) {
		byDefault := accounts.DefaultLimits()
		empty, changed = state.Counts().Quotas == 0, state.FullMemory() != byDefault.Memory()
	})
	if err != nil || !empty {
		return err
	}
	// The calls go through the API with its checks, as those of this process's operator: without a token.
	trusted, err := rpc.New(rpc.Config{Node: p.node, Logger: p.logger.Named("quotas"), Version: p.options.Version})
	if err != nil {
		return err
	}
	client := quotav1connect.NewAdminServiceClient(&http.Client{Transport: inProcess{trusted.Handler()}}, "http://in-process")
	if limits != nil && !changed {
		if _, err := client.SetLimits(ctx, &quotav1.SetLimitsRequest{Limits: limits}); err != nil {
			return err
		}
		p.logger.Info("lowered the budgets of an empty cluster to fit this node's memory; quotad limits shows and changes them")
	}
	if p.options.Quotas == nil {
		return nil
	}
	answer, err := client.ApplyQuotas(ctx, p.options.Quotas.Request())
	if err != nil {
		return err
	}
	p.logger.Info("applied the quotas file to a cluster without quotas", "created", answer.Created)
	return nil
}

// inProcess passes a call to a handler without a network.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(request *http.Request) (*http.Response, error) {
	answer := &recorded{header: http.Header{}, status: http.StatusOK}
	if request.Body == nil {
		request.Body = http.NoBody
	}
	t.handler.ServeHTTP(answer, request)
	return &http.Response{
		StatusCode: answer.status, Header: answer.header, Body: io.NopCloser(&answer.body), Request: request,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(answer.body.Len()),
	}, nil
}

// recorded keeps a response in memory.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorded) Header() http.Header            { return r.header }
func (r *recorded) WriteHeader(status int)         { r.status = status }
func (r *recorded) Write(data []byte) (int, error) { return r.body.Write(data) }
