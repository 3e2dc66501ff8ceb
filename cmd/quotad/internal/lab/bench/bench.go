// Package bench measures durable decisions of servers that run as separate processes on this machine. It measures the rate
// that closed-loop callers reach, the latency when calls arrive independently of earlier answers, and the cost of a
// decision in processor time, bytes written and disk syncs. `quotad bench` measures quotad with it, and the program in the
// folder tool compares quotad with its peers.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/usage"
)

// System is a system to measure: a server, or a cluster of them. It always starts with an empty folder.
type System struct {
	// Name is its name in tables.
	Name string
	// Version returns the system's own description of its version.
	Version func(ctx context.Context) (string, error)
	// Start starts its processes with their data below dir, and returns once the system serves.
	Start func(ctx context.Context, dir string) (Running, error)
}

// Running is a system that serves.
type Running interface {
	// Works are the works that it supports.
	Works() []Work
	// PIDs are its processes.
	PIDs() []int
	// Stop ends them.
	Stop()
}

// Work is one thing to measure.
type Work struct {
	// Name is the row of the table; systems with the same work share the name.
	Name string
	// Callers is the number of concurrent callers.
	Callers int
	// Batch is the number of decisions per call; 0: one.
	Batch int
	// Rates are the open loop's arrival rates in decisions per second; none: closed loop only.
	Rates []float64
	// Quick says that scheduling a call costs more than the call. An open loop at half of the closed loop's rate would be
	// meaningless, so none runs.
	Quick bool
	// Do makes a caller's n-th call.
	Do func(ctx context.Context, caller, n int) error
}

// Names of works that several systems share.
const (
	OneCaller   = "one caller"
	Hot64       = "64 callers, one quota"
	Hot256      = "256 callers, one quota"
	Spread64    = "64 callers, 1,000 quotas"
	Spread256   = "256 callers, 1,000 quotas"
	Spread1000  = "1,000 callers, 1,000 quotas"
	Batches     = "batches"
	Leased256   = "256 callers, leased batches"
	Agents64    = "64 agents, a batch each"
	QuotaCount  = 1000
	hotRate     = 50.0   // a read and compare-and-swap loop on one key can sustain it
	SpreadRate  = 500.0  // one disk can sustain it with a sync for each decision
	AgentRate   = 3200.0 // of all agents together
	batchLength = 2000
)

// Standard returns the works that every system supports. decide makes one decision of a caller on a quota: -1 is the hot
// one, others are 0 to QuotaCount-1.
func Standard(decide func(ctx context.Context, caller, quota int) error) []Work {
	hot := func(ctx context.Context, caller, _ int) error { return decide(ctx, caller, -1) }
	spread := func(ctx context.Context, caller, n int) error { return decide(ctx, caller, (caller*31+n*7)%QuotaCount) }
	return []Work{
		{Name: OneCaller, Callers: 1, Rates: []float64{hotRate}, Do: hot},
		{Name: Hot64, Callers: 64, Rates: []float64{hotRate}, Do: hot},
		{Name: Hot256, Callers: 256, Do: hot},
		{Name: Spread64, Callers: 64, Rates: []float64{SpreadRate}, Do: spread},
		{Name: Spread256, Callers: 256, Do: spread},
		{Name: Spread1000, Callers: 1000, Do: spread},
	}
}

// QuotaName returns the name of a quota by its number in Standard.
func QuotaName(quota int) string {
	if quota < 0 {
		return "bench/hot"
	}
	return fmt.Sprintf("bench/q%03d", quota)
}

// Command returns quotad bench.
func Command() *cobra.Command {
	var plan Plan
	var results, logStore string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure durable decisions of three processes on this machine",
		Long: `Measure durable decisions: start three nodes as processes and request leases (reserve and consume in one commit). Closed-loop
callers wait for each answer (1, 64 and 256 on one quota, 64 to 1,000 on 1,000 quotas, batches of 2,000 commands); open-loop
callers keep a given rate. Each round has a fresh cluster; the medians of several rounds are printed.`,
		Example: `  quotad bench
  quotad bench --rounds 5 --results bench.json`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			binary, err := os.Executable()
			if err != nil {
				return err
			}
			plan.Systems = []System{Quotad(binary, logStore)}
			measured, err := plan.Run(cmd.Context())
			if err != nil {
				return err
			}
			if results != "" {
				if err := WriteResults(results, measured); err != nil {
					return err
				}
			}
			return measured.Table(cmd.OutOrStdout())
		},
	}
	plan.Flags(cmd.Flags())
	cmd.Flags().StringVar(&results, "results", "", "file for the measurements, as JSON")
	cmd.Flags().StringVar(&logStore, "log-store", "boltdb", "storage engine of the Raft log: boltdb or wal")
	return cmd
}

// WriteResults writes results as JSON.
func WriteResults(path string, r *Results) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644) //nolint:gosec // results are for everybody
}

// wait waits for length or until ctx ends.
func wait(ctx context.Context, length time.Duration) {
	if length <= 0 {
		return
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
