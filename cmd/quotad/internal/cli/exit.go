package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/cmd/quotad/internal/usage"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/rpc/quotav1"
)

// ExitCode is the exit code of a process. Scripts depend on the numbers, so they never change.
type ExitCode int

// The exit codes.
const (
	ExitOK          ExitCode = 0
	ExitFailure     ExitCode = 1
	ExitUsage       ExitCode = 2
	ExitNotFound    ExitCode = 3
	ExitRefused     ExitCode = 4
	ExitUnavailable ExitCode = 5
	ExitUnknown     ExitCode = 6
	ExitNotAllowed  ExitCode = 7
	ExitInterrupted ExitCode = 130

	// Only of task run, in addition to the codes of its command.
	ExitShelved ExitCode = 90
	ExitLater   ExitCode = 91
	ExitLimited ExitCode = 92

	// Only of run; the same codes as timeout and env use.
	ExitNotGranted ExitCode = 124
	ExitFailed     ExitCode = 125

	// Of both commands.
	ExitLost       ExitCode = 93
	ExitNotStarted ExitCode = 126
	ExitNoCommand  ExitCode = 127
)

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "Explain the exit codes",
		Long: `Exit codes, the same for every command:

    0  done
    1  failed for a reason without a code of its own; status --check: not healthy, or no answer
    2  wrong usage: a flag, an argument, a file or a field of the request; a wrong configuration of a node or gateway, also
       one that names a file that does not exist
    3  not found: a quota, lease, member, or a file that the command works on
    4  refused: not granted (reserve, consume), a stale fence, a quota in use, too late to return an amount; serve: the disk
       is incomplete, damaged, or has an uncommitted restore, or the node was removed from its cluster
    5  unavailable: nothing happened, the same command is safe to repeat (no node answers, no leader, overloaded)
    6  unknown outcome: the command may have happened, or may happen later; check before you repeat it
    7  not allowed: no token, or one that does not allow this
  130  interrupted

"quotad run" and "quotad task run" have more codes, and otherwise exit with their command's code: see their help.

With --output json an error is one JSON object on standard error: error, hint, code, exit, and reason, quota, budget,
field, leader and retryAfter if the cluster sent them.`,
	}
}

// failure is an error as a user sees it.
type failure struct {
	code    ExitCode
	message string
	hint    string
	// info is the cluster's typed detail; nil for errors of our own.
	info *quotav1.ErrorInfo
	err  error
}

func (f *failure) Error() string { return f.message }
func (f *failure) Unwrap() error { return f.err }

// fail makes an error with a code and a hint, which may be empty.
func fail(code ExitCode, hint, format string, values ...any) error {
	err := fmt.Errorf(format, values...)
	return &failure{code: code, message: err.Error(), hint: hint, err: errors.Unwrap(err)}
}

// describe returns the code, message and hint of any error that a command can end with.
func describe(ctx context.Context, err error) *failure {
	var known *failure
	var rpc *connect.Error
	var problems strictyaml.Problems
	var wrongConfig *config.Error
	var wrongUsage *usage.Error
	var noNodes *logstore.UnsupportedError
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(ctx.Err(), context.Canceled):
		return &failure{code: ExitInterrupted, message: "interrupted"}
	case errors.As(err, &noNodes):
		return &failure{
			code: ExitFailure, message: noNodes.Error(), err: err,
			hint: "run nodes on Linux or macOS, and name one with --server: all commands that start no node and open no data directory work here",
		}
	case errors.As(err, &rpc):
		return describeRPC(rpc)
	case !errors.As(err, &wrongUsage) && errors.As(err, &wrongConfig):
		return &failure{
			code: ExitUsage, message: err.Error(),
			hint: "\"quotad serve --help\" explains the settings; \"quotad config check\" with the same ones shows every mistake",
		}
	case errors.As(err, &problems):
		return &failure{code: ExitUsage, message: err.Error()}
	case errors.As(err, &wrongUsage) && errors.Is(err, os.ErrNotExist):
		return &failure{code: ExitNotFound, message: err.Error()}
	case errors.As(err, &wrongUsage):
		return &failure{code: ExitUsage, message: err.Error(), hint: wrongUsage.Hint}
	}
	return &failure{code: ExitFailure, message: err.Error()}
}

