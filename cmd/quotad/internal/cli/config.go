package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/cmd/quotad/internal/daemon"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc"
)

// settingFlags gives a command one flag for each setting, and --config.
func settingFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.String("config", "", "YAML file with settings (env QUOTAD_CONFIG)")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	for _, setting := range config.Settings() {
		usage := fmt.Sprintf("%s [%s", setting.Help, setting.Unit)
		if setting.Default != "" {
			usage += "; default " + setting.Default
		}
		flags.Var(&settingValue{unit: setting.Unit}, setting.Flag(), usage+"]")
		if setting.Unit == "true, false" {
			flags.Lookup(setting.Flag()).NoOptDefVal = "true"
		}
	}
}

// settingValue is a flag's text; the table of settings parses it, so that mistakes get the same message in every layer.
type settingValue struct{ text, unit string }

func (v *settingValue) String() string { return v.text }

func (v *settingValue) Set(text string) error {
	v.text = text
	return nil
}

// Type is the word that help prints after the flag.
func (v *settingValue) Type() string {
	switch v.unit {
	case "true, false", "boltdb, wal", "lan, wan", "text, json", "trace, debug, info, warn, error":
		return "word"
	case "list of name=id":
		return "name=id,..."
	case "list of id, raft, api":
		return "id=raft/api,..."
	}
	return v.unit
}

// loadConfig reads the configuration of a command with settingFlags. Calling it again reads the file again.
func (a *App) loadConfig(cmd *cobra.Command) (*config.Loaded, error) {
	in := config.Input{Environ: a.Environ, Flags: map[string]string{}}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		in.Flags[f.Name] = f.Value.String()
	})
	in.File = in.Flags["config"]
	if in.File == "" {
		in.File, _ = a.lookup("QUOTAD_CONFIG")
	}
	return config.Load(in)
}

func (a *App) configCommand() *cobra.Command {
	return group("config", "Check a server's configuration", a.configCheck())
}

func (a *App) configCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and print each value with its source",
		Long: `Check the configuration as "quotad serve" reads it, from the same flags, environment and file, and print each effective
value with its source, and what a node derives from its memory limit. The check includes tokens_file, quotas_file and
certificates; it verifies each certificate as the other nodes do. If something is wrong, it prints every mistake with file
and line, and exits with 2. It starts nothing.`,
		Example: `  quotad config check --config /etc/quotad/quotad.yaml
  quotad config check --config quotad.yaml -o json`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := checkFiles(loaded.Config); err != nil {
				return err
			}
			return a.printConfig(loaded)
		},
	}
	settingFlags(cmd)
	return a.outputFlag(cmd)
}

// checkFiles reads the files that a configuration names, as a node does at its start.
func checkFiles(c config.Config) error {
	var mistakes []error
	if c.TokensFile != "" {
		if _, err := rpc.LoadTokens(c.TokensFile); err != nil {
			mistakes = append(mistakes, fmt.Errorf("tokens_file: %w", err))
		}
	}
	if c.QuotasFile != "" {
		if _, err := quotafile.Read(c.QuotasFile); err != nil {
			mistakes = append(mistakes, fmt.Errorf("quotas_file: %w", err))
		}
	}
	mistakes = append(mistakes, daemon.CheckCertificates(c)...)
	if len(mistakes) > 0 {
		return &config.Error{Mistakes: mistakes}
	}
	return nil
}

func (a *App) printConfig(loaded *config.Loaded) error {
	derived, source := planned(loaded.Config)
	if a.format == formatJSON {
		values := map[string]map[string]string{}
		for _, value := range loaded.Values {
			values[value.Setting.Key] = map[string]string{"value": value.Text, "source": value.Source}
		}
		for _, value := range derived {
			values[value[0]] = map[string]string{"value": value[1], "source": source}
		}
		return output.Value(a.Out, values)
	}
	table := output.Table{Header: []string{"KEY", "VALUE", "SOURCE"}}
	for _, value := range loaded.Values {
		table.Add(value.Setting.Key, output.Or(strings.TrimSpace(value.Text)), value.Source)
	}
	for _, value := range derived {
		table.Add(value[0], value[1], source)
	}
	return table.Write(a.Out)
}

// planned returns what a node derives from its memory limit, as names and values, and where they come from. The state's budgets are those
// of a cluster that the node founds.
func planned(c config.Config) (values [][2]string, source string) {
	limit, err := daemon.MemoryLimit(c)
	source = fmt.Sprintf("memory of %d MiB", limit>>20)
	if err != nil || limit == 0 {
		source = "no memory limit"
	}
	plan := rpc.PlanMemory(limit)
	for _, derived := range []struct {
		name  string
		value int64
	}{
		{"state_bytes", plan.State},
		{"request_bytes", plan.RequestBytes},
		{"max_calls", plan.Calls},
		{"max_streams", plan.Streams},
		{"max_connections", plan.Connections},
	} {
		values = append(values, [2]string{derived.name, output.Int(derived.value)})
	}
	return values, source
}
