// Package usage rejects wrong calls of commands: every command of every package reports mistakes in its arguments or flags
// with the same messages, and with a way out.
package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
)

// Error is a wrong call of a command.
type Error struct {
	// Hint is the way out.
	Hint string
	err  error
}

// Error implements error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the mistake.
func (e *Error) Unwrap() error { return e.err }

// Errorf returns the error for a wrong call. Without a hint of its own it refers to the command's help.
func Errorf(cmd *cobra.Command, hint, format string, values ...any) error {
	if hint == "" {
		hint = `"` + cmd.CommandPath() + ` --help" shows how`
	}
	return WithHint(hint, format, values...)
}

// WithHint returns the error for a wrong call, for code that has no access to the command.
func WithHint(hint, format string, values ...any) error {
	return &Error{Hint: hint, err: fmt.Errorf(format, values...)}
}

// Arguments requires exactly the named arguments, with the names of the command's usage line: [NAME] is optional, and a
// last NAME... stands for one or more.
func Arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return Errorf(cmd, "", "%s is missing", strings.TrimSuffix(name, "..."))
			}
		}
		repeats := len(names) > 0 && strings.HasSuffix(names[len(names)-1], "...")
		if len(args) > len(names) && !repeats {
			return Errorf(cmd, "", "%q is one argument too many", args[len(names)])
		}
		return nil
	}
}

// NoArguments rejects words after a command. If it has subcommands, the error suggests one of them.
func NoArguments(cmd *cobra.Command, args []string) error {
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
		return Errorf(cmd, "", "%q: this command takes no arguments", args[0])
	}
	hint := suggest.Hint(args[0], names)
	if hint == "" {
		hint = "commands: " + strings.Join(names, ", ")
	}
	return Errorf(cmd, hint, "unknown command %q", args[0])
}