// describeRPC describes an error of the API by its code and its typed detail.
func describeRPC(err *connect.Error) *failure {
	info := infoOf(err)
	f := &failure{code: exitOf(err.Code(), info), message: err.Message(), info: info, err: err}
	switch {
	case info != nil && info.Hint != "":
		f.hint = info.Hint
	case neverSent(err):
		f.hint = "is a node running there? name others with --server or QUOTAD_SERVER"
	case f.code == ExitUnknown:
		f.hint = "it may have happened: check before you repeat it"
	}
	return f
}

// exitOf maps an API error to an exit code. A deadline that passes leaves the outcome unknown; callers that only read map
// it themselves.
func exitOf(code connect.Code, info *quotav1.ErrorInfo) ExitCode {
	if info != nil && info.Reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME {
		return ExitUnknown
	}
	switch code {
	case connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return ExitUsage
	case connect.CodeNotFound:
		return ExitNotFound
	case connect.CodeFailedPrecondition, connect.CodeAlreadyExists, connect.CodeOutOfRange, connect.CodeAborted:
		return ExitRefused
	case connect.CodeUnavailable, connect.CodeResourceExhausted:
		return ExitUnavailable
	case connect.CodeDeadlineExceeded:
		return ExitUnknown
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return ExitNotAllowed
	case connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
		return ExitFailure
	default:
		return ExitFailure
	}
}

// infoOf returns the typed detail of an error; nil: it has none.
func infoOf(err *connect.Error) *quotav1.ErrorInfo {
	for _, detail := range err.Details() {
		if value, valueErr := detail.Value(); valueErr == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// neverSent reports whether no connection was made, so that nothing can have happened.
func neverSent(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) && operation.Op == "dial"
}

// print writes the error: for people a message, the details and a hint; for programs one JSON object.
func (f *failure) print(w io.Writer, format string) {
	if format == formatJSON {
		f.printJSON(w)
		return
	}
	for line := range strings.Lines(f.message) {
		_, _ = fmt.Fprintln(w, "quotad: "+output.Visible(strings.TrimSuffix(line, "\n")))
	}
	if details := f.details(); len(details) > 0 {
		_, _ = fmt.Fprintln(w, "  "+output.Visible(strings.Join(details, "  ")))
	}
	if f.hint != "" {
		_, _ = fmt.Fprintln(w, "hint: "+output.Visible(f.hint))
	}
}

func (f *failure) details() []string {
	if f.info == nil {
		return nil
	}
	var all []string
	add := func(name, value string) {
		if value != "" {
			all = append(all, name+": "+value)
		}
	}
	add("reason", reasonWord(f.info.Reason))
	add("quota", f.info.Quota)
	add("budget", f.info.Budget)
	add("field", f.info.Field)
	if f.info.FenceCounter != 0 {
		add("fence counter", output.Int(f.info.FenceCounter))
	}
	add("leader", strings.TrimSpace(f.info.Leader+" "+f.info.LeaderAddress))
	if f.info.RetryAfter != nil {
		add("retry after", output.Duration(f.info.RetryAfter))
	}
	return all
}

func (f *failure) printJSON(w io.Writer) {
	object := map[string]any{"error": f.message, "exit": int(f.code)}
	add := func(name, value string) {
		if value != "" {
			object[name] = value
		}
	}
	add("hint", f.hint)
	if rpc, ok := errors.AsType[*connect.Error](f.err); ok {
		add("code", rpc.Code().String())
	}
	if f.info != nil {
		add("reason", f.info.Reason.String())
		add("quota", f.info.Quota)
		add("budget", f.info.Budget)
		add("field", f.info.Field)
		add("leader", f.info.Leader)
		add("leaderAddress", f.info.LeaderAddress)
		if f.info.RetryAfter != nil {
			object["retryAfter"] = f.info.RetryAfter.AsDuration().Seconds()
		}
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(object) // nobody is left to report an error to
}

// reasonWord is a reason without its prefix: EXHAUSTED.
func reasonWord(reason quotav1.Reason) string {
	if reason == quotav1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return strings.TrimPrefix(reason.String(), "REASON_")
}
