package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
	"github.com/quotad/quotad/rpc/wire"
)

// Quotad is three nodes with the given storage engine of the log, called through the Go client.
func Quotad(binary, logStore string) System {
	name := "quotad"
	if logStore != "boltdb" {
		name += ", " + logStore
	}
	return System{
		Name:    name,
		Version: func(ctx context.Context) (string, error) { return VersionOf(ctx, binary, "version") },
		Start: func(ctx context.Context, dir string) (Running, error) {
			return startQuotad(ctx, dir, binary, logStore)
		},
	}
}

// quotad is a cluster that serves.
type quotad struct {
	Processes
	addresses []string
	client    *client.Client
	batch     quotav1connect.QuotaServiceClient
	// limiter belongs to client; each of agents belongs to a client of its own.
	limiter *client.Limiter
	agents  []*client.Limiter
	clients []*client.Client
}

func startQuotad(ctx context.Context, dir, binary, logStore string) (_ *quotad, err error) {
	free, err := loopback.Free(6)
	if err != nil {
		return nil, err
	}
	q := &quotad{addresses: free[:3]}
	defer func() {
		if err != nil {
			q.Stop()
		}
	}()
	peers := make([]string, 3)
	for i := range peers {
		peers[i] = fmt.Sprintf("n%d=%s/%s", i+1, free[3+i], free[i])
	}
	for i := range peers {
		name := fmt.Sprintf("n%d", i+1)
		err := q.Start(dir, name, binary, "serve", "--node-id", name, "--data-dir", filepath.Join(dir, name), "--log-store", logStore,
			"--api-listen", free[i], "--raft-listen", free[3+i], "--peers", strings.Join(peers, ","))
		if err != nil {
			return nil, err
		}
	}
	if err := q.applyQuotas(ctx); err != nil {
		return nil, err
	}
	if q.client, err = q.connect("bench"); err != nil {
		return nil, err
	}
	q.limiter = q.client.Limiter(QuotaName(-1), client.Holders(1))
	for i := range agentCount {
		own, err := q.connect(fmt.Sprintf("agent-%d", i))
		if err != nil {
			return nil, err
		}
		q.agents = append(q.agents, own.Limiter(QuotaName(i), client.Holders(1)))
	}
	return q, q.findLeader(ctx)
}

// agentCount is the number of agents with a client of their own.
const agentCount = 64

func (q *quotad) connect(holder string) (*client.Client, error) {
	c, err := client.New(q.addresses, client.WithHolder(holder))
	if err == nil {
		q.clients = append(q.clients, c)
	}
	return c, err
}

// Stop implements Running.
func (q *quotad) Stop() {
	for _, c := range q.clients {
		_ = c.Close()
	}
	q.Processes.Stop()
}

// mostLeases and operationBytes leave room for the leases and operations of a minute at full speed. The defaults suit a
// fleet, not a load that releases and settles nothing.
const mostLeases, operationBytes = 4_000_000, 1 << 31

// applyQuotas waits for the cluster and applies quotas whose limits are never reached.
func (q *quotad) applyQuotas(ctx context.Context) error {
	request := &quotav1.ApplyQuotasRequest{}
	for i := -1; i < QuotaCount; i++ {
		request.Quotas = append(request.Quotas, &quotav1.Quota{Name: QuotaName(i), Rule: &quotav1.Quota_Rate{
			Rate: &quotav1.Rate{Limit: 1 << 50, Per: durationpb.New(time.Minute)},
		}})
	}
	limits := &quotav1.SetLimitsRequest{Limits: &quotav1.Limits{
		MaxLeases: new(int64(mostLeases)), MaxOperationBytes: new(int64(operationBytes)),
	}}
	admin := quotav1connect.NewAdminServiceClient(http.DefaultClient, "http://"+q.addresses[0])
	return Retry(ctx, func(ctx context.Context) error {
		_, err := admin.ApplyQuotas(ctx, request)
		if err == nil {
			_, err = admin.SetLimits(ctx, limits)
		}
		if connect.CodeOf(err) == connect.CodeInvalidArgument {
			return fmt.Errorf("the benchmark's quotas or limits were refused: %w", err)
		}
		return err
	})
}

// findLeader makes the client for whole batches, which calls the leader directly, as package client does.
func (q *quotad) findLeader(ctx context.Context) error {
	transport := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	admin := quotav1connect.NewAdminServiceClient(transport, "http://"+q.addresses[0])
	return Retry(ctx, func(ctx context.Context) error {
		status, err := admin.GetStatus(ctx, &quotav1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if status.LeaderAddress == "" {
			return errors.New("no leader is known")
		}
		q.batch = quotav1connect.NewQuotaServiceClient(transport, "http://"+status.LeaderAddress, connect.WithCodec(wire.Codec{}))
		return q.reserveMany(ctx, 1)
	})
}

// Works implements Running. A decision is Reserve and Consume in one commit, with a lease of one second, so that expiry
// takes part. With leased batches a decision is a take from a batch that was consumed durably before.
func (q *quotad) Works() []Work {
	works := Standard(func(ctx context.Context, _, quota int) error {
		_, err := q.client.Reserve(ctx, client.ReserveRequest{
			Items: []client.Item{{Quota: QuotaName(quota), Amount: 1}}, Consume: true, TTL: time.Second,
		})
		return err
	})
	return append(works, Work{Name: Batches, Callers: 4, Batch: batchLength, Do: func(ctx context.Context, _, _ int) error {
		return q.reserveMany(ctx, batchLength)
	}}, Work{Name: Leased256, Callers: 256, Do: func(ctx context.Context, _, _ int) error {
		return q.limiter.Wait(ctx)
	}}, Work{Name: Agents64, Callers: agentCount, Rates: []float64{AgentRate}, Quick: true, Do: func(
		ctx context.Context, caller, _ int,
	) error {
		return q.agents[caller].Wait(ctx)
	}})
}

// reserveMany makes decisions in one call.
func (q *quotad) reserveMany(ctx context.Context, n int) error {
	request := &quotav1.BatchRequest{Commands: make([]*quotav1.Command, n)}
	for i := range request.Commands {
		request.Commands[i] = &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{
			Holder: "bench", Items: []*quotav1.Item{{Quota: QuotaName(i % QuotaCount), Amount: new(int64(1))}}, Consume: true,
			Ttl: durationpb.New(time.Second),
		}}}
	}
	response, err := q.batch.Batch(ctx, request)
	if err != nil {
		return err
	}
	for i, result := range response.Results {
		if result.GetReserve().GetLease() == nil {
			return fmt.Errorf("command %d of a batch was not granted: %v", i, result)
		}
	}
	return nil
}

// LocalLimiter is a limiter of a running cluster.
type LocalLimiter struct {
	*client.Limiter
	cluster *quotad
}

// StartLocal starts three nodes and returns a limiter of a quota whose limit is never reached.
func StartLocal(ctx context.Context, binary, dir string) (*LocalLimiter, error) {
	q, err := startQuotad(ctx, dir, binary, "boltdb")
	if err != nil {
		return nil, withLogs(dir, err)
	}
	return &LocalLimiter{Limiter: q.limiter, cluster: q}, nil
}

// Stop ends the limiter and the cluster.
func (l *LocalLimiter) Stop() { l.cluster.Stop() }
