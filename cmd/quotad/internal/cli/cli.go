// Package cli is quotad's command line: one file per group of commands. Commands translate flags to API calls and
// answers to tables; they decide nothing. Only Run turns errors into exit codes, and only main ends the process.
package cli

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
)

// App is one run of the program.
type App struct {
	// In, Out and Err are the standard streams.
	In       io.Reader
	Out, Err io.Writer
	// Environ is the environment as os.Environ gives it.
	Environ []string
	// Extra are commands that live in packages of their own.
	Extra []*cobra.Command

	connection connectionFlags
	format     string
}

// Run carries the arguments (without the program's name) out and returns the exit code. Errors are on Err by then.
func (a *App) Run(ctx context.Context, args []string) ExitCode {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	failure := describe(ctx, err)
	failure.print(a.Err, a.format)
	return failure.code
}

func (a *App) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "quotad",
		Short: "A replicated quota store: a fleet asks it before it calls, so that the fleet stays within the provider's limit",
		Long: `quotad is a replicated quota store. Fleets of agents that share one API key ask it before they call, so that the
whole fleet stays within the provider's limit, whatever crashes, stalls or is cut off.

Begin with "quotad dev": one node, throw-away data, and a line to try.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddGroup(
		&cobra.Group{ID: groupServer, Title: "Run a node:"},
		&cobra.Group{ID: groupOperator, Title: "Operate a cluster:"},
		&cobra.Group{ID: groupHolder, Title: "Hold a lease from a shell:"},
		&cobra.Group{ID: groupTask, Title: "Keep agents to a retry budget:"},
		&cobra.Group{ID: groupFiles, Title: "Look into files (no node needed):"},
	)
	inGroup(root, groupServer, a.serveCommand(), a.devCommand(), a.configCommand(), a.tokenCommand(), a.certCommand())
	inGroup(root, groupOperator, a.quotaCommand(), a.presetCommand(), a.workflowCommand(), a.leaseCommand(), a.usageCommand(),
		a.limitsCommand(), a.clockCommand(), a.statusCommand(), a.memberCommand(), a.backupCommand(), a.restoreCommand())
	inGroup(root, groupTask, a.taskCommand())
	inGroup(root, groupHolder, a.reserveCommand(), a.consumeCommand(), a.settleCommand(), a.renewCommand(),
		a.releaseCommand())
	inGroup(root, groupFiles, a.verifyCommand(), a.inspectCommand(), a.messagesCommand(), a.migrateCommand())
	root.AddCommand(a.versionCommand(), manCommand(), exitCodesTopic())
	root.AddCommand(a.Extra...)
	return root
}

// The groups of `quotad help`.
const (
	groupServer   = "server"
	groupOperator = "operator"
	groupHolder   = "holder"
	groupTask     = "task"
	groupFiles    = "files"
)

func inGroup(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, command := range commands {
		command.GroupID = group
		root.AddCommand(command)
	}
}

// group is a command that only holds others: alone it prints its help, and a wrong word gets the nearest right one.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use: use, Short: short, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(commands...)
	return command
}

// noArguments refuses words after a command; where it has subcommands, they were meant.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if len(names) == 0 {
		return usagef(cmd, "", "%q: this command takes no arguments", args[0])
	}
	hint := suggest.Hint(args[0], names)
	if hint == "" {
		hint = "commands: " + strings.Join(names, ", ")
	}
	return usagef(cmd, hint, "unknown command %q", args[0])
}

// arguments demands exactly the named arguments.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef(cmd, "", "%s is missing", names[len(args)])
		case len(args) > len(names):
			return usagef(cmd, "", "%q is one argument too many", args[len(names)])
		}
		return nil
	}
}

// flagError adds the nearest known flag to what pflag says.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return noArguments(cmd, words) // the flag was meant for the subcommand whose name is wrong
	}
	hint := ""
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		collect := func(f *pflag.Flag) { names = append(names, "--"+f.Name) }
		cmd.Flags().VisitAll(collect)
		cmd.InheritedFlags().VisitAll(collect)
		hint = suggest.Hint("--"+unknown.GetSpecifiedName(), names)
	}
	return usagef(cmd, hint, "%s", err.Error())
}

// lookup returns an environment variable of this run.
func (a *App) lookup(name string) (string, bool) {
	value, found := "", false
	for _, variable := range a.Environ {
		if key, v, ok := strings.Cut(variable, "="); ok && key == name {
			value, found = v, true // the last one counts, as in a process's environment
		}
	}
	return value, found
}
