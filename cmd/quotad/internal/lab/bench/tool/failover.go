package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

const (
	// probeEvery is the time between two requests to one survivor, and so the resolution of the measurement.
	probeEvery = 5 * time.Millisecond
	// probeTimeout ends a request that a survivor does not answer, and a new one follows. The measurement is when the
	// cluster serves, not how long one request can wait.
	probeTimeout = 250 * time.Millisecond
	// rejoin is how long a killed node runs again before the next kill, so that it has the log and takes part in elections.
	rejoin = 2 * time.Second
	// longestFailover ends a measurement in which the cluster does not recover.
	longestFailover = 60 * time.Second
)

// failoverRun is the plan of a measurement.
type failoverRun struct {
	builds        []string
	kills, rounds int
}

func failoverCommand() *cobra.Command {
	run := &failoverRun{}
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Measure how long a killed leader stops the cluster",
		Long: `Runs three nodes as processes and kills the leader with SIGKILL, again and again. Measures from each kill to the first
grant by a surviving node. Builds run in turn, each with a fresh cluster in each round.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	cmd.Flags().StringSliceVar(&run.builds, "quotad", []string{"bin/quotad"}, "binaries of quotad, which run in turn")
	cmd.Flags().IntVar(&run.kills, "kills", 10, "kills of the leader per build and round")
	cmd.Flags().IntVar(&run.rounds, "rounds", 10, "rounds")
	return cmd
}

func (r *failoverRun) run(ctx context.Context, out io.Writer) error {
	took := make([][]time.Duration, len(r.builds))
	for round := range r.rounds {
		for i, build := range r.builds {
			kills, err := r.cluster(ctx, build)
			if err != nil {
				return fmt.Errorf("%s: %w", build, err)
			}
			took[i] = append(took[i], kills...)
			slices.Sort(kills)
			_, _ = fmt.Fprintf(os.Stderr, "round %d of %d: %s: median %s, longest %s\n", round+1, r.rounds, build,
				quantile(kills, 0.5), quantile(kills, 1))
		}
	}
	return tabulateFailover(out, r.builds, took)
}

// tabulateFailover prints the quantiles of each build, and the ratio of its p99 to that of the first one.
func tabulateFailover(out io.Writer, builds []string, took [][]time.Duration) error {
	quantiles := []float64{0.5, 0.9, 0.99, 1}
	rows := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(rows, "BUILD\tKILLS\tP50\tP90\tP99\tLONGEST\tP99, RATIO TO THE FIRST BUILD")
	for i, build := range builds {
		slices.Sort(took[i])
		row := []string{build, fmt.Sprint(len(took[i]))}
		for _, q := range quantiles {
			row = append(row, quantile(took[i], q).String())
		}
		ratio := float64(quantile(took[i], 0.99)) / float64(quantile(took[0], 0.99))
		_, _ = fmt.Fprintln(rows, strings.Join(append(row, fmt.Sprintf("%.2f", ratio)), "\t"))
	}
	return rows.Flush()
}

// quantile returns the smallest value that at least a fraction q of the sorted values does not exceed, rounded to
// milliseconds.
func quantile(sorted []time.Duration, q float64) time.Duration {
	at := max(0, int(float64(len(sorted))*q+0.999999)-1)
	return sorted[min(at, len(sorted)-1)].Round(time.Millisecond)
}

// cluster starts a new cluster of a build and kills its leaders.
func (r *failoverRun) cluster(ctx context.Context, build string) (took []time.Duration, err error) {
	dir, err := os.MkdirTemp(".", "bench-failover-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	nursery := local.NewNursery(build, dir)
	defer nursery.Close(local.StartTimeout)
	c, err := local.NewCluster(nursery, dir)
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	for _, n := range c.Nodes {
		if err := c.Start(n); err != nil {
			return nil, err
		}
	}
	quotas := &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{{Name: bench.QuotaName(-1), Rule: &quotav1.Quota_Rate{
		Rate: &quotav1.Rate{Limit: 1 << 50, Per: durationpb.New(time.Minute)},
	}}}}
	if err := c.Ready(ctx, quotas); err != nil {
		return nil, err
	}
	for range r.kills {
		without, err := killLeader(ctx, c, quotas)
		if err != nil {
			return nil, err
		}
		took = append(took, without)
	}
	return took, nil
}

// killLeader kills the leader, measures the time until a survivor grants, and lets the killed node rejoin.
func killLeader(ctx context.Context, c *local.Cluster, quotas *quotav1.ApplyQuotasRequest) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, longestFailover)
	defer cancel()
	leader, ok := c.Leader(ctx)
	if !ok {
		return 0, errors.New("no node leads")
	}
	var survivors []string
	for i, n := range c.Nodes {
		if n != leader {
			survivors = append(survivors, c.Servers()[i])
		}
	}
	at := time.Now()
	leader.Kill()
	granted := firstGrant(ctx, survivors)
	took := time.Since(at)
	if !granted {
		return 0, fmt.Errorf("nothing was granted within %s of a kill", longestFailover)
	}
	if err := c.Start(leader); err != nil {
		return 0, err
	}
	if err := c.Ready(ctx, quotas); err != nil {
		return 0, err
	}
	pause := time.NewTimer(rejoin)
	defer pause.Stop()
	select {
	case <-pause.C:
		return took, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// firstGrant returns true once one of the nodes has granted something; false: the context ended first.
func firstGrant(ctx context.Context, nodes []string) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	granted := make(chan bool, len(nodes))
	for _, node := range nodes {
		go func() { granted <- probe(ctx, node) }()
	}
	for range nodes {
		if <-granted {
			return true
		}
	}
	return false
}

// probe sends requests to a node until it grants one.
func probe(ctx context.Context, node string) bool {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	service := quotav1connect.NewQuotaServiceClient(&http.Client{Transport: transport}, "http://"+node)
	request := &quotav1.ReserveRequest{
		Holder: "bench", Items: []*quotav1.Item{{Quota: bench.QuotaName(-1), Amount: new(int64(1))}}, Consume: true,
		Ttl: durationpb.New(time.Second),
	}
	every := time.NewTicker(probeEvery)
	defer every.Stop()
	for {
		attempt, end := context.WithTimeout(ctx, probeTimeout)
		answer, err := service.Reserve(attempt, request)
		end()
		if err == nil && answer.GetLease() != nil {
			return true
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return false
		}
	}
}
