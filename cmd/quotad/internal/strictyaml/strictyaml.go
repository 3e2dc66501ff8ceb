// Package strictyaml reads YAML that people write by hand. Every key must be known, and every value must have the right
// kind. It reports each problem with file, line and the nearest known word, and all problems of a file, not only the first.
//
// It walks the parsed tree instead of decoding into structs, because only the tree has line numbers and distinguishes
// "absent" from "zero". One Document belongs to one goroutine.
package strictyaml

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
)

// MaxSize bounds a file in bytes: 4,096 quotas with long notes take less.
const MaxSize = 8 << 20

// maxProblems bounds the reported problems; more are rarely worth reading before the first ones are fixed.
const maxProblems = 20

// Problem is one mistake at one place of a file.
type Problem struct {
	// File and Line (from 1; 0: the file as a whole) are its place.
	File string
	Line int
	// Message describes the mistake; Hint is the way out and may be empty.
	Message, Hint string
}

// Error returns `file:line: message; hint`.
func (p *Problem) Error() string {
	text := p.File + ": " + p.Message
	if p.Line > 0 {
		text = p.File + ":" + strconv.Itoa(p.Line) + ": " + p.Message
	}
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	return text
}

// Problems are all mistakes in a file, sorted by line.
type Problems []*Problem

// Error returns one line per problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the single problems.
func (p Problems) Unwrap() []error {
	all := make([]error, len(p))
	for i, problem := range p {
		all[i] = problem
	}
	return all
}

// Document is a file while it is read.
type Document struct {
	// Root is the top node; nil for a file without content.
	Root     *yaml.Node
	file     string
	problems Problems
}

// Parse parses data, which was read from the named file. The error is a Problems.
func Parse(file string, data []byte) (*Document, error) {
	d := &Document{file: file}
	if len(data) > MaxSize {
		return nil, Problems{{File: file, Message: fmt.Sprintf("is larger than %d MiB", MaxSize>>20)}}
	}
	var top yaml.Node
	if err := yaml.Load(data, &top); err != nil {
		if errors.Is(err, io.EOF) || len(strings.TrimSpace(string(data))) == 0 {
			return d, nil
		}
		return nil, Problems{d.syntax(err)}
	}
	if len(top.Content) > 0 && !isNull(top.Content[0]) {
		d.Root = top.Content[0]
	}
	return d, nil
}

func (d *Document) syntax(err error) *Problem {
	if load, ok := errors.AsType[*yaml.LoadError](err); ok {
		return &Problem{File: d.file, Line: load.Mark.Line, Message: "is not YAML: " + load.Message}
	}
	return &Problem{File: d.file, Message: "is not YAML: " + err.Error()}
}

// Fail records a problem at a node (nil: the file as a whole).
func (d *Document) Fail(at *yaml.Node, hint, format string, values ...any) {
	line := 0
	if at != nil {
		line = at.Line
	}
	d.problems = append(d.problems, &Problem{File: d.file, Line: line, Message: fmt.Sprintf(format, values...), Hint: hint})
}

// Err returns the problems recorded so far as Problems; nil: none.
func (d *Document) Err() error {
	if len(d.problems) == 0 {
		return nil
	}
	all := slices.Clone(d.problems)
	slices.SortStableFunc(all, func(a, b *Problem) int { return a.Line - b.Line })
	if more := len(all) - maxProblems; more > 0 {
		all = append(all[:maxProblems], &Problem{File: d.file, Message: fmt.Sprintf("and %d more problems", more)})
	}
	return all
}

// Mapping returns the values of a mapping by key. It records unknown keys (if known is empty, any key is known), duplicate
// keys, keys without a value, which could mean absent or zero, and nodes of another kind.
func (d *Document) Mapping(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	n = resolve(n)
	values := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		d.Fail(n, "", "%s must be a mapping (key: value), not %s", what, kind(n))
		return values
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		switch {
		case len(known) > 0 && !slices.Contains(known, key.Value):
			d.Fail(key, hintOr(suggest.Hint(key.Value, known), known), "unknown key %q in %s", key.Value, what)
		case seen[key.Value]:
			d.Fail(key, "", "duplicate key %q in %s", key.Value, what)
		case isNull(value):
			d.Fail(key, "give it a value, or remove the key", "the key %q in %s has no value", key.Value, what)
		default:
			values[key.Value] = value
		}
		seen[key.Value] = true
	}
	return values
}

// hintOr returns the hint, or if there is none, the list of known words.
func hintOr(hint string, known []string) string {
	if hint == "" {
		return "known: " + strings.Join(known, ", ")
	}
	return hint
}

// Sequence returns the elements of a list.
func (d *Document) Sequence(n *yaml.Node, what string) []*yaml.Node {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		d.Fail(n, "", "%s must be a list, not %s", what, kind(n))
		return nil
	}
	all := make([]*yaml.Node, len(n.Content))
	for i, element := range n.Content {
		all[i] = resolve(element)
	}
	return all
}

// Text returns a scalar as written.
func (d *Document) Text(n *yaml.Node, what string) string {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || isNull(n) {
		d.Fail(n, "", "%s must be text, not %s", what, kind(n))
		return ""
	}
	return n.Value
}

// Int returns an integer from least to most.
func (d *Document) Int(n *yaml.Node, what string, least, most int64) int64 {
	n = resolve(n)
	value, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil {
		d.Fail(n, "write the digits only, such as 5000", "%s must be a whole number, not %s", what, kind(n))
		return least
	}
	if value < least || value > most {
		d.Fail(n, "", "%s is %d; it must be %d to %d", what, value, least, most)
		return least
	}
	return value
}

// Float returns a finite number.
func (d *Document) Float(n *yaml.Node, what string) float64 {
	n = resolve(n)
	value, err := strconv.ParseFloat(n.Value, 64)
	number := n.ShortTag() == "!!float" || n.ShortTag() == "!!int"
	if n.Kind != yaml.ScalarNode || !number || err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		d.Fail(n, "write a decimal such as 0.2", "%s must be a number, not %s", what, kind(n))
		return 0
	}
	return value
}

// Bool returns true or false.
func (d *Document) Bool(n *yaml.Node, what string) bool {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || n.Value != "true" && n.Value != "false" {
		d.Fail(n, "", "%s must be true or false, not %s", what, kind(n))
	}
	return n.Value == "true"
}

// Choice returns a scalar that must be one of choices.
func (d *Document) Choice(n *yaml.Node, what string, choices ...string) string {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || !slices.Contains(choices, n.Value) {
		d.Fail(n, suggest.Hint(n.Value, choices), "%s must be one of %s, not %s", what, strings.Join(choices, ", "), kind(n))
		return choices[0]
	}
	return n.Value
}

// Duration returns a duration from least to most.
func (d *Document) Duration(n *yaml.Node, what string, least, most time.Duration) time.Duration {
	n = resolve(n)
	value, err := ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.Fail(n, "write a number and a unit, such as 500ms, 30s, 5m, 2h or 7d", "%s must be a duration, not %s", what, kind(n))
		return least
	}
	if value < least || value > most {
		d.Fail(n, "", "%s is %s; it must be %s to %s", what, n.Value, FormatDuration(least), FormatDuration(most))
		return least
	}
	return value
}

// resolve follows an alias (*name) to its anchor.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kind describes a node for an error message.
func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "empty"
	}
	const enough = 40
	if len(n.Value) > enough {
		return strconv.Quote(n.Value[:enough]) + "..."
	}
	return strconv.Quote(n.Value)
}
