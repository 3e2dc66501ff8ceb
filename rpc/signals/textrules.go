package signals

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"
)

// Bounds of a file of rules.
const (
	maxRuleFile = 256 << 10
	maxRules    = 500
	maxPattern  = 1000
	maxExamples = 20
)

// RuleError is one error in a file of rules.
type RuleError struct {
	// Line is its line, from 1; 0: the file as a whole.
	Line int
	// Rule is the id of the rule, if it can be read.
	Rule string
	// Message says what is wrong, Hint how to correct it.
	Message, Hint string
}

// Error returns "line N: rule ID: message; hint".
func (e *RuleError) Error() string {
	var text strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&text, "line %d: ", e.Line)
	}
	if e.Rule != "" {
		fmt.Fprintf(&text, "rule %s: ", e.Rule)
	}
	text.WriteString(e.Message)
	if e.Hint != "" {
		text.WriteString("; " + e.Hint)
	}
	return text.String()
}

//go:embed texts.yaml
var builtinFile []byte

var builtinTexts = sync.OnceValue(func() *Texts {
	t, err := (&Texts{}).With(builtinFile)
	if err != nil {
		panic("signals: the rules that come with this package: " + err.Error())
	}
	return t
})

// BuiltinTexts returns the rules of this package, for the common agent tools.
func BuiltinTexts() *Texts { return builtinTexts() }

// With returns the rules of a file, in their order, before those of t. A rule of the file replaces one of t with the same id. The file is
// YAML, in the form of the built-in one, texts.yaml. Errors join a *RuleError for each problem; a file with a problem has no effect.
func (t *Texts) With(file []byte) (*Texts, error) {
	in := &ruleReader{lines: map[string]int{}}
	rules := in.file(file)
	if len(in.problems) > 0 {
		return nil, errors.Join(in.problems...)
	}
	for _, rule := range t.rules {
		if _, replaced := in.lines[rule.id]; !replaced {
			rules = append(rules, rule)
		}
	}
	return &Texts{rules: rules}, nil
}

// ruleReader reads a file of rules and collects its errors.
type ruleReader struct {
	problems []error
	// lines are the lines of rules, by id; rule is the id of the one being read.
	lines map[string]int
	rule  string
}

func (in *ruleReader) fail(at *yaml.Node, hint, format string, values ...any) {
	line := 0
	if at != nil {
		line = at.Line
	}
	in.problems = append(in.problems, &RuleError{Line: line, Rule: in.rule, Message: fmt.Sprintf(format, values...), Hint: hint})
}

func (in *ruleReader) file(data []byte) []*textRule {
	if len(data) > maxRuleFile {
		in.fail(nil, "", "the file has %d bytes; the maximum is %d", len(data), maxRuleFile)
		return nil
	}
	var top yaml.Node
	if err := yaml.Load(data, &top); err != nil && len(bytes.TrimSpace(data)) > 0 {
		e := &RuleError{Message: "is not YAML: " + err.Error()}
		if load, ok := errors.AsType[*yaml.LoadError](err); ok {
			e.Line, e.Message = load.Mark.Line, "is not YAML: "+load.Message
		}
		in.problems = append(in.problems, e)
		return nil
	}
	if len(top.Content) == 0 {
		in.fail(nil, `write a list "rules:"`, "is empty")
		return nil
	}
	fields := in.mapping(top.Content[0], "the file", "rules")
	list := fields["rules"]
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 || len(list.Content) > maxRules {
		in.fail(top.Content[0], `such as "rules: [{id: ..., ...}]"`, "rules must be a list of 1 to %d rules", maxRules)
		return nil
	}
	var rules []*textRule
	for _, n := range list.Content {
		rules = append(rules, in.one(n))
	}
	return rules
}

