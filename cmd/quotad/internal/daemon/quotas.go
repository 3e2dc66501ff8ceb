package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// quotasRetry is how often to check for a leader until the first quotas are applied.
const quotasRetry = 100 * time.Millisecond

// settleIn applies the configured quotas and then calls Ready.
func (p *process) settleIn(ctx context.Context, apiAddress string) {
	err := p.applyQuotasOnce(ctx)
	if err != nil {
		p.logger.Error("cannot apply the quotas file", "error", err)
	}
	if p.options.Ready != nil && ctx.Err() == nil {
		p.options.Ready(apiAddress, err)
	}
}

// applyQuotasOnce applies the configured quotas if the cluster has none. Only the leader does so; a follower leaves it to
// the leader's own file.
func (p *process) applyQuotasOnce(ctx context.Context) error {
	if p.options.Quotas == nil {
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
		has, err := p.countQuotas(ctx)
		if err == nil && has == 0 {
			err = p.applyQuotas(ctx)
		}
		if _, ok := errors.AsType[*raftnode.NotAcceptedError](err); !ok {
			return err
		}
	}
}

func (p *process) countQuotas(ctx context.Context) (count int64, err error) {
	err = p.node.Read(ctx, raftnode.Linearizable, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) {
		count = state.Counts().Quotas
	})
	return count, err
}

// applyQuotas sends the quotas through the API with its checks, as the operator of this process: without a token.
func (p *process) applyQuotas(ctx context.Context) error {
	trusted, err := rpc.New(rpc.Config{Node: p.node, Logger: p.logger.Named("quotas"), Version: p.options.Version})
	if err != nil {
		return err
	}
	client := quotav1connect.NewAdminServiceClient(&http.Client{Transport: inProcess{trusted.Handler()}}, "http://in-process")
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
