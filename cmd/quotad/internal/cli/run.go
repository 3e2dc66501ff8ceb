package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/child"
	"github.com/quotad/quotad/cmd/quotad/internal/leaserun"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
)

// runFlags are the options of run.
type runFlags struct {
	quotas                   []string
	holder, class, wait, ttl string
	stopOnLoss               bool
}

func (a *App) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --quota QUOTA[=AMOUNT] [flags] -- COMMAND [ARG]...",
		Short: "Run a command while holding amounts of quotas",
		Long: `Reserve amounts, run a command, and release them. Slots are held and renewed while the command runs. Amounts of windows and
rates are consumed just before the command starts, so a command that makes one call should make it at once. They count as
used, and return only if the command does not start. A command that knows what it used settles them itself, such as by
"quotad settle --actual openai/tokens=612": its lease is in QUOTAD_LEASE and QUOTAD_FENCE.

The command gets this process's standard streams. SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded:
without a terminal to its whole process group; in a terminal, whose keys reach the group anyway, to the command alone.

If the cluster cannot be reached until the lease's deadline, or an operator revokes it, others may get the slots: a warning
says so, and the command continues. With --stop-on-loss it gets SIGTERM, and SIGKILL ten seconds later.

Exit codes in addition to the command's own (128 plus the signal's number, if a signal ended it):

  2    wrong usage
  93   the lease was lost, and --stop-on-loss stopped the command
  124  refused: not granted within --wait; the command did not start
  125  quotad failed, and the command did not start: no node answers, not allowed, no such quota
  126  the command could not be started; 127: the command does not exist
  130  interrupted before the command started`,
		Example: `  quotad run --quota anthropic/streams=1 --wait 10m -- claude -p "fix issue 117"
  quotad run --quota github/core --quota github/concurrent=1 --holder ci -- gh pr list`,
		DisableFlagsInUseLine: true, // the command is the last argument
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd, &f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringSliceVar(&f.quotas, "quota", nil, "quota to reserve, QUOTA or QUOTA=AMOUNT; repeatable")
	flags.StringVar(&f.wait, "wait", "", "how long to wait for the grant (default: no wait)")
	flags.StringVar(&f.holder, "holder", "", "name of the holder (default: from this program and machine)")
	flags.StringVar(&f.class, "class", "", "class below the holder's own: critical, standard, background")
	flags.StringVar(&f.ttl, "ttl", "", "length of the lease, which is renewed at two fifths (default 5m)")
	flags.BoolVar(&f.stopOnLoss, "stop-on-loss", false, "stop the command when its lease is lost")
	return a.clientFlags(cmd)
}

func (a *App) run(cmd *cobra.Command, f *runFlags, args []string) error {
	runner, err := a.leaseRunner(cmd, f, args)
	if err != nil {
		return err
	}
	if err := child.Find(args[0]); err != nil {
		return notStarted(err)
	}
	// This command's own errors cover what the client would log.
	connected, err := a.goClient(cmd, f.holder, client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	runner.Client = connected
	result, err := runner.Run(cmd.Context())
	_ = connected.Close() // held amounts have been returned by now, or return at the deadline
	switch {
	case err != nil:
		return runError(err)
	case result.Lost != nil && f.stopOnLoss:
		return fail(ExitLost, "", "the lease was lost, and the command stopped: %s", said(result.Lost))
	case result.Code != 0:
		return &childExit{code: ExitCode(result.Code)}
	}
	return nil
}

// leaseRunner makes a runner from the flags.
func (a *App) leaseRunner(cmd *cobra.Command, f *runFlags, args []string) (*leaserun.Runner, error) {
	switch {
	case len(f.quotas) == 0:
		return nil, usagef(cmd, "such as --quota anthropic/streams=1", "--quota is missing")
	case len(args) == 0:
		return nil, usagef(cmd, "put it last, after --", "the command is missing")
	}
	items, err := readItems(cmd, f.quotas, 1)
	if err != nil {
		return nil, err
	}
	r := &leaserun.Runner{
		Args: args, Environ: a.Environ, In: a.In, Out: a.Out, Err: a.Err, StopOnLoss: f.stopOnLoss,
		Tell: func(format string, values ...any) {
			_, _ = fmt.Fprintln(a.Err, "quotad: "+output.Visible(fmt.Sprintf(format, values...)))
		},
	}
	for _, item := range items {
		if slices.ContainsFunc(r.Request.Items, func(i client.Item) bool { return i.Quota == item.Quota }) {
			return nil, usagef(cmd, "add the amounts up", "--quota names %s twice", item.Quota)
		}
		r.Request.Items = append(r.Request.Items, client.Item{Quota: item.Quota, Amount: item.GetAmount()})
	}
	for _, length := range []struct {
		flag, text string
		to         *time.Duration
	}{{"ttl", f.ttl, &r.Request.TTL}, {"wait", f.wait, &r.Wait}} {
		d, err := durationFlag(cmd, length.flag, length.text)
		if err != nil {
			return nil, err
		}
		*length.to = d.AsDuration()
	}
	if f.ttl != "" && (r.Request.TTL < time.Second || r.Request.TTL > 24*time.Hour) {
		return nil, usagef(cmd, "leave it out for 5m", "--ttl %s is not within 1s to 24h", f.ttl)
	}
	if f.class != "" {
		class, ok := quotafile.ParseClass(f.class)
		if !ok {
			return nil, usagef(cmd, "critical, standard or background", "unknown --class %q", f.class)
		}
		r.Request.Class = client.Class(class)
	}
	return r, nil
}

// childExit ends this process with the exit code of the command that it ran. It prints no message: the command has reported
// its failure.
type childExit struct{ code ExitCode }

// Error implements error.
func (e *childExit) Error() string { return child.ExitWords(int(e.code)) }

// runError is an error before the command ran, with an exit code that commands seldom use themselves.
func runError(err error) error {
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	refusal, refused := errors.AsType[*client.RefusalError](err)
	wrong, isWrong := errors.AsType[*client.RequestError](err)
	switch {
	case refused:
		text := fmt.Sprintf("refused: %s of %s, %d available", refusal.Reason, refusal.Quota, refusal.Available)
		hint := cmp.Or(refusal.Advice, "wait longer with --wait")
		if refusal.RetryAfter >= 0 { // the advice speaks of that time, and of the queue
			text += ", retry after " + roughly(refusal.RetryAfter)
			hint += "; --wait waits in the queue"
		}
		return fail(ExitNotGranted, hint, "%s", text)
	case errors.As(err, new(*child.NotStartedError)), errors.As(err, new(*child.MissingError)):
		return notStarted(err)
	case isWrong:
		return fail(ExitFailed, wrong.Hint, "%s (%s)", wrong.Message, wrong.Reason)
	case errors.Is(err, client.ErrClusterAway):
		return fail(ExitFailed, "is a node running there? name others with --server or QUOTAD_SERVER", "%s", strings.TrimPrefix(said(err),
			"not accepted: "))
	}
	return fail(ExitFailed, "try again, or ask another node with --server", "%s", said(err))
}

// roughly formats a duration for people.
func roughly(d time.Duration) string {
	return max(d.Round(100*time.Millisecond), 100*time.Millisecond).String()
}
