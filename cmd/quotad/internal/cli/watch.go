package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/follow"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

// watchFlags are the options of watch.
type watchFlags struct {
	quota, holder string
	kinds         []string
	from          uint64
	count         int
}

func (a *App) watchCommand() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print events as they happen: grants, refusals, waits, cooldowns and more",
		Long: `Print events as they happen, a line each, in the order of the log: its index, the cluster time, the kind, and what it is
about. With --output json each event is one JSON object on a line. If the connection is lost, the command continues with
the next event at the next node that answers; a note on standard error says so. It ends with Ctrl-C, or after --count events.

With --from it begins at an index, such as the one after the last that you saw. A cluster keeps events for a while only: if
those of the index are gone, the command says from which index on there are events (COMPACTED), and exits with 4.`,
		Example: `  quotad watch
  quotad watch --quota github/ --kind cooldown --kind reopened
  quotad watch --holder picard -o json | jq -c .event
  quotad watch --from 1042 --count 10`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.watch(cmd, &f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.quota, "quota", "", "only events of quotas with this prefix")
	flags.StringVar(&f.holder, "holder", "", "only events of this holder")
	flags.StringSliceVar(&f.kinds, "kind", nil, "only this kind, such as granted; repeatable")
	flags.Uint64Var(&f.from, "from", 0, "first index wanted (default: from now on)")
	flags.IntVar(&f.count, "count", 0, "exit after this number of events (default: never)")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kindWords(), cobra.ShellCompDirectiveNoFileComp))
	return a.clientFlags(cmd)
}

// errEnough ends a watch that has printed --count events.
var errEnough = errors.New("enough events")

func (a *App) watch(cmd *cobra.Command, f *watchFlags) error {
	for _, kind := range f.kinds {
		if !slices.Contains(kindWords(), kind) {
			return usagef(cmd, strings.Join(kindWords(), ", "), "unknown --kind %q", kind)
		}
	}
	if f.count < 0 {
		return usagef(cmd, "leave it out for no end", "--count %d is below 0", f.count)
	}
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	left := f.count
	follower := &follow.Follower{
		Nodes: c.followed(), From: f.from, QuotaPrefix: f.quota, Holder: f.holder, Patience: c.timeout,
		Each: func(meta *quotav1.Meta, event *quotav1.Event) error {
			if len(f.kinds) > 0 && !slices.Contains(f.kinds, kindWord(event.Kind)) {
				return nil
			}
			if err := a.printEvent(meta, event); err != nil {
				return err
			}
			if left--; left == 0 {
				return errEnough
			}
			return nil
		},
		Tell: func(node string, from uint64, err error) {
			text := "connected to " + node
			if err != nil {
				text += fmt.Sprintf(" after a lost connection (%v), continuing with index %d", err, from)
			}
			_, _ = fmt.Fprintln(a.Err, "quotad: "+output.Visible(text))
		},
	}
	return watchError(c, follower.Run(cmd.Context()))
}

// followed returns the nodes to read events from.
func (c *cluster) followed() []follow.Node {
	nodes := make([]follow.Node, len(c.nodes))
	for i, n := range c.nodes {
		nodes[i] = follow.Node{Address: n.address, Quota: n.quota}
	}
	return nodes
}

// watchError maps the end of a watch to the command's error.
func watchError(c *cluster, err error) error {
	rpc, ok := errors.AsType[*connect.Error](err)
	switch {
	case err == nil, errors.Is(err, errEnough):
		return nil
	case !ok:
		return err
	}
	info := infoOf(rpc)
	switch {
	case info != nil && info.Reason == quotav1.Reason_REASON_COMPACTED:
		return &failure{
			code: ExitRefused, info: info, err: err, message: "events from that index on are no longer kept: " + rpc.Message(),
			hint: "read the state (quotad quota list, quotad lease list), then watch without --from",
		}
	case info == nil && neverSent(err):
		return fail(ExitUnavailable, "is a node running there? name others with --server or QUOTAD_SERVER",
			"no quotad node answers at %s: %w", c.addresses(), rootCause(err))
	case info == nil && lost(rpc):
		return fail(ExitUnavailable, "try again, or ask another node with --server", "no answer: %w", err)
	}
	return err
}

// eventLine is an event as JSON.
type eventLine struct {
	Index       uint64          `json:"index"`
	ClusterTime float64         `json:"clusterTime"`
	Kind        string          `json:"kind"`
	Event       json.RawMessage `json:"event"`
}

// printEvent prints an event: for people one line of words, for programs one JSON object on a line.
func (a *App) printEvent(meta *quotav1.Meta, event *quotav1.Event) error {
	if a.format == formatJSON {
		raw, err := output.Raw(event)
		if err != nil {
			return err
		}
		return output.Line(a.Out, eventLine{
			Index: meta.GetIndex(), ClusterTime: meta.GetClusterTime().AsDuration().Seconds(), Kind: kindWord(event.Kind), Event: raw,
		})
	}
	words := append([]string{output.Int(meta.GetIndex()), output.Duration(meta.GetClusterTime()), kindWord(event.Kind)}, eventWords(event)...)
	_, err := fmt.Fprintln(a.Out, output.Visible(strings.Join(words, "  ")))
	return err
}

// eventWords lists an event's fields as name=value.
func eventWords(e *quotav1.Event) []string {
	var words []string
	add := func(name, value string) {
		if value != "" && value != "0" {
			words = append(words, name+"="+value)
		}
	}
	add("quota", e.Quota)
	add("holder", e.Holder)
	add("amount", output.Int(e.Amount))
	add("reason", reasonWord(e.Reason))
	if e.Duration != nil {
		add("for", output.Duration(e.Duration))
	}
	add("lease", output.Int(e.Lease))
	add("fence", output.Int(e.Fence))
	add("ticket", output.Int(e.Ticket))
	add("task", e.Task)
	add("outcome", outcomeWord(e.TaskOutcome))
	add("workflow", e.Workflow)
	add("step", e.Step)
	return words
}

// kindWord formats a kind as users type it: wait-ended.
func kindWord(kind quotav1.EventKind) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(kind.String(), "EVENT_KIND_")), "_", "-")
}

// kindWords are all kinds, in the order of their numbers.
func kindWords() []string {
	values := quotav1.EventKind(0).Descriptor().Values()
	words := make([]string, 0, values.Len())
	for i := range values.Len() {
		if number := quotav1.EventKind(values.Get(i).Number()); number != quotav1.EventKind_EVENT_KIND_UNSPECIFIED {
			words = append(words, kindWord(number))
		}
	}
	return words
}
