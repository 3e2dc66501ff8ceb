package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) memberCommand() *cobra.Command {
	return group("member", "Add, promote, remove and replace nodes; transfer leadership",
		a.memberAdd(), a.memberPromote(), a.memberRemove(), a.memberReplace(), a.memberTransfer())
}

// addresses are the addresses of a new node.
type addresses struct{ raft, api string }

func (f *addresses) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.raft, "raft", "", "advertised Raft address of the new node, host:port")
	cmd.Flags().StringVar(&f.api, "api", "", "advertised API address of the new node, host:port")
}

func (f *addresses) check(cmd *cobra.Command) error {
	if f.raft == "" || f.api == "" {
		return usagef(cmd, "", "--raft and --api are both needed")
	}
	return nil
}

// done prints the result of a command whose answer is empty.
func (a *App) done(format string, values ...any) error {
	message := fmt.Sprintf(format, values...)
	if a.format == formatJSON {
		return output.Value(a.Out, map[string]string{"done": message})
	}
	_, err := fmt.Fprintln(a.Out, output.Visible(message))
	return err
}

func (a *App) memberAdd() *cobra.Command {
	var at addresses
	cmd := &cobra.Command{
		Use:   "add ID --raft HOST:PORT --api HOST:PORT",
		Short: "Add a node as a learner, which replicates but does not vote",
		Long: `Add a node as a learner. Start it with "join: true" and an empty data directory; it receives the state and the log. Then
promote it. Use an id that no node of this cluster ever had; quotad does not check it against removed nodes.`,
		Example: `  quotad member add n4 --raft 10.0.0.4:7451 --api 10.0.0.4:7450
  quotad member promote n4`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := at.check(cmd); err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			if err := addMember(cmd.Context(), c, args[0], at); err != nil {
				return err
			}
			return a.done("added %s as a learner", args[0])
		},
	}
	at.register(cmd)
	return a.clientFlags(cmd)
}

// catchUp is how long a new node may take to receive the state and the log.
type catchUp struct{ text string }

func (f *catchUp) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.text, "catch-up", "10m", "how long to wait until the new node has caught up")
}

func (f *catchUp) read(cmd *cobra.Command) (time.Duration, error) {
	length, err := durationFlag(cmd, "catch-up", f.text)
	if err != nil {
		return 0, err
	}
	return length.AsDuration(), nil
}

func addMember(ctx context.Context, c *cluster, id string, at addresses) error {
	request := &quotav1.AddMemberRequest{Id: id, RaftAddress: at.raft, ApiAddress: at.api}
	_, err := call(ctx, c, ifNotAccepted, 0, func(ctx context.Context, n node) (*quotav1.AddMemberResponse, error) {
		return n.admin.AddMember(ctx, request)
	})
	return err
}

func (a *App) memberPromote() *cobra.Command {
	var wait catchUp
	cmd := &cobra.Command{
		Use:     "promote ID",
		Short:   "Promote a learner to a voter after it has caught up",
		Long:    `Promote a learner to a voter. Wait, up to --catch-up, until it has caught up, and print its progress.`,
		Example: `  quotad member promote n4 --catch-up 1h`,
		Args:    arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bound, err := wait.read(cmd)
			if err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			if err := promoteWhenReady(cmd.Context(), c, args[0], bound, a.progress); err != nil {
				return err
			}
			return a.done("%s votes", args[0])
		},
	}
	wait.register(cmd)
	return a.clientFlags(cmd)
}

// progress prints what a command with several steps does.
func (a *App) progress(format string, values ...any) {
	_, _ = fmt.Fprintln(a.Err, output.Visible(fmt.Sprintf(format, values...)))
}

// betweenProgress is the time between two lines about a node that catches up, and the longest between two attempts: nodes log each one.
const betweenProgress = 2 * time.Second

// promoteWhenReady tries until the learner has caught up or the bound passes, and prints why it waits. It does not wait for a member
// that does not exist.
func promoteWhenReady(ctx context.Context, c *cluster, id string, bound time.Duration, progress func(string, ...any)) error {
	deadline := time.Now().Add(bound)
	var printed time.Time
	pause := pauseBetweenRounds
	for last := ""; ; pause = min(2*pause, betweenProgress) {
		_, err := call(ctx, c, ifNotAccepted, 0, func(ctx context.Context, n node) (*quotav1.PromoteMemberResponse, error) {
			return n.admin.PromoteMember(ctx, &quotav1.PromoteMemberRequest{Id: id})
		})
		if !unfit(err) {
			return absent(id, err)
		}
		if time.Now().After(deadline) {
			return err
		}
		if now := reasonText(err); now != last && time.Since(printed) >= betweenProgress {
			progress("%s", now)
			last, printed = now, time.Now()
		}
		if !sleep(ctx, pause) {
			return err
		}
	}
}

// unfit reports whether a change of membership failed because of the member's state.
func unfit(err error) bool {
	var rpc *connect.Error
	return errors.As(err, &rpc) && (rpc.Code() == connect.CodeFailedPrecondition || rpc.Code() == connect.CodeInvalidArgument)
}

