package cli

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/preset"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
)

func (a *App) presetCommand() *cobra.Command {
	return group("preset", "Show ready quotas for common providers", a.presetList(), a.presetShow())
}

func (a *App) presetList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the presets, their tiers and their parameters",
		Example: `  quotad preset list`,
		Args:    arguments(),
		RunE: func(*cobra.Command, []string) error {
			table := output.Table{Header: []string{"NAME", "TIERS", "PARAMETERS", "FOR"}}
			for _, p := range preset.All() {
				table.Add(p.Name, cmp.Or(strings.Join(slices.Sorted(maps.Keys(p.Tiers)), " "), "-"),
					strings.Join(slices.Sorted(maps.Keys(p.Parameters)), " "), p.About)
			}
			table.Add(preset.PricesName, "-", "-", `what models cost, for prices: of "quotad gateway"; show only`)
			return table.Write(a.Out)
		},
	}
}

func (a *App) presetShow() *cobra.Command {
	var set map[string]string
	cmd := &cobra.Command{
		Use:   "show NAME[:TIER]",
		Short: "Print a preset as a quotas.yaml, with the source and date of its figures",
		Long: `Print a preset as a quotas.yaml for "quotad quota apply -f -". Comments name the source and date of each figure. Use --set
for a figure that the provider does not publish, or that is unknown for the tier; such limits get a headroom of 35 %,
unless --set headroom=... changes it. --set prefix=... names the quotas of another upstream that speaks as the provider.
"quotad preset show prices" prints the gateway's file of prices.`,
		Example: `  quotad preset show github
  quotad preset show openai:tier2 --set model=gpt-5-mini --set rpm=2000
  quotad preset show anthropic:start --set model=claude-fable-5 | quotad quota apply -f -`,
		Args: arguments("NAME[:TIER]"),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := showPreset(args[0], set)
			if err != nil {
				return err
			}
			_, err = a.Out.Write(text)
			return err
		},
	}
	setFlag(cmd, &set)
	return cmd
}

func setFlag(cmd *cobra.Command, set *map[string]string) {
	cmd.Flags().Var((*setValue)(set), "set", "parameter of the preset, NAME=VALUE; repeatable")
}

// setValue is a flag that adds one parameter each time it is set.
type setValue map[string]string

func (v *setValue) String() string { return "" }

// Type is the word that help prints after the flag.
func (v *setValue) Type() string { return "name=value" }

func (v *setValue) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	switch _, twice := (*v)[name]; {
	case !ok || name == "":
		return errors.New("write name=value")
	case twice:
		return errors.New(name + " is set already")
	case *v == nil:
		*v = setValue{}
	}
	(*v)[name] = value
	return nil
}

// showPreset returns a preset as a quotas.yaml, or the prices of models, which have no parameters.
func showPreset(name string, set map[string]string) ([]byte, error) {
	switch {
	case name != preset.PricesName:
		return renderPreset(name, set)
	case len(set) > 0:
		return nil, fail(ExitUsage, "edit what it prints", "the preset %s has no parameters", preset.PricesName)
	}
	return preset.Prices, nil
}

// renderPreset renders the preset of name:tier.
func renderPreset(name string, set map[string]string) ([]byte, error) {
	p, tier, err := preset.Find(name)
	if err != nil {
		return nil, presetFailed(err)
	}
	text, err := p.Render(tier, set)
	if err != nil {
		return nil, presetFailed(err)
	}
	return text, nil
}

func presetFailed(err error) error {
	if e, ok := errors.AsType[*preset.Error](err); ok {
		return fail(ExitUsage, e.Hint, "%s", e.Message)
	}
	return err
}

// readPreset renders a preset and parses it as a quotas.yaml.
func readPreset(name string, set map[string]string) (*quotafile.File, error) {
	text, err := renderPreset(name, set)
	if err != nil {
		return nil, err
	}
	return quotafile.Parse("the preset "+name, text)
}
