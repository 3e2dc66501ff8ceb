// Package cli is quotad's command line: one file per group of commands. Commands translate flags to API calls and answers
// to tables; they contain no policy. Only Run turns errors into exit codes, and only main ends the process.
package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
	"github.com/quotad/quotad/cmd/quotad/internal/usage"
)

// App is one run of the program.
type App struct {
	// In, Out and Err are the standard streams.
	In       io.Reader
	Out, Err io.Writer
	// Environ is the environment in the form of os.Environ.
	Environ []string
	// Extra are commands from packages of their own.
	Extra []*cobra.Command

	connection connectionFlags
	format     string
}

// Run runs the command of args, which omit the program's name, and returns the exit code. It has printed errors to Err.
func (a *App) Run(ctx context.Context, args []string) ExitCode {
	root := a.Root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	if ended, ok := errors.AsType[*childExit](err); ok {
		return ended.code
	}
	failure := describe(ctx, err)
	format := a.format
	if command, _, err := root.Find(args); err == nil && asksForJSON(command, args) {
		format = formatJSON
	}
	failure.print(a.Err, format)
	return failure.code
}

// asksForJSON reports whether a command line requests JSON, even where a wrong flag before it ended the parsing.
func asksForJSON(command *cobra.Command, args []string) bool {
	short := "-o"
	if o := command.Flags().ShorthandLookup("o"); o != nil && o.Name != "output" {
		short = "--output" // -o is a different flag here
	}
	for i, arg := range args {
		switch arg {
		case "--":
			return false
		case short, "--output":
			if i+1 < len(args) && args[i+1] == formatJSON {
				return true
			}
		case short + formatJSON, short + "=" + formatJSON, "--output=" + formatJSON:
			return true
		}
	}
	return false
}

// Root returns the tree of commands.
func (a *App) Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "quotad",
		Short: "Keep a fleet of agents within its provider's limits",
		Long: `quotad is a replicated quota store. Agents that share one API key ask it before each call, so that the fleet stays within
the provider's limits, also when agents or nodes crash, stall or lose their network.

Start with "quotad dev": one node, throw-away data, and a command to try.`,
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
		&cobra.Group{ID: groupHolder, Title: "Use quotas from a shell:"},
		&cobra.Group{ID: groupTask, Title: "Enforce a retry budget:"},
		&cobra.Group{ID: groupFiles, Title: "Inspect files (no node needed):"},
	)
	inGroup(root, groupServer, a.serveCommand(), a.devCommand(), a.gatewayCommand(), a.configCommand(), a.tokenCommand(),
		a.certCommand())
	inGroup(root, groupOperator, a.quotaCommand(), a.presetCommand(), a.workflowCommand(), a.leaseCommand(), a.usageCommand(),
		a.limitsCommand(), a.clockCommand(), a.statusCommand(), a.topCommand(), a.watchCommand(), a.doctorCommand(),
		a.memberCommand(), a.backupCommand(), a.restoreCommand())
	inGroup(root, groupTask, a.taskCommand())
	inGroup(root, groupHolder, a.runCommand(), a.reserveCommand(), a.consumeCommand(), a.settleCommand(), a.renewCommand(),
		a.releaseCommand(), a.reportCommand())
	inGroup(root, groupFiles, a.verifyCommand(), a.inspectCommand(), a.messagesCommand(), a.migrateCommand())
	root.AddCommand(a.versionCommand(), manCommand(), exitCodesTopic())
	root.AddCommand(a.Extra...)
	checkOwn(root)
	return root
}

// checkOwn makes the commands that cobra adds reject wrong calls as all others do.
func checkOwn(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, command := range root.Commands() {
		switch command.Name() {
		case "help":
			command.Args = knownTopic
		case "completion":
			command.Args, command.RunE = noArguments, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range command.Commands() {
				shell.Args = noArguments
			}
		}
	}
}

// knownTopic requires the path of a command or topic.
func knownTopic(help *cobra.Command, path []string) error {
	at := help.Root()
	for _, word := range path {
		next := slices.IndexFunc(at.Commands(), func(sub *cobra.Command) bool { return sub.Name() == word || sub.HasAlias(word) })
		if next < 0 {
			return noArguments(at, []string{word})
		}
		at = at.Commands()[next]
	}
	return nil
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

// group is a command that only holds subcommands: alone it prints its help, and for a wrong word it suggests the nearest
// right one.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use: use, Short: short, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(commands...)
	return command
}

// All commands reject wrong calls with the messages of package usage.
var (
	usagef      = usage.Errorf
	arguments   = usage.Arguments
	noArguments = usage.NoArguments
)

// flagError adds the nearest known flag to pflag's message.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return noArguments(cmd, words) // the flag belongs to the subcommand whose name is wrong
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

// home returns the user's own folder: Windows names it USERPROFILE.
func (a *App) home() string {
	home, _ := a.lookup("HOME")
	profile, _ := a.lookup("USERPROFILE")
	return cmp.Or(home, profile)
}
