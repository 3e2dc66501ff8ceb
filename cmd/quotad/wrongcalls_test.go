package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// placeholder is an argument in a usage line; a part in brackets is optional.
var placeholder = regexp.MustCompile(`^[A-Z][A-Z0-9|=]*(\[[:=]?[A-Z=]+\])?(\.\.\.)?$`)

// signature is the arguments that a command's usage line declares.
type signature struct {
	// required are the mandatory placeholders; open: the number of arguments has no maximum.
	required []string
	open     bool
	// flags: at least one flag is mandatory.
	flags bool
}

func signatureOf(use string) (s signature) {
	words := strings.Fields(use)[1:]
	for _, word := range words {
		if strings.HasPrefix(word, "-") {
			s.flags = true
			break // flags' values follow
		}
		if placeholder.MatchString(word) {
			s.required = append(s.required, word)
		}
	}
	s.open = strings.Contains(use, "...")
	return s
}

// wrongCall calls quotad wrongly and checks what every command promises: exit code 2, a message that names the mistake, a
// hint, and nothing on standard output.
func wrongCall(t *testing.T, args ...string) {
	t.Helper()
	said := run2(t, args...)
	if !strings.HasPrefix(said, "quotad: ") || !strings.Contains(said, "\nhint: ") {
		t.Errorf("quotad %s: %q has no message and hint", strings.Join(args, " "), said)
	}
	for _, raw := range []string{"requires at least", "accepts", "arg(s)", "required flag(s)", `for "quotad`, "Usage:"} {
		if strings.Contains(said, raw) {
			t.Errorf("quotad %s: %q says %q", strings.Join(args, " "), said, raw)
		}
	}
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	asJSON := run2(t, slices.Insert(slices.Clone(args), end, "--output", "json")...)
	var failure struct {
		Error, Hint string
		Exit        int
	}
	if err := json.Unmarshal([]byte(asJSON), &failure); err != nil || failure.Error == "" || failure.Hint == "" || failure.Exit != 2 {
		t.Errorf("quotad %s --output json: %q: %v", strings.Join(args, " "), asJSON, err)
	}
}

// run2 runs quotad, which must end with 2, and returns its standard error.
func run2(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out, said bytes.Buffer
	if code := newApp(strings.NewReader(""), &out, &said).Run(ctx, args); code != 2 || out.Len() > 0 {
		t.Errorf("quotad %s: exit %d, printed %q, said %q", strings.Join(args, " "), code, out.String(), said.String())
	}
	return said.String()
}

// everyCommand calls a function for each command, hidden ones included, with its path. It omits topics, which only print
// their text.
func everyCommand(each func(path []string, command *cobra.Command)) {
	var walk func(path []string, command *cobra.Command)
	walk = func(path []string, command *cobra.Command) {
		if !command.IsAdditionalHelpTopicCommand() {
			each(path, command)
		}
		for _, sub := range command.Commands() {
			walk(append(slices.Clone(path), sub.Name()), sub)
		}
	}
	walk(nil, newApp(nil, nil, nil).Root())
}

func TestCommands_RefuseWrongCalls(t *testing.T) {
	commands := 0
	everyCommand(func(path []string, command *cobra.Command) {
		commands++
		call := func(args ...string) { wrongCall(t, append(slices.Clone(path), args...)...) }
		takes := signatureOf(command.Use)
		call("--no-such-flag")
		for n := range takes.required {
			call(slices.Repeat([]string{"x"}, n)...)
		}
		if takes.flags {
			call(slices.Repeat([]string{"7"}, len(takes.required))...)
		}
		if !takes.open && command.Name() != "help" {
			call(slices.Repeat([]string{"x"}, 12)...)
		}
	})
	wrongCall(t, "help", "no-such-topic")
	wrongCall(t, "help", "quota", "no-such-topic")
	run2(t, "reserve", "--holder") // its value is missing
	wrongCall(t, "demo", "--duration", "soon")
	wrongCall(t, "bench", "--rounds", "many")
	wrongCall(t, "plan", "real", "--for", "never", "x.yaml")
	if commands < 50 {
		t.Errorf("only %d commands were called", commands)
	}
}

// TestCommands_LeaveTheirCommandsFlagsAlone: `task run` ignores -o after "--": that flag belongs to the command it runs.
func TestCommands_LeaveTheirCommandsFlagsAlone(t *testing.T) {
	said := run2(t, "task", "run", "--", "echo", "-o", "json")
	if !strings.HasPrefix(said, "quotad: ") {
		t.Errorf("%q is not the text for people", said)
	}
}
