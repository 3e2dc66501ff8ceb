package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/child"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/taskrun"
	"github.com/quotad/quotad/rpc/signals"
)

// taskRunFlags are the options of task run.
type taskRunFlags struct {
	task, holder, done, patterns string
	ttl, wait                    string
	quotas                       []string
	maxFailures                  int
	untilDone                    bool
}

func (a *App) taskRun() *cobra.Command {
	var f taskRunFlags
	cmd := &cobra.Command{
		Use:   "run --task ID [flags] -- COMMAND [ARG]...",
		Short: "Run an agent under its task's retry budget",
		Long: `Run a command as an attempt of a task: ask whether an attempt may begin, run the command as a child process, and report its
end to the cluster. The child gets this process's standard input and signals; its output passes through unchanged. The
command reads the output line by line for messages of agent tools about limits, and for the done pattern.

A failed attempt counts against the task's budget: the next may begin 5 min after the first failure, 15 min after the second,
30 min after later ones. At --max-failures the task is shelved, until "quotad task retry". An attempt that meets a limit
does not count; the next waits as long as the provider says, or 1 min, or 30 min if the plan is used up. A task that
finished and then met a limit is done. While a quota of --quota is closed or nothing is available of it, no attempt begins; a
limit that the child meets closes these quotas for all holders.

Exit codes:

  0    the task is done, now or before
  90   the task is shelved
  91   not begun: another attempt runs, it is too early, or a quota is closed or used up; retry later
  92   the attempt met a limit; retry later
  93   the attempt was lost: it was not renewed before its deadline, and the command was stopped
  126  the command could not be started; 127: the command does not exist, and no attempt began

Otherwise the attempt failed, and the code is the command's own (128 plus the signal's number, if a signal ended it), or 1 if
the command exited with 0 without the done pattern. Errors before the attempt have the codes of every command.`,
		Example: `  quotad task run --task issue-117 -- claude -p "fix issue 117"
  quotad task run --task issue-117 --done-pattern '^TASK_COMPLETE$' --quota anthropic/plan --wait 6h --until-done -- ./agent.sh`,
		DisableFlagsInUseLine: true, // the command is the last argument
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runTask(cmd, &f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&f.task, "task", "", "name of the task, up to 128 bytes")
	flags.StringVar(&f.holder, "holder", "", "name of the holder (default: from this program and machine)")
	flags.StringSliceVar(&f.quotas, "quota", nil, "quota that the command uses; repeatable")
	flags.IntVar(&f.maxFailures, "max-failures", 0, "failures until the task is shelved, 1 to 100 (default: unchanged, 3 for a new task)")
	flags.StringVar(&f.done, "done-pattern", "", "regular expression that matches a line of standard output of a finished task")
	flags.StringVar(&f.patterns, "patterns", "", "YAML file of messages about limits, in addition to the built-in ones")
	flags.StringVar(&f.wait, "wait", "", "how long to wait until an attempt may begin (default: no wait)")
	flags.BoolVar(&f.untilDone, "until-done", false, "continue with the next attempt while it may begin within --wait")
	flags.StringVar(&f.ttl, "ttl", "", "how long an attempt lives after its last renewal (default 10m)")
	_ = cmd.MarkFlagFilename("patterns", "yaml", "yml")
	return a.clientFlags(cmd)
}

func (a *App) runTask(cmd *cobra.Command, f *taskRunFlags, args []string) error {
	runner, err := a.taskRunner(cmd, f, args)
	if err != nil {
		return err
	}
	if err := child.Find(args[0]); err != nil {
		return notStarted(err)
	}
	connected, err := a.goClient(cmd, f.holder)
	if err != nil {
		return err
	}
	runner.Client = connected
	result, err := runner.Run(cmd.Context())
	_ = connected.Close() // the attempt has ended, or its end is reported as unknown
	switch {
	case errors.Is(err, client.ErrTaskDone):
		runner.Tell("task %s is done", f.task)
		return nil
	case err != nil:
		return taskError(f.task, err)
	}
	return taskVerdict(f.task, result)
}

// notStarted is the error for a command that did not start, with a shell's exit code for that.
func notStarted(err error) error {
	if errors.As(err, new(*child.MissingError)) {
		return fail(ExitNoCommand, "", "%w", err)
	}
	return fail(ExitNotStarted, "", "%w", err)
}

// taskRunner makes a runner from the flags.
func (a *App) taskRunner(cmd *cobra.Command, f *taskRunFlags, args []string) (*taskrun.Runner, error) {
	switch {
	case f.task == "":
		return nil, usagef(cmd, "", "--task is missing")
	case len(args) == 0:
		return nil, usagef(cmd, "put it last, after --", "the command is missing")
	case cmd.Flags().Changed("max-failures") && (f.maxFailures < 1 || f.maxFailures > 100):
		return nil, usagef(cmd, "", "--max-failures %d is not within 1 to 100", f.maxFailures)
	}
	r := &taskrun.Runner{
		Request: client.TaskRequest{Task: f.task, Quotas: f.quotas, MaxFailures: f.maxFailures},
		Args:    args, In: a.In, Out: a.Out, Err: a.Err, UntilDone: f.untilDone,
		Tell: func(format string, values ...any) {
			_, _ = fmt.Fprintln(a.Err, "quotad: "+output.Visible(fmt.Sprintf(format, values...)))
		},
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
	if cmd.Flags().Changed("ttl") && (r.Request.TTL < time.Second || r.Request.TTL > 24*time.Hour) {
		return nil, usagef(cmd, "leave it out for 10m", "--ttl %s is not within 1s to 24h", f.ttl)
	}
	if f.done != "" {
		pattern, err := regexp.Compile(f.done)
		if err != nil {
			return nil, usagef(cmd, "use the syntax of RE2", "--done-pattern: %w", err)
		}
		r.Done = pattern
	}
	r.Texts = signals.BuiltinTexts()
	if f.patterns != "" {
		file, err := os.ReadFile(f.patterns)
		if err != nil {
			return nil, notReadable(err)
		}
		if r.Texts, err = r.Texts.With(file); err != nil {
			return nil, fail(ExitUsage, "", "%s: %w", f.patterns, err)
		}
	}
	return r, nil
}

// taskVerdict turns the outcome of the last attempt into an exit code.
func taskVerdict(task string, result taskrun.Result) error {
	code := ExitCode(cmp.Or(result.Code, int(ExitFailure)))
	hint := ""
	switch result.Ending.Outcome {
	case client.OutcomeDone, client.OutcomeFinishedThenLimited:
		return nil
	case client.OutcomeSaturated, client.OutcomePlanExhausted:
		code = ExitLimited
	case client.OutcomeFailed:
	}
	if result.Ended.Shelved {
		code, hint = ExitShelved, fmt.Sprintf(`see why, then "quotad task retry %s"`, task)
	}
	return fail(code, hint, "task %s: %s", task, result.Words())
}

// taskError turns an error of the Go client, or of the command's start, into one with an exit code and message of this
// program.
func taskError(task string, err error) error {
	if errors.Is(err, context.Canceled) {
		return context.Canceled // a signal before anything began
	}
	if refusal, ok := errors.AsType[*client.RefusalError](err); ok {
		code := ExitLater
		if refusal.Reason == client.ReasonTaskShelved {
			code = ExitShelved
		}
		return fail(code, refusal.Advice, "task %s: %s", task, taskrun.Why(refusal))
	}
	var lost *taskrun.LostError
	var wrong *client.RequestError
	switch {
	case errors.As(err, &lost):
		return fail(ExitLost, "it counts as a failure", "task %s: %w", task, err)
	case errors.As(err, new(*child.NotStartedError)):
		return notStarted(err)
	case errors.As(err, &wrong):
		return fail(exitOfReason(wrong.Reason), wrong.Hint, "task %s: %s (%s)", task, wrong.Message, wrong.Reason)
	case errors.As(err, new(*client.NotAcceptedError)):
		if _, answered := errors.AsType[client.Reason](err); !answered && errors.Is(err, client.ErrClusterAway) {
			return fail(ExitUnavailable, "is a node running there? name others with --server or QUOTAD_SERVER",
				"task %s: %s", task, strings.TrimPrefix(said(err), "not accepted: "))
		}
		return fail(ExitUnavailable, "try again, or ask another node with --server", "task %s: %s", task, said(err))
	case errors.As(err, new(*client.UnknownOutcomeError)):
		return fail(ExitUnknown, "an attempt whose end the cluster does not receive counts as a failure", "task %s: %s", task, said(err))
	}
	return err
}

// said is an error's text without the prefix of its package.
func said(err error) string { return strings.TrimPrefix(err.Error(), "quotad: ") }

// exitOfReason maps the reasons for which the cluster refuses a task call to exit codes.
func exitOfReason(reason client.Reason) ExitCode {
	switch reason { //nolint:exhaustive // the others have no code of their own
	case client.ReasonInvalid:
		return ExitUsage
	case client.ReasonUnknownQuota, client.ReasonUnknownTask:
		return ExitNotFound
	case client.ReasonNoToken, client.ReasonNotAllowed, client.ReasonForeignTask:
		return ExitNotAllowed
	case client.ReasonTasksFull, client.ReasonSessionsFull:
		return ExitUnavailable
	}
	return ExitFailure
}
