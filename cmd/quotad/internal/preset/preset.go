// Package preset has ready quotas for the common providers: data files with the figures that a provider publishes, their
// sources and dates. A preset renders to a quotas.yaml with these in its comments. Figures that a provider does not
// publish, or that no source has for a tier, must come from the user; nothing is guessed.
package preset

import (
	"bytes"
	"embed"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
)

//go:embed presets/*.yaml
var files embed.FS

// PricesName is the name under which users request the prices of models. They are not quotas, but the gateway's file of
// prices.
const PricesName = "prices"

// Prices is the gateway's file of prices, with the source and date of each figure.
//
//go:embed prices.yaml
var Prices []byte

// Preset is the preset of one provider.
type Preset struct {
	// Name is the name under which users request it.
	Name string `yaml:"-"`
	// About is its purpose; Console is where a user finds the actual limits of an account.
	About   string `yaml:"about"`
	Console string `yaml:"console"`
	// Source and Date are the source of the rules and the day on which it was read, unless a tier has its own.
	Source string `yaml:"source"`
	Date   string `yaml:"date"`
	// Default is the tier if none is named; empty: the user must name one.
	Default string `yaml:"tier"`
	// Tiers are the provider's tiers by name; none: tiers do not matter here.
	Tiers map[string]Tier `yaml:"tiers"`
	// Parameters are the values on which the quotas depend, by name.
	Parameters map[string]Parameter `yaml:"parameters"`
	// Quotas is the template of the list of quotas.
	Quotas string `yaml:"quotas"`
}

// Tier is a set of published figures.
type Tier struct {
	About  string `yaml:"about"`
	Source string `yaml:"source"`
	Date   string `yaml:"date"`
	// Figures are values of parameters; Models are those for one value of the parameter model.
	Figures map[string]int64            `yaml:"figures"`
	Models  map[string]map[string]int64 `yaml:"models"`
}

// Parameter is a value that a preset needs.
type Parameter struct {
	// Kind is limit (an integer) or name (a part of a quota's name).
	Kind  string `yaml:"kind"`
	About string `yaml:"about"`
	// Published: the provider publishes it, even if the preset has no figure. Other limits get headroom.
	Published bool `yaml:"published"`
	// Least is the smallest limit that works; 0: 1.
	Least int64 `yaml:"least"`
	// Default is a template of the default value; empty: none.
	Default string `yaml:"default"`
	// Assumed: the default is an assumption about the provider, without a source.
	Assumed bool `yaml:"assumed"`
}

// UnpublishedHeadroom is the headroom of a limit that the provider does not publish.
const UnpublishedHeadroom = "0.35"

// headroom and prefix are the parameters of every preset. prefix starts the names of its quotas; its default is the
// preset's name.
const (
	headroom = "headroom"
	prefix   = "prefix"
)

// Error is the reason why a preset cannot be rendered, and the way out.
type Error struct{ Message, Hint string }

// Error returns message and hint.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + "; " + e.Hint
}

func failf(hint, format string, values ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, values...), Hint: hint}
}

// All returns the presets, sorted by name.
var All = sync.OnceValue(func() []*Preset {
	names, err := files.ReadDir("presets")
	if err != nil {
		panic(err)
	}
	var all []*Preset
	for _, entry := range names {
		data, err := files.ReadFile(path.Join("presets", entry.Name()))
		if err != nil {
			panic(err)
		}
		p := &Preset{Name: strings.TrimSuffix(entry.Name(), ".yaml")}
		if err := yaml.Load(data, p, yaml.WithKnownFields()); err != nil {
			panic("preset " + p.Name + ": " + err.Error())
		}
		all = append(all, p)
	}
	return all
})

