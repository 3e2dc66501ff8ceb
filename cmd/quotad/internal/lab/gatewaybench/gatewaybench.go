// Package gatewaybench measures what the gateway adds to a call, compared with the provider alone and with a plain reverse
// proxy. All run in one process, with the same load generator and the same fake provider. `quotad bench gateway` runs it.
package gatewaybench

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/cmd/quotad/internal/usage"
)

// The names of the works.
const (
	Direct      = "provider alone"
	Proxy       = "httputil.ReverseProxy"
	Ungoverned  = "gateway, ungoverned"
	Batched     = "gateway, from a batch"
	Committed   = "gateway, by a commit"
	Taken       = "take from a batch"
	LongProxy   = "200 kB prompt, httputil.ReverseProxy"
	LongScanned = "200 kB prompt, gateway, scanned"
	EventDirect = "event of a stream, provider alone"
	EventProxy  = "event of a stream, httputil.ReverseProxy"
	EventPassed = "event of a stream, gateway"
)

// Sizes of a call, in bytes, and the number of callers of the closed loop.
const (
	requestSize = 4 << 10
	answerSize  = 1 << 10
	longSize    = 200_000
	callers     = 32
)

// Results are the measurements, with the cost of a waiting call.
type Results struct {
	*bench.Results

	Waiting Waiting `json:"waiting"`
}

// Command returns quotad bench gateway.
func Command() *cobra.Command {
	var plan bench.Plan
	var results string
	var rates Rates
	var held int
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Measure what the gateway adds to a call, next to a plain reverse proxy",
		Long: `Measure calls of 4 KiB with answers of 1 KiB: to a fake provider alone, through a plain reverse proxy, and through the gateway
without quotas, from a batch, and with a commit of three nodes for each call. Measure takes from a batch of the gateway, calls
with a prompt of 200 kB, the delay of single events of streams, and the memory of calls that wait. Each work runs with 32
callers that wait, on 32 connections, and at a fixed rate of arrivals, which is the same for all paths. The medians of the
rounds are printed, with what the gateway adds and the goals. Provider, proxy, gateway and callers share one process; the nodes
and the gateway whose memory is read are processes of their own.

By default the rate is a quarter of what the reverse proxy reaches with callers that wait, but at most half of what commits
reach; takes arrive at 5,000 per second, but at most at 70 % of what callers that wait reach.`,
		Example: `  quotad bench gateway
  quotad bench gateway --rounds 7 --duration 10s --results gateway.json`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			binary, err := os.Executable()
			if err != nil {
				return err
			}
			plan.Systems = []bench.System{System(binary, &rates)}
			measured, err := plan.Run(cmd.Context())
			if err != nil {
				return err
			}
			r := Results{Results: measured}
			if r.Waiting, err = Hold(cmd.Context(), binary, plan.Dir, held); err != nil {
				return err
			}
			if results != "" {
				data, err := json.MarshalIndent(r, "", " ")
				if err != nil {
					return err
				}
				if err := os.WriteFile(results, append(data, '\n'), 0o644); err != nil { //nolint:gosec // results are for everybody
					return err
				}
			}
			if err := measured.Table(cmd.OutOrStdout()); err != nil {
				return err
			}
			return r.Goals(cmd.OutOrStdout(), rates)
		},
	}
	plan.Flags(cmd.Flags())
	cmd.Flags().Float64Var(&rates.Calls, "rate", 0, "arrivals of calls per second of the open loop; 0: by what is reached")
	cmd.Flags().Float64Var(&rates.Takes, "take-rate", 0, "arrivals of takes per second of the open loop; 0: by what is reached")
	cmd.Flags().IntVar(&held, "waiting", 2_000, "how many calls wait while the gateway's memory is read")
	cmd.Flags().StringVar(&results, "results", "", "file for the measurements, as JSON")
	return cmd
}

// Rates are the arrivals per second of the open loops, the same in all rounds. Zero rates are chosen when the first round
// starts.
type Rates struct{ Calls, Takes float64 }

const (
	// calibration is how long each path is measured in order to choose a rate.
	calibration = 2 * time.Second
	// ofProxy, ofCommits and ofTakes are the fractions of the maximum rates that arrive. The machine must not be busy: a
	// busy one shows queues, and not what a path adds.
	ofProxy, ofCommits, ofTakes = 0.25, 0.5, 0.7
	mostTakes                   = 5_000
)

// choose chooses the missing rates.
func (r *Rates) choose(ctx context.Context, p *paths) error {
	if r.Calls == 0 {
		proxy, err := p.reached(ctx, Proxy, calibration)
		if err != nil {
			return err
		}
		commits, err := p.reached(ctx, Committed, calibration)
		if err != nil {
			return err
		}
		r.Calls = rounded(min(ofProxy*proxy, ofCommits*commits))
	}
	if r.Takes == 0 {
		takes, err := p.reached(ctx, Taken, calibration)
		if err != nil {
			return err
		}
		r.Takes = rounded(min(ofTakes*takes, mostTakes))
	}
	return nil
}

// rounded rounds a rate down to tens.
func rounded(rate float64) float64 { return max(10*float64(int(rate/10)), 10) }

// System is the system to measure, with nodes of a binary.
func System(binary string, rates *Rates) bench.System {
	return bench.System{
		Name:    "gateway",
		Version: func(ctx context.Context) (string, error) { return bench.VersionOf(ctx, binary, "version") },
		Start: func(ctx context.Context, dir string) (bench.Running, error) {
			p, err := start(ctx, binary, dir)
			if err != nil {
				return nil, err
			}
			if err := rates.choose(ctx, p); err != nil {
				p.Stop()
				return nil, err
			}
			p.rates = *rates
			return p, nil
		},
	}
}
