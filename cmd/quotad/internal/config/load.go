package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
)

// ClientVariables are the environment variables that quotad's commands read in addition to the settings.
var ClientVariables = []string{
	EnvPrefix + "CONFIG", EnvPrefix + "SERVER", EnvPrefix + "TOKEN_FILE", EnvPrefix + "CA_FILE",
	EnvPrefix + "CERT_FILE", EnvPrefix + "KEY_FILE", EnvPrefix + "TIMEOUT", EnvPrefix + "OUTPUT", EnvPrefix + "GATEWAY_CONFIG",
	// The lease of a command that "quotad run" started.
	EnvPrefix + "LEASE", EnvPrefix + "FENCE",
}

// injected matches variables that Kubernetes sets in every container for a Service named quotad; nobody set them on
// purpose.
var injected = regexp.MustCompile(`^QUOTAD_(SERVICE_(HOST|PORT(_.*)?)|PORT(_.*)?)$`)

// Input names the sources of values.
type Input struct {
	// File is the path of a config file; empty: none.
	File string
	// Environ is the environment in the form of os.Environ.
	Environ []string
	// Flags are the given flags, by name without dashes.
	Flags map[string]string
}

// Value is the effective value of a setting and its source.
type Value struct {
	Setting Setting
	// Text is the value; empty: not set.
	Text string
	// Source is `default`, `profile lan`, `quotad.yaml:12`, `env QUOTAD_...` or `flag --...`.
	Source string
}

// Loaded is a configuration with the source of each value, in the order of Settings.
type Loaded struct {
	Config Config
	Values []Value
}

// Error is a configuration's mistakes, one error each. Mistakes in the file are strictyaml.Problems.
type Error struct{ Mistakes []error }

// Error returns one line per mistake.
func (e *Error) Error() string { return errors.Join(e.Mistakes...).Error() }

// Unwrap returns the mistakes.
func (e *Error) Unwrap() []error { return e.Mistakes }

// loader applies one layer after another.
type loader struct {
	loaded   *Loaded
	mistakes []error
}

// Load reads all sources and returns the effective configuration, or an *Error with every mistake found.
func Load(in Input) (*Loaded, error) {
	l := &loader{loaded: &Loaded{}}
	for _, setting := range settings {
		l.loaded.Values = append(l.loaded.Values, Value{Setting: setting, Source: "default"})
		if setting.Default != "" {
			l.apply(setting.Key, setting.Default, "default")
		}
	}
	if in.File != "" {
		l.file(in.File)
	}
	l.environment(in.Environ)
	l.flags(in.Flags)
	if len(l.mistakes) == 0 {
		l.complete()
		l.mistakes = append(l.mistakes, l.validate()...)
	}
	if len(l.mistakes) > 0 {
		return nil, &Error{Mistakes: l.mistakes}
	}
	return l.loaded, nil
}

// apply sets one value and records its source; the source also starts the message of a mistake.
func (l *loader) apply(key, text, source string) {
	value := l.value(key)
	if err := value.Setting.set(&l.loaded.Config, text); err != nil {
		l.mistakes = append(l.mistakes, fmt.Errorf("%s: %s: %w", source, key, err))
		return
	}
	value.Text, value.Source = text, source
}

func (l *loader) value(key string) *Value {
	i := slices.IndexFunc(l.loaded.Values, func(v Value) bool { return v.Setting.Key == key })
	return &l.loaded.Values[i]
}

func (l *loader) file(path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		l.mistakes = append(l.mistakes, fmt.Errorf("config file: %w", err))
		return
	}
	doc, err := strictyaml.Parse(path, data)
	if err != nil {
		l.mistakes = append(l.mistakes, err)
		return
	}
	if doc.Root != nil {
		l.fileMapping(doc, doc.Root, path, "")
	}
	if err := doc.Err(); err != nil {
		l.mistakes = append(l.mistakes, err)
	}
}

// fileMapping applies the keys below prefix ("" or "api.").
func (l *loader) fileMapping(doc *strictyaml.Document, n *yaml.Node, path, prefix string) {
	what := "the configuration"
	if prefix != "" {
		what = strings.TrimSuffix(prefix, ".")
	}
	known := keysBelow(prefix)
	values := doc.Mapping(n, what, known...)
	for _, key := range known {
		v, ok := values[key]
		if !ok {
			continue
		}
		full := prefix + key
		if len(keysBelow(full+".")) > 0 {
			l.fileMapping(doc, v, path, full+".")
			continue
		}
		text, fine := l.fileText(doc, v, full)
		if fine {
			l.apply(full, text, fmt.Sprintf("%s:%d", path, v.Line))
		}
	}
}

// fileText returns a value of the file in the form of flags and the environment.
func (l *loader) fileText(doc *strictyaml.Document, n *yaml.Node, key string) (text string, fine bool) {
	if key != "peers" || n.Kind == yaml.ScalarNode {
		if n.Kind != yaml.ScalarNode {
			doc.Fail(n, "", "%s must be a single value", key)
			return "", false
		}
		return n.Value, true
	}
	before := doc.Err()
	var elements []string
	for _, element := range doc.Sequence(n, key) {
		values := doc.Mapping(element, "a peer", "id", "raft", "api")
		fields := map[string]string{}
		for _, field := range []string{"id", "raft", "api"} {
			if v, ok := values[field]; ok {
				fields[field] = doc.Text(v, field)
			} else {
				doc.Fail(element, "", "a peer has no %s", field)
			}
		}
		elements = append(elements, fields["id"]+"="+fields["raft"]+"/"+fields["api"])
	}
	return strings.Join(elements, ","), len(elements) > 0 && before == nil && doc.Err() == nil
}

// keysBelow lists the next parts of all keys that start with prefix, without duplicates.
func keysBelow(prefix string) []string {
	var all []string
	for _, setting := range settings {
		rest, found := strings.CutPrefix(setting.Key, prefix)
		if !found {
			continue
		}
		if key, _, _ := strings.Cut(rest, "."); !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

func (l *loader) environment(environ []string) {
	byName := map[string]string{}
	for _, setting := range settings {
		byName[setting.Env()] = setting.Key
	}
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(variable, "=")
		if key, ok := byName[name]; ok {
			l.apply(key, value, "env "+name)
		}
	}
	l.mistakes = append(l.mistakes, unknownVariables(environ)...)
}

// CheckEnvironment returns an *Error that names each variable that starts with EnvPrefix and is unknown to quotad:
// otherwise a mistyped name would have no effect and cause no error.
func CheckEnvironment(environ []string) error {
	if mistakes := unknownVariables(environ); len(mistakes) > 0 {
		return &Error{Mistakes: mistakes}
	}
	return nil
}

func unknownVariables(environ []string) []error {
	known := slices.Clone(ClientVariables)
	for _, setting := range settings {
		known = append(known, setting.Env())
	}
	var mistakes []error
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, EnvPrefix) && !slices.Contains(known, name) && !injected.MatchString(name) {
			mistakes = append(mistakes, hinted("unknown environment variable "+name, suggest.Hint(name, known)))
		}
	}
	return mistakes
}

func (l *loader) flags(flags map[string]string) {
	for _, setting := range settings {
		if value, ok := flags[setting.Flag()]; ok {
			l.apply(setting.Key, value, "flag --"+setting.Flag())
		}
	}
}
