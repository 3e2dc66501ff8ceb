package demo

import (
	"context"
	"io"
	"math/rand/v2"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/usage"
)

// Command returns `quotad demo`. It fails, with exit code 1, if the fleet through quotad hit a limit of the provider or did
// no work.
func Command() *cobra.Command {
	o := options{}
	fleet, duration, noKill := fleetFlag("both"), durationFlag(115*time.Second), false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run nine agents on one API key, with and without quotad",
		Long: `Run a demo: a cluster of three processes, a provider that enforces GitHub's and OpenAI's limits, and two fleets of nine
agent processes of different classes. One fleet backs off on its own, the other uses quotad; each has its own key and so its
own limits. Midway the demo kills the leader (SIGKILL), and starts it again later.

An hour of the provider lasts 60 s. A table compares the fleets at the end. The exit code is 0 only if the provider refused
no call of the fleet that uses quotad, and every agent got work done.`,
		Example: `  quotad demo
  quotad demo --duration 60s --fleet governed --seed 7`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Node != "" {
				var err error
				if o.Node, err = filepath.Abs(o.Node); err == nil {
					err = writeNodeAgent(o.Node)
				}
				if err != nil {
					return usage.Errorf(cmd, "install them there: npm install openai @octokit/rest", "--node: %v", err)
				}
			}
			if o.Seed == 0 {
				o.Seed = rand.Uint64N(1_000_000) + 1
			}
			o.Fleet, o.Duration, o.Kill = string(fleet), time.Duration(duration), !noKill
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer cancel()
			return run(ctx, o, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var(&fleet, "fleet", "fleets to run: "+strings.Join(fleets, ", "))
	flags.Var(&duration, "duration", "how long they run; the default is just below two hours of the provider")
	flags.StringVar(&o.Dir, "dir", "data/demo", "folder for data, logs and the report; emptied first if a demo made it")
	flags.StringVar(&o.Node, "node", "", "folder where npm installed openai and @octokit/rest: one more agent calls with them")
	flags.BoolVar(&noKill, "no-kill", false, "do not kill the leader")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of the agents' randomness; 0: chosen and printed")
	_ = cmd.RegisterFlagCompletionFunc("fleet", cobra.FixedCompletions(fleets, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(agentCommand(), providerCommand())
	return cmd
}

// agentCommand is one agent process, started by the demo.
func agentCommand() *cobra.Command {
	var cfg agentConfig
	var m, speaks string
	cmd := &cobra.Command{
		Use: "agent", Hidden: true, Short: "One agent of the demo, which starts it", Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.mode, cfg.speaks = mode(m), language(speaks)
			ctx, cancel := untilInputEnds(cmd.Context(), cmd.InOrStdin())
			defer cancel()
			return runAgent(ctx, cfg, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.role, "role", "", "which agent")
	flags.StringVar(&m, "mode", "", "own or governed")
	flags.StringVar(&cfg.provider, "provider", "", "the provider's URL")
	flags.StringSliceVar(&cfg.servers, "servers", nil, "the cluster's nodes")
	flags.StringVar(&speaks, "speaks", "", "program that makes its calls, through a gateway")
	flags.StringVar(&cfg.gateway, "gateway", "", "the gateway's URL")
	flags.StringVar(&cfg.node, "node", "", "folder of Node's packages")
	flags.Uint64Var(&cfg.seed, "seed", 1, "where the randomness comes from")
	return cmd
}

// providerCommand is the provider process, started by the demo.
func providerCommand() *cobra.Command {
	var seed uint64
	cmd := &cobra.Command{
		Use: "provider", Hidden: true, Short: "The provider of the demo, which starts it", Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := untilInputEnds(cmd.Context(), cmd.InOrStdin())
			defer cancel()
			return runProvider(ctx, seed, cmd.OutOrStdout())
		},
	}
	cmd.Flags().Uint64Var(&seed, "seed", 1, "where the jitter of latencies comes from")
	return cmd
}

// untilInputEnds returns a context that ends with the input, which the parent holds open: a child ends with its parent. The
// context also ends on SIGTERM.
func untilInputEnds(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, unsubscribe := signal.NotifyContext(ctx, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, func() {
		cancel()
		unsubscribe()
	}
}