var (
	ruleID      = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(?:/[a-z0-9._-]+)*$`)
	ruleClasses = map[string]Class{"ok": OK, "throttled": Throttled, "exhausted": Exhausted, "overloaded": Overloaded, "billing": Billing}
	ruleScopes  = map[string]Scope{
		"resource": ScopeResource, "key": ScopeKey, "project": ScopeProject, "org": ScopeOrg, "provider": ScopeProvider,
		"plan": ScopePlan, "model": ScopeModel,
	}
	ruleConfidences = map[string]Confidence{"sure": Sure, "likely": Likely}
	groupNames      = []string{partFor, partAt, partEpoch, partMillis, partResource}
	fieldNames      = append(slices.Clone(groupNames), partShare, partText)
)

// one reads one rule.
func (in *ruleReader) one(n *yaml.Node) *textRule {
	in.rule = ""
	f := in.mapping(n, "a rule", "id", "source", "date", "class", "scope", "confidence", "pattern", "long", "object", "fields", "examples")
	rule := &textRule{confidence: Sure}
	rule.id = in.text(n, f, "id", `a name of small letters such as "my-tool/plan"`)
	if rule.id != "" && (len(rule.id) > 64 || !ruleID.MatchString(rule.id)) {
		in.fail(f["id"], `small letters, digits and . _ - with / between, such as "my-tool/plan"`, "%q cannot be an id", rule.id)
	}
	in.rule = rule.id
	if line, twice := in.lines[rule.id]; twice && rule.id != "" {
		in.fail(n, "", "the id is already used on line %d", line)
	}
	in.lines[rule.id] = n.Line
	in.text(n, f, "source", "where the words were seen: a page, an issue, an output")
	if date := in.text(n, f, "date", "the day on which the source said so, such as 2026-11-20"); date != "" {
		if _, err := time.Parse(time.DateOnly, date); err != nil {
			in.fail(f["date"], "such as 2026-11-20", "%q is not a date", date)
		}
	}
	rule.class = choice(in, n, f, "class", ruleClasses, true)
	rule.scope = choice(in, n, f, "scope", ruleScopes, false)
	if _, said := f["confidence"]; said {
		rule.confidence = choice(in, n, f, "confidence", ruleConfidences, true)
	}
	if long := f["long"]; long != nil {
		if rule.long = long.Value == "true"; !rule.long || f["pattern"] == nil {
			in.fail(long, "set it to true together with a pattern, else leave it out", "long cannot be %q here", long.Value)
		}
	}
	switch {
	case f["pattern"] != nil && f["object"] == nil && f["fields"] == nil:
		rule.pattern = in.pattern(f["pattern"])
	case f["object"] != nil && f["pattern"] == nil:
		rule.object, rule.fields = in.object(f["object"]), in.fields(f["fields"])
	default:
		in.fail(n, "a pattern for lines, or an object with its fields", "needs either a pattern or an object")
	}
	in.examples(n, f["examples"], rule)
	return rule
}

// pattern compiles a pattern for the beginning of a line.
func (in *ruleReader) pattern(n *yaml.Node) *regexp.Regexp {
	if n.Kind != yaml.ScalarNode || n.Value == "" || len(n.Value) > maxPattern {
		in.fail(n, "", "pattern must be a text of 1 to %d bytes", maxPattern)
		return nil
	}
	// Alone first: unbalanced parentheses could end the group that anchors it to the beginning.
	_, err := regexp.Compile(n.Value)
	if err != nil {
		in.fail(n, "use the syntax of RE2 (https://pkg.go.dev/regexp/syntax), which has no lookahead or lookbehind", "pattern: %v", err)
		return nil
	}
	compiled, err := regexp.Compile(`(?i)^(?:` + n.Value + `)`)
	if err != nil {
		in.fail(n, "shorten the pattern", "pattern: %v", err)
		return nil
	}
	if compiled.MatchString("") {
		in.fail(n, "begin the pattern with words that the tool prints", "pattern matches every line")
	}
	for _, name := range compiled.SubexpNames() {
		if name != "" && !slices.Contains(groupNames, name) {
			in.fail(n, "known: "+strings.Join(groupNames, ", "), "pattern has an unknown group %q", name)
		}
	}
	return compiled
}

// object reads the values that fields must have.
func (in *ruleReader) object(n *yaml.Node) map[string][]string {
	conditions := map[string][]string{}
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		in.fail(n, "such as {type: rate_limit_event}", "object must name at least one field")
		return conditions
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		values := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			values = value.Content
		}
		for _, v := range values {
			if v.Kind != yaml.ScalarNode || v.Value == "" {
				in.fail(v, "", "object: %q must be a value, or a list of values", key.Value)
				continue
			}
			conditions[key.Value] = append(conditions[key.Value], v.Value)
		}
	}
	return conditions
}

// fields reads the paths of an object's parts.
func (in *ruleReader) fields(n *yaml.Node) map[string]string {
	paths := map[string]string{}
	if n == nil {
		return paths
	}
	for part, value := range in.mapping(n, "fields", fieldNames...) {
		if value.Kind != yaml.ScalarNode || value.Value == "" {
			in.fail(value, "such as rate_limit_info.resetsAt", "fields: %s must be the path of a field", part)
		}
		paths[part] = value.Value
	}
	return paths
}

// examples checks that a rule matches its examples.
func (in *ruleReader) examples(n, list *yaml.Node, rule *textRule) {
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 || len(list.Content) > maxExamples {
		in.fail(n, "lines as the tool prints them", "needs a list of 1 to %d examples", maxExamples)
		return
	}
	if rule.pattern == nil && len(rule.object) == 0 {
		return // its error is already reported
	}
	// Without its fields, so that a rule that refers to a text for people is checked alone.
	alone := &Texts{rules: []*textRule{{id: rule.id, pattern: rule.pattern, long: rule.long, object: rule.object}}}
	for _, example := range list.Content {
		if _, ok := alone.Match(example.Value, time.Unix(0, 0)); !ok {
			in.fail(example, "a pattern must match the beginning of the line, an object all its fields", "does not match its example %.60q",
				example.Value)
		}
	}
}

// text reads a required field.
func (in *ruleReader) text(n *yaml.Node, f map[string]*yaml.Node, key, hint string) string {
	v := f[key]
	switch {
	case v == nil:
		in.fail(n, hint, "%s is missing", key)
	case v.Kind != yaml.ScalarNode || strings.TrimSpace(v.Value) == "":
		in.fail(v, hint, "%s must be a text", key)
	default:
		return v.Value
	}
	return ""
}

// choice reads one of some words.
func choice[T any](in *ruleReader, n *yaml.Node, f map[string]*yaml.Node, key string, words map[string]T, needed bool) T {
	var none T
	known := "one of " + strings.Join(slices.Sorted(maps.Keys(words)), ", ")
	v := f[key]
	if v == nil {
		if needed {
			in.fail(n, known, "%s is missing", key)
		}
		return none
	}
	value, ok := words[v.Value]
	if v.Kind != yaml.ScalarNode || !ok {
		in.fail(v, known, "%s cannot be %q", key, v.Value)
		return none
	}
	return value
}

// mapping returns the values of a mapping by key.
func (in *ruleReader) mapping(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	values := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		in.fail(n, "", "%s must be a mapping (key: value)", what)
		return values
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !slices.Contains(known, key.Value) {
			in.fail(key, "known: "+strings.Join(known, ", "), "unknown key %q in %s", key.Value, what)
			continue
		}
		if values[key.Value] != nil {
			in.fail(key, "", "duplicate key %q in %s", key.Value, what)
		}
		values[key.Value] = value
	}
	return values
}