// reasonText returns a node's message of a refusal.
func reasonText(refusal error) string {
	if rpc, ok := errors.AsType[*connect.Error](refusal); ok {
		return rpc.Message()
	}
	return refusal.Error()
}

// absent replaces a refusal for an unknown member by noMember, and returns other errors unchanged.
func absent(id string, refusal error) error {
	var rpc *connect.Error
	if errors.As(refusal, &rpc) && infoOf(rpc).GetReason() == quotav1.Reason_REASON_UNKNOWN_MEMBER {
		return noMember(id)
	}
	return refusal
}

func noMember(id string) error {
	return fail(ExitNotFound, `"quotad status" shows the members`, "there is no member %q", id)
}

func (a *App) memberRemove() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "Remove a node",
		Long: `Remove a node. The command is refused if the remaining nodes that answer would be no majority; --force skips this check.
Repeating the command is safe: it exits with 3 if the member is gone.
It needs a leader. A cluster that has lost its majority permanently has to start again from a backup ("quotad backup
--data-dir" makes one from a remaining data directory).`,
		Example: `  quotad member remove n2`,
		Args:    arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			if err := removeMember(cmd.Context(), c, args[0], force); err != nil {
				return err
			}
			return a.done("removed %s", args[0])
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove it even if the remaining nodes that answer would be no majority")
	return a.clientFlags(cmd)
}

func removeMember(ctx context.Context, c *cluster, id string, force bool) error {
	request := &quotav1.RemoveMemberRequest{Id: id, Force: force}
	_, err := call(ctx, c, removes, 0, func(ctx context.Context, n node) (*quotav1.RemoveMemberResponse, error) {
		return n.admin.RemoveMember(ctx, request)
	})
	return absent(id, err)
}

func (a *App) memberReplace() *cobra.Command {
	var at addresses
	var wait catchUp
	var force bool
	cmd := &cobra.Command{
		Use:   "replace OLD NEW --raft HOST:PORT --api HOST:PORT",
		Short: "Replace a dead node: add the new one, let it catch up, promote it, remove the old one",
		Long: `Replace a node without ever having fewer voters than before: add the new one as a learner, wait until it has caught up,
promote it, then remove the old one. The new node must be running, with "join: true" and an empty data directory. If the
command is interrupted, or --catch-up is too short, run it again: it skips completed steps.`,
		Example: `  quotad member replace n2 n4 --raft 10.0.0.4:7451 --api 10.0.0.4:7450`,
		Args:    arguments("OLD", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := at.check(cmd); err != nil {
				return err
			}
			if args[0] == args[1] {
				return usagef(cmd, "choose a new id: a node that returns empty must not vote under its old one", "OLD and NEW are the same")
			}
			bound, err := wait.read(cmd)
			if err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			return a.replaceMember(cmd.Context(), c, replacement{args[0], args[1], at, bound, force})
		},
	}
	at.register(cmd)
	wait.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove the old one even if the remaining nodes that answer would be no majority")
	return a.clientFlags(cmd)
}

// replacement is what to replace, and how.
type replacement struct {
	old, fresh string
	at         addresses
	catchUp    time.Duration
	force      bool
}

func (a *App) replaceMember(ctx context.Context, c *cluster, r replacement) error {
	status, err := getStatus(ctx, c)
	if err != nil {
		return err
	}
	members := map[string]*quotav1.Member{}
	for _, member := range status.Members {
		members[member.Id] = member
	}
	if members[r.old] == nil && members[r.fresh] == nil {
		return noMember(r.old)
	}
	if members[r.fresh] == nil {
		a.progress("adding %s as a learner", r.fresh)
		if err := addMember(ctx, c, r.fresh, r.at); err != nil {
			return err
		}
	}
	if members[r.fresh] == nil || !members[r.fresh].Voter {
		a.progress("waiting until %s has caught up, then promoting it", r.fresh)
		if err := promoteWhenReady(ctx, c, r.fresh, r.catchUp, a.progress); err != nil {
			return err
		}
	}
	if members[r.old] != nil {
		a.progress("removing %s", r.old)
		if err := removeMember(ctx, c, r.old, r.force); err != nil {
			return err
		}
	}
	return a.done("replaced %s with %s", r.old, r.fresh)
}

func (a *App) memberTransfer() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "transfer [ID]",
		Short: "Transfer leadership to the named voter, or to the most advanced one",
		Example: `  quotad member transfer
  quotad member transfer n3`,
		Args: arguments("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.TransferLeadershipRequest{}
			if len(args) > 0 {
				request.Id = args[0]
			}
			answer, err := call(cmd.Context(), c, ifNotAccepted, 0, func(ctx context.Context, n node) (*quotav1.TransferLeadershipResponse, error) {
				return n.admin.TransferLeadership(ctx, request)
			})
			if err != nil {
				return absent(request.Id, err)
			}
			return a.done("%s leads", answer.Leader)
		},
	}
	return a.clientFlags(cmd)
}
