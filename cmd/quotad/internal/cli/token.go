package cli

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
	"github.com/quotad/quotad/rpc"
)

func (a *App) tokenCommand() *cobra.Command {
	return group("token", "Mint tokens for a tokens_file", a.tokenNew())
}

// tokenVerbs are the verbs that a token can allow; holderVerbs are the default for holders.
var (
	tokenVerbs = []string{
		string(rpc.VerbUse), string(rpc.VerbReport), string(rpc.VerbRead), string(rpc.VerbAdminQuota),
		string(rpc.VerbAdminCluster), string(rpc.VerbDebug),
	}
	holderVerbs = tokenVerbs[:3]
)

func (a *App) tokenNew() *cobra.Command {
	var id, holder, class string
	var verbs []string
	cmd := &cobra.Command{
		Use:   "new --holder PATTERN",
		Short: "Mint a token and its stanza for the tokens_file",
		Long: `Mint a token. The secret is printed once and stored nowhere: give it to its holder. Add the stanza to the nodes'
tokens_file; it has only a hash. Send the nodes SIGHUP to reload the file.

Verbs: use (reserve, consume, settle, renew, release), report, read, admin-quota (apply, delete, revoke, tasks), admin-cluster
(members, backup, restore), debug.`,
		Example: `  quotad token new --holder 'ralph@*' --max-class standard
  quotad token new --id operator --holder '*' --max-class critical --verbs read,admin-quota,admin-cluster -o json`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.mint(cmd, id, holder, class, verbs)
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "public name of the token (default: random)")
	cmd.Flags().StringVar(&holder, "holder", "", "pattern of the holders that it may act for; * matches any characters")
	cmd.Flags().StringVar(&class, "max-class", "standard", "highest class that it may use: critical, standard, background")
	cmd.Flags().StringSliceVar(&verbs, "verbs", holderVerbs, "verbs that it allows")
	return a.outputFlag(cmd)
}

func (a *App) mint(cmd *cobra.Command, id, holder, class string, verbs []string) error {
	if holder == "" {
		return usagef(cmd, "--holder '*' allows every holder", "--holder is missing")
	}
	allowed := make([]rpc.Verb, len(verbs))
	for i, verb := range verbs {
		if !slices.Contains(tokenVerbs, verb) {
			return usagef(cmd, suggest.Hint(verb, tokenVerbs), "--verbs: %q is not one of %s", verb, strings.Join(tokenVerbs, ", "))
		}
		allowed[i] = rpc.Verb(verb)
	}
	if id == "" {
		const short = 10
		id = strings.ToLower(rand.Text()[:short])
	}
	secret, entry, err := rpc.NewToken(id, holder, class, allowed)
	if err != nil {
		return usagef(cmd, "", "%w", err)
	}
	if a.format == formatJSON {
		return output.Value(a.Out, map[string]any{
			"token": secret, "id": entry.ID, "sha256": entry.SHA256, "holder": entry.Holder, "max_class": entry.MaxClass,
			"verbs": entry.Verbs,
		})
	}
	stanza, err := yaml.Dump(map[string]any{"tokens": []tokenStanza{{entry.ID, entry.SHA256, entry.Holder, entry.MaxClass, entry.Verbs}}},
		yaml.WithIndent(2), yaml.WithCompactSeqIndent(false))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "token (shown once): %s\n\n# for the tokens_file:\n%s", secret, stanza)
	return err
}

// tokenStanza is an entry of the tokens_file without optional fields.
type tokenStanza struct {
	ID       string     `yaml:"id"`
	SHA256   string     `yaml:"sha256"`
	Holder   string     `yaml:"holder"`
	MaxClass string     `yaml:"max_class"`
	Verbs    []rpc.Verb `yaml:"verbs,flow"`
}
