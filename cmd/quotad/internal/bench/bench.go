// Package bench measures durable decisions of a cluster of three real processes on this machine, through the Go client,
// and, where an etcd binary is installed, etcd's compare-and-swap loop on the same disk in the same run.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/client"
)

// quotaCount is how many quotas the spread work uses.
const quotaCount = 1000

// settings are the command's flags.
type settings struct {
	duration time.Duration
	rounds   int
	dir      string
	etcd     bool
}

// Command returns quotad bench.
func Command() *cobra.Command {
	s := settings{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure durable decisions of three processes on this machine",
		Long: `Starts three nodes as processes with durable data, and asks for leases (reserve and consume in one commit) as fast
as callers can, each waiting for its answer: one caller, 64 and 256 on one quota, and the same on 1,000 quotas. The
works take turns in several rounds; medians are printed. With --etcd, and etcd installed, three etcd processes on the
same disk run the usual read and compare-and-swap loop on one key, in turn with the rest.`,
		Example: `  quotad bench
  quotad bench --etcd --rounds 5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, cmd.OutOrStdout()) },
	}
	cmd.Flags().DurationVar(&s.duration, "duration", 4*time.Second, "how long each work runs in each round")
	cmd.Flags().IntVar(&s.rounds, "rounds", 3, "how many rounds")
	cmd.Flags().StringVar(&s.dir, "dir", "", "where the data goes; default: a new folder in the working directory, removed at the end")
	cmd.Flags().BoolVar(&s.etcd, "etcd", false, "measure etcd beside it, if it is installed")
	return cmd
}

// work is one thing that is measured.
type work struct {
	name    string
	callers int
	// do makes one decision for a caller.
	do func(ctx context.Context, caller, n int) error
}

// outcome is what one run of a work came to.
type outcome struct {
	rate     float64
	p50, p99 time.Duration
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	dir, err := folder(s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	nodes, err := startNodes(ctx, dir)
	if err != nil {
		return err
	}
	defer nodes.stop()
	c, err := client.New(nodes.addresses, client.WithHolder("bench"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	works := quotadWorks(c)
	if s.etcd {
		peers, startErr := startEtcd(ctx, dir)
		if startErr != nil {
			return startErr
		}
		defer peers.stop()
		works = append(works, etcdWorks(peers)...)
	}
	outcomes := map[string][]outcome{}
	for round := range s.rounds {
		for _, w := range works {
			_, _ = fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, s.rounds, w.name)
			o, err := measure(ctx, w, s.duration)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			outcomes[w.name] = append(outcomes[w.name], o)
		}
	}
	return table(out, works, outcomes)
}

func folder(dir string) (string, error) {
	if dir != "" {
		return dir, os.MkdirAll(dir, 0o700)
	}
	return os.MkdirTemp(".", "bench-")
}

// quotadWorks are the works on the cluster.
func quotadWorks(c *client.Client) []work {
	decide := func(quota func(caller, n int) string) func(context.Context, int, int) error {
		return func(ctx context.Context, caller, n int) error {
			_, err := c.Reserve(ctx, client.ReserveRequest{
				Items: []client.Item{{Quota: quota(caller, n), Amount: 1}}, Consume: true, TTL: time.Second,
			})
			return err
		}
	}
	hot := decide(func(int, int) string { return "bench/hot" })
	spread := decide(func(caller, n int) string { return fmt.Sprintf("bench/q%03d", (caller*31+n*7)%quotaCount) })
	return []work{
		{"quotad: one caller", 1, hot},
		{"quotad: 64 callers, one quota", 64, hot},
		{"quotad: 256 callers, one quota", 256, hot},
		{"quotad: 64 callers, 1,000 quotas", 64, spread},
		{"quotad: 256 callers, 1,000 quotas", 256, spread},
	}
}

// measure runs a work for a while: each caller asks anew as soon as it was answered.
func measure(ctx context.Context, w work, duration time.Duration) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	started := time.Now()
	for caller := range w.callers {
		wg.Go(func() {
			took := make([]time.Duration, 0, 1024)
			for n := 0; time.Since(started) < duration && ctx.Err() == nil; n++ {
				at := time.Now()
				if err := w.do(ctx, caller, n); err != nil {
					cancel(err)
					break
				}
				took = append(took, time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return outcome{}, err
	}
	if len(all) == 0 {
		return outcome{}, errors.New("no decision was made")
	}
	slices.Sort(all)
	return outcome{
		rate: float64(len(all)) / time.Since(started).Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100],
	}, nil
}

// table prints medians, and each rate as a multiple of etcd's with as many callers on one key, where that was measured.
func table(out io.Writer, works []work, outcomes map[string][]outcome) error {
	reference := medianRate(outcomes[etcdName(64)])
	rows := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(rows, "WORK\tDECISIONS/S\tP50\tP99\tBESIDE ETCD, 64 CALLERS")
	for _, w := range works {
		runs := outcomes[w.name]
		ratio := "-"
		if reference > 0 && !strings.HasPrefix(w.name, "etcd") {
			ratio = fmt.Sprintf("%.1f x", medianRate(runs)/reference)
		}
		p50 := median(runs, func(o outcome) float64 { return float64(o.p50) })
		p99 := median(runs, func(o outcome) float64 { return float64(o.p99) })
		_, _ = fmt.Fprintf(rows, "%s\t%.0f\t%v\t%v\t%s\n", w.name, medianRate(runs),
			time.Duration(p50).Round(10*time.Microsecond), time.Duration(p99).Round(10*time.Microsecond), ratio)
	}
	return rows.Flush()
}

func medianRate(runs []outcome) float64 {
	return median(runs, func(o outcome) float64 { return o.rate })
}

func median(runs []outcome, of func(outcome) float64) float64 {
	if len(runs) == 0 {
		return 0
	}
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = of(r)
	}
	sort.Float64s(values)
	return values[len(values)/2]
}