// Find returns the preset and tier of name:tier. The error is an *Error.
func Find(name string) (p *Preset, tier string, err error) {
	name, tier, _ = strings.Cut(name, ":")
	var names []string
	for _, one := range All() {
		names = append(names, one.Name)
		if one.Name == name {
			p = one
		}
	}
	if p == nil {
		return nil, "", failf(or(suggest.Hint(name, names), "known: "+strings.Join(names, ", ")), "there is no preset %q", name)
	}
	if tier == "" {
		tier = p.Default
	}
	tiers := slices.Sorted(maps.Keys(p.Tiers))
	switch _, known := p.Tiers[tier]; {
	case known || (tier == "" && len(tiers) == 0):
		return p, tier, nil
	case len(tiers) == 0:
		return nil, "", failf("use "+name+" without a tier", "the preset %s has no tiers", name)
	case tier == "":
		return nil, "", failf("such as "+name+":"+tiers[0]+"; known: "+strings.Join(tiers, ", "), "the preset %s needs a tier", name)
	}
	return nil, "", failf(or(suggest.Hint(tier, tiers), "known: "+strings.Join(tiers, ", ")), "the preset %s has no tier %q", name, tier)
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// rendering is the state of rendering one preset.
type rendering struct {
	preset *Preset
	name   string
	tier   Tier
	// values are the values of the parameters, origins their sources.
	values, origins map[string]string
}

// Render returns the quotas.yaml of a preset and a tier from Find, with parameters set. The error is an *Error.
func (p *Preset) Render(tier string, set map[string]string) ([]byte, error) {
	r := &rendering{
		preset: p, name: p.Name, tier: p.Tiers[tier],
		values: map[string]string{headroom: UnpublishedHeadroom, prefix: p.Name}, origins: map[string]string{},
	}
	if tier != "" {
		r.name += ":" + tier
	}
	for name, value := range set {
		if err := r.set(name, value); err != nil {
			return nil, err
		}
	}
	if err := r.complete(); err != nil {
		return nil, err
	}
	body, err := r.execute(p.Quotas)
	if err != nil {
		return nil, failf("", "the preset %s: %v", r.name, err)
	}
	text := r.head() + "quotas:\n" + indented(body)
	if _, err := quotafile.Parse("the preset "+r.name, []byte(text)); err != nil {
		return nil, failf("", "%v", err)
	}
	return []byte(text), nil
}

// quotaName matches a valid part of a quota's name.
var quotaName = regexp.MustCompile(`^[A-Za-z0-9._@:-]+(?:/[A-Za-z0-9._@:-]+)*$`)

// set sets a value from the user.
func (r *rendering) set(name, value string) error {
	p, known := r.preset.Parameters[name]
	names := append(slices.Sorted(maps.Keys(r.preset.Parameters)), headroom, prefix)
	switch n, err := strconv.ParseInt(value, 10, 64); {
	case name == headroom:
		if f, err := strconv.ParseFloat(value, 64); err != nil || !(f >= 0 && f < 1) {
			return failf("0.35 keeps 35 % free", "headroom cannot be %q", value)
		}
	case !known && name != prefix:
		return failf(or(suggest.Hint(name, names), "known: "+strings.Join(names, ", ")), "the preset %s has no parameter %q", r.preset.Name, name)
	case (p.Kind == "name" || name == prefix) && (len(value) > 128 || !quotaName.MatchString(value)):
		return failf("letters, digits and . _ - @ : with / between", "%s cannot be %q", name, value)
	case p.Kind == "limit" && (err != nil || n < max(p.Least, 1) || n > quotafile.MaxAmount):
		return failf(fmt.Sprintf("a whole number from %d", max(p.Least, 1)), "%s cannot be %q", name, value)
	}
	r.values[name], r.origins[name] = value, "as given"
	return nil
}

// complete fills in figures and defaults, and returns an error for missing values.
func (r *rendering) complete() error {
	p := r.preset
	names := slices.Sorted(maps.Keys(p.Parameters))
	// Names come first: figures depend on the model.
	slices.SortStableFunc(names, func(a, b string) int { return strings.Compare(p.Parameters[b].Kind, p.Parameters[a].Kind) })
	var missing []string
	var defaults []string
	for _, name := range names {
		if _, given := r.values[name]; given {
			continue
		}
		figure, ok := r.tier.Figures[name]
		if !ok {
			figure, ok = r.tier.Models[r.values["model"]][name]
		}
		switch {
		case ok:
			r.values[name], r.origins[name] = strconv.FormatInt(figure, 10), "as published"
		case p.Parameters[name].Default == "":
			missing = append(missing, fmt.Sprintf("--set %s=... (%s)", name, p.Parameters[name].About))
		case p.Parameters[name].Kind == "name":
			r.values[name] = p.Parameters[name].Default
		default:
			defaults = append(defaults, name)
		}
	}
	if len(missing) > 0 {
		return failf(p.Console, "the preset %s needs %s", r.name, strings.Join(missing, ", "))
	}
	for _, name := range defaults {
		value, err := r.execute(p.Parameters[name].Default)
		if err != nil {
			return failf("", "the preset %s: %s: %v", r.name, name, err)
		}
		r.values[name], r.origins[name] = value, "by default"
		if p.Parameters[name].Assumed {
			r.origins[name] = "an assumption: --set " + name + "=... gives yours"
		}
	}
	return nil
}

// execute executes a template.
func (r *rendering) execute(text string) (string, error) {
	number := func(name string) (int64, error) { return strconv.ParseInt(r.values[name], 10, 64) }
	t, err := template.New(r.name).Option("missingkey=error").Funcs(template.FuncMap{
		// from describes a parameter and the source of its value.
		"from": func(name string) string {
			return capital(r.preset.Parameters[name].About) + ", " + r.origins[name] + "."
		},
		// headroom adds headroom to a limit that the provider does not publish.
		headroom: func(name string) string {
			if r.preset.Parameters[name].Published && r.origins[headroom] == "" || r.values[headroom] == "0" {
				return ""
			}
			return "\n  headroom: " + r.values[headroom]
		},
		"div": func(name string, by int64) (int64, error) {
			n, err := number(name)
			return n / by, err
		},
		"mul": func(name string, by int64) (int64, error) {
			n, err := number(name)
			return min(n*by, quotafile.MaxAmount), err
		},
	}).Parse(text)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, r.values); err != nil {
		return "", err
	}
	return out.String(), nil
}

// head is the comment above the quotas.
func (r *rendering) head() string {
	lines := []string{
		r.preset.About, "The preset " + r.name, r.tier.About, r.preset.Console,
		"Source: " + or(r.tier.Source, r.preset.Source) + ", " + or(r.tier.Date, r.preset.Date),
	}
	var out strings.Builder
	for _, line := range lines {
		if line != "" {
			out.WriteString("# " + capital(line) + ".\n")
		}
	}
	return out.String()
}

// capital capitalises a sentence.
func capital(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// indented indents lines below "quotas:".
func indented(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			out.WriteString("  ")
		}
		out.WriteString(line)
	}
	return out.String()
}
