package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/follow"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/view"
	"github.com/quotad/quotad/rpc/quotav1"
)

// topFlags are the options of top.
type topFlags struct {
	quota, every string
	once         bool
}

func (a *App) topCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show a cluster live: members, quotas, zones, cooldowns, waiting holders",
		Long: `Show a cluster live: its members, waiting holders, the latest events, and the quotas with their zones and cooldowns.
In a terminal the picture is redrawn until Ctrl-C; elsewhere it is printed as text each time. With --once it is
printed once. Holders that began to wait before the command started are counted, not named.`,
		Example: `  quotad top
  quotad top --quota github/ --every 5s
  quotad top --once
  quotad top --once -o json | jq '.quotas[] | select(.cooldownLeft)'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.top(cmd, &f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.quota, "quota", "", "only quotas with this prefix")
	flags.StringVar(&f.every, "every", "", "time between two pictures, 100ms or more (default 2s)")
	flags.BoolVar(&f.once, "once", false, "print one picture and exit")
	return a.clientFlags(cmd)
}

const (
	topEvery    = 2 * time.Second
	topShortest = 100 * time.Millisecond
)

func (a *App) top(cmd *cobra.Command, f *topFlags) error {
	every, err := durationFlag(cmd, "every", f.every)
	if err != nil {
		return err
	}
	pause := topEvery
	if every != nil {
		pause = every.AsDuration()
	}
	if pause < topShortest {
		return usagef(cmd, "", "--every %s is shorter than %s", f.every, topShortest)
	}
	t := &top{app: a, cmd: cmd, prefix: f.quota}
	if t.cluster, err = a.connect(cmd); err != nil {
		return err
	}
	if f.once {
		return t.once(cmd.Context())
	}
	return t.live(cmd.Context(), pause)
}

// top shows the state of a cluster.
type top struct {
	app     *App
	cmd     *cobra.Command
	prefix  string
	cluster *cluster
	// leader is the leader's node if the flags do not name it.
	leader        *node
	leaderAddress string
}

// observe queries the named nodes, and the leader that they report.
func (t *top) observe(ctx context.Context) view.Cluster {
	seen := view.Observe(ctx, t.nodes(), t.prefix)
	address := seen.Status.GetLeaderAddress()
	if seen.Leader >= 0 || address == "" || address == t.leaderAddress {
		return seen
	}
	t.leaderAddress, t.leader = address, nil
	flags, timeout, err := t.app.readConnection(t.cmd)
	if err != nil {
		return seen
	}
	flags.servers = []string{address}
	if found, err := newCluster(t.cmd, flags, timeout); err == nil {
		t.leader = &found.nodes[0]
		if through := view.Observe(ctx, t.nodes(), t.prefix); through.Leader >= 0 {
			return through
		}
	}
	return seen
}

func (t *top) nodes() []view.Node {
	all := slices.Clone(t.cluster.nodes)
	if t.leader != nil {
		all = append(all, *t.leader)
	}
	nodes := make([]view.Node, len(all))
	for i, n := range all {
		nodes[i] = view.Node{ID: n.address, Admin: n.admin, Quota: n.quota}
	}
	return nodes
}

// once prints one picture. It waits longer for an answer than a live picture does, and returns the reason if there is none.
func (t *top) once(ctx context.Context) error {
	until := time.Now().Add(t.cluster.timeout)
	for {
		seen := t.observe(ctx)
		if seen.Status != nil && (seen.Quotas != nil || seen.Status.GetQuotas() == 0 || t.prefix != "") || time.Now().After(until) {
			if seen.Status == nil {
				_, err := getStatus(ctx, &cluster{nodes: t.cluster.nodes, timeout: shortest})
				return err
			}
			return t.print(seen, nil)
		}
		if seen.Status == nil {
			if _, err := getStatus(ctx, t.cluster); err != nil {
				return err
			}
		}
		if !sleep(ctx, pauseBetweenRounds) {
			return context.Cause(ctx)
		}
	}
}

// live redraws the picture until the context ends, which is no error.
func (t *top) live(ctx context.Context, every time.Duration) error {
	queue := &view.Queue{}
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	background.Go(func() { t.follow(ctx, queue) })
	screen := view.NewScreen(t.app.Out)
	defer screen.End()
	began := time.Now()
	for {
		seen := t.observe(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if screen.Terminal() && t.app.format != formatJSON {
			screen.Show(time.Since(began), func([]string) []string { return view.Top(seen, queue, time.Now()) }, nil)
		} else if err := t.print(seen, queue); err != nil {
			return err
		}
		if !sleep(ctx, every) {
			return nil
		}
	}
}

// follow keeps the queue up to date. Without the right to read events, top shows only counts.
func (t *top) follow(ctx context.Context, queue *view.Queue) {
	for {
		follower := &follow.Follower{
			Nodes: t.cluster.followed(), QuotaPrefix: t.prefix, Patience: t.cluster.timeout,
			Each: func(_ *quotav1.Meta, event *quotav1.Event) error {
				queue.Take(event, time.Now())
				return nil
			},
			Tell: func(string, uint64, error) {},
		}
		switch connect.CodeOf(follower.Run(ctx)) { //nolint:exhaustive // the others pass
		case connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeUnimplemented:
			return
		}
		queue.Forget() // the stream may have missed events
		if !sleep(ctx, t.cluster.timeout) {
			return
		}
	}
}

// print prints a picture as text or JSON.
func (t *top) print(seen view.Cluster, queue *view.Queue) error {
	if t.app.format == formatJSON {
		return t.printJSON(seen, queue)
	}
	text := strings.Join(view.Top(seen, queue, time.Now()), "\n") + "\n"
	if queue != nil {
		text += "\n" // separates it from the next picture
	}
	_, err := fmt.Fprint(t.app.Out, text)
	return err
}

func (t *top) printJSON(seen view.Cluster, queue *view.Queue) error {
	type waiter struct {
		Holder  string  `json:"holder"`
		Quota   string  `json:"quota"`
		Seconds float64 `json:"seconds"`
	}
	picture := struct {
		Status  any      `json:"status"`
		Quotas  []any    `json:"quotas"`
		Waiting []waiter `json:"waiting"`
	}{Quotas: []any{}, Waiting: []waiter{}}
	if seen.Status != nil {
		raw, err := output.Raw(seen.Status)
		if err != nil {
			return err
		}
		picture.Status = raw
	}
	for _, q := range seen.Quotas {
		raw, err := output.Raw(q)
		if err != nil {
			return err
		}
		picture.Quotas = append(picture.Quotas, raw)
	}
	if queue != nil {
		now := time.Now()
		for _, w := range queue.Waiting() {
			picture.Waiting = append(picture.Waiting, waiter{w.Holder, w.Quota, now.Sub(w.Since).Seconds()})
		}
	}
	return output.Line(t.app.Out, picture)
}
