package cli

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/signals"
)

// maxOutputLine bounds a line of a tool's output, in bytes.
const maxOutputLine = 1 << 20

func (a *App) messagesCommand() *cobra.Command {
	var patterns string
	cmd := &cobra.Command{
		Use:   "messages",
		Short: "Find messages about limits in an agent tool's output (standard input)",
		Long: `Read an agent tool's output on standard input and print each line about a limit: its number, the matching rule, the meaning
and scope, the confidence, and how long to wait from now. --patterns adds rules from a file, which are tried first; a mistake
in the file is an error with its line, and no input is read.`,
		Example: `  quotad messages < agent.log
  quotad messages --patterns rules.yaml < agent.log`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			texts, err := readTexts(patterns)
			if err != nil {
				return err
			}
			return a.printMessages(texts, time.Now())
		},
	}
	cmd.Flags().StringVar(&patterns, "patterns", "", "file with more rules")
	_ = cmd.MarkFlagFilename("patterns", "yaml", "yml")
	return cmd
}

// readTexts returns the built-in rules, preceded by those of a file, if path names one.
func readTexts(path string) (*signals.Texts, error) {
	texts := signals.BuiltinTexts()
	if path == "" {
		return texts, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, notReadable(err)
	}
	texts, err = texts.With(data)
	if err != nil {
		return nil, ruleProblems(path, err)
	}
	return texts, nil
}

// ruleProblems gives mistakes in a file of rules the form that mistakes in other files have.
func ruleProblems(path string, err error) error {
	var problems strictyaml.Problems
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	for _, one := range joined.Unwrap() {
		if e, ok := errors.AsType[*signals.RuleError](one); ok {
			message := e.Message
			if e.Rule != "" {
				message = "rule " + e.Rule + ": " + message
			}
			problems = append(problems, &strictyaml.Problem{File: path, Line: e.Line, Message: message, Hint: e.Hint})
		}
	}
	return problems
}

func (a *App) printMessages(texts *signals.Texts, now time.Time) error {
	table := output.Table{Header: []string{"LINE", "RULE", "MEANS", "COVERS", "SURE", "WAIT"}}
	lines := bufio.NewScanner(a.In)
	lines.Buffer(nil, maxOutputLine)
	for number := 1; lines.Scan(); number++ {
		m, ok := texts.Match(lines.Text(), now)
		if !ok {
			continue
		}
		wait := "-"
		if m.Wait.Known {
			wait = strictyaml.FormatDuration(m.Wait.D.Round(time.Second))
		}
		if m.Clamped {
			wait += " (cut)"
		}
		table.Add(strconv.Itoa(number), m.Rule, m.Class.String(), m.Scope.String(),
			map[signals.Confidence]string{signals.Sure: "yes", signals.Likely: "likely"}[m.Confidence], wait)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return table.Write(a.Out)
}
