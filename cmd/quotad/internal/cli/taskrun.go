package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/signals"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/taskrun"
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
		Long: `Asks whether an attempt of the task may begin, runs the command as a child process, and tells the cluster how it went.
The child has this process's standard input, what it prints is passed through as it comes, and signals are passed on to
it. What it prints is read along, line by line: messages of agent tools about limits, and the done pattern.

An attempt that fails uses up one of the task's failures: the next may begin 5 min after the first, 15 min after the second,
30 min after later ones. At --max-failures the task is shelved, until "quotad task retry". An attempt that meets a limit
uses up none and waits as long as the provider says, or 1 min; 30 min where the plan is used up. A finished task that then
met a limit is done. While a quota that --quota names is closed nothing begins, and a limit that the child meets closes
them for all.

Exit codes:

  0    the task is done, now or before
  90   the task is shelved
  91   not begun: an attempt is under way, or it is too early, or a quota is closed; come back
  92   the attempt met a limit; come back
  93   the attempt was lost: the cluster heard nothing of it until its deadline, and the command was stopped
  126  the command could not be started; 127: there is no such command, and nothing was begun

Else the attempt failed and the code is the command's own (128 and the signal's number, if one ended it), or 1 where the
command ended with 0 without the done pattern. Codes of what is wrong before it begins are those of every command.`,
		Example: `  quotad task run --task issue-117 -- claude -p "fix issue 117"
  quotad task run --task issue-117 --done-pattern '^TASK_COMPLETE$' --quota anthropic/plan --wait 6h --until-done -- ./agent.sh`,
		DisableFlagsInUseLine: true, // the command comes last
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runTask(cmd, &f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&f.task, "task", "", "the task: a name of your choice, up to 128 bytes")
	flags.StringVar(&f.holder, "holder", "", "who works on it: a stable name (default: this program's and machine's)")
	flags.StringSliceVar(&f.quotas, "quota", nil, "a quota that it lives on; may be given again")
	flags.IntVar(&f.maxFailures, "max-failures", 0, "failures at which the task is shelved, 1 to 100 (default: as before, 3 for a new one)")
	flags.StringVar(&f.done, "done-pattern", "", "regular expression; a finished task prints a line on standard output that it fits")
	flags.StringVar(&f.patterns, "patterns", "", "YAML file of messages about limits, besides the built-in ones")
	flags.StringVar(&f.wait, "wait", "", "how long to wait until an attempt may begin (default: not at all)")
	flags.BoolVar(&f.untilDone, "until-done", false, "go on with the next attempt, as long as it may begin within --wait")
	flags.StringVar(&f.ttl, "ttl", "", "how long an attempt lives after its runner's last word (default 10m)")
	_ = cmd.MarkFlagFilename("patterns", "yaml", "yml")
	return a.clientFlags(cmd)
}

func (a *App) runTask(cmd *cobra.Command, f *taskRunFlags, args []string) error {
	runner, err := a.taskRunner(cmd, f, args)
	if err != nil {
		return err
	}
	switch _, err := exec.LookPath(args[0]); {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return fail(ExitNoCommand, "", "%s: no such command", args[0])
	case err != nil:
		return fail(ExitNotStarted, "", "%s cannot be run: %w", args[0], errors.Unwrap(err))
	}
	connected, err := a.goClient(cmd, f.holder)
	if err != nil {
		return err
	}
	runner.Client = connected
	result, err := runner.Run(cmd.Context())
	_ = connected.Close() // the attempt has ended, or its end is known to be unknown
	switch {
	case errors.Is(err, client.ErrTaskDone):
		runner.Tell("task %s is done", f.task)
		return nil
	case err != nil:
		return taskError(f.task, err)
	}
	return taskVerdict(f.task, result)
}

// taskRunner makes a runner of what the flags say.
func (a *App) taskRunner(cmd *cobra.Command, f *taskRunFlags, args []string) (*taskrun.Runner, error) {
	switch {
	case f.task == "":
		return nil, usagef(cmd, "", "--task is missing")
	case len(args) == 0:
		return nil, usagef(cmd, "it comes last, after --", "the command is missing")
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
			return nil, usagef(cmd, "in the syntax of RE2", "--done-pattern: %w", err)
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

// taskVerdict makes an exit code of how the last attempt went.
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

// taskError is an error of the Go client, or of the command's start, with the code and words of this program.
func taskError(task string, err error) error {
	if errors.Is(err, context.Canceled) {
		return context.Canceled // a signal, before anything began
	}
	if refusal, ok := errors.AsType[*client.RefusalError](err); ok {
		code := ExitLater
		if refusal.Reason == client.TaskShelved {
			code = ExitShelved
		}
		return fail(code, refusal.Advice, "task %s: %s", task, taskrun.Why(refusal))
	}
	var lost *taskrun.LostError
	var notStarted *taskrun.NotStartedError
	var wrong *client.RequestError
	switch {
	case errors.As(err, &lost):
		return fail(ExitLost, "it counts as a failure", "task %s: %w", task, err)
	case errors.As(err, &notStarted):
		return fail(ExitNotStarted, "", "%w", err)
	case errors.As(err, &wrong):
		return fail(exitOfReason(wrong.Reason), wrong.Hint, "task %s: %s (%s)", task, wrong.Message, wrong.Reason)
	case errors.As(err, new(*client.NotAcceptedError)):
		return fail(ExitUnavailable, "try again, or ask another node with --server", "task %s: %s", task, said(err))
	case errors.As(err, new(*client.UnknownOutcomeError)):
		return fail(ExitUnknown, "what the cluster did not hear of counts as a failure", "task %s: %s", task, said(err))
	}
	return err
}

// said is an error's text without the name of the package that it comes from.
func said(err error) string { return strings.TrimPrefix(err.Error(), "quotad: ") }

// exitOfReason maps the reasons for which the cluster does not take a call about a task.
func exitOfReason(reason client.Reason) ExitCode {
	switch reason { //nolint:exhaustive // the others have no code of their own
	case client.Invalid:
		return ExitUsage
	case client.UnknownQuota, client.UnknownTask:
		return ExitNotFound
	case client.NoToken, client.NotAllowed, client.ForeignTask:
		return ExitNotAllowed
	case client.TasksFull, client.SessionsFull:
		return ExitUnavailable
	}
	return ExitFailure
}
