package cli

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
	"github.com/quotad/quotad/rpc"
)

func (a *App) tokenCommand() *cobra.Command {
	return group("token", "Mint tokens for a tokens_file, and list its entries", a.tokenNew(), a.tokenList())
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
	var asked rpc.Token
	var lasts string
	var verbs []string
	cmd := &cobra.Command{
		Use:   "new --holder PATTERN",
		Short: "Mint a token and its entry for the tokens_file",
		Long: `Mint a token. The secret is printed once and stored nowhere: give it to its holder. Add the entry to the nodes'
tokens_file; it has only a hash. Send the nodes SIGHUP to reload the file.

Verbs: use (reserve, consume, settle, renew, release), report, read, admin-quota (apply, delete, revoke, tasks), admin-cluster
(members, backup, restore), debug.

Calls above --max-class are not refused: they run as that class.`,
		Example: `  quotad token new --holder 'ralph@*' --max-class standard
  quotad token new --holder 'ci@*' --for 90d
  quotad token new --id operator --holder '*' --max-class critical --verbs read,admin-quota,admin-cluster -o json`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, verb := range verbs {
				if !slices.Contains(tokenVerbs, verb) {
					return usagef(cmd, suggest.Hint(verb, tokenVerbs), "--verbs: %q is not one of %s", verb, strings.Join(tokenVerbs, ", "))
				}
				asked.Verbs = append(asked.Verbs, rpc.Verb(verb))
			}
			length, err := durationFlag(cmd, "for", lasts)
			if err != nil {
				return err
			}
			if length != nil {
				if length.AsDuration() < time.Second {
					return usagef(cmd, "such as 90d", "--for %q is less than a second", lasts)
				}
				asked.NotAfter = time.Now().Add(length.AsDuration() + time.Second).UTC().Truncate(time.Second)
			}
			if err := a.mint(cmd, asked); err != nil {
				return err
			}
			if !cmd.Flags().Changed("max-class") && slices.Contains(asked.Verbs, rpc.VerbUse) {
				a.progress("critical calls with this token run as standard: --max-class critical would allow them")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&asked.ID, "id", "", "public name of the token (default: random)")
	cmd.Flags().StringVar(&asked.Holder, "holder", "", "pattern of the holders that it may act for; * matches any characters")
	cmd.Flags().StringVar(&asked.MaxClass, "max-class", "standard", "highest class of its calls: critical, standard, background")
	cmd.Flags().StringSliceVar(&verbs, "verbs", holderVerbs, "verbs that it allows")
	cmd.Flags().StringVar(&lasts, "for", "", "how long it is valid, such as 90d (default: until its entry is removed)")
	return a.outputFlag(cmd)
}

// mint makes a token with the fields that were asked for, and prints it.
func (a *App) mint(cmd *cobra.Command, asked rpc.Token) error {
	if asked.Holder == "" {
		return usagef(cmd, "--holder '*' allows every holder", "--holder is missing")
	}
	if asked.ID == "" {
		const short = 10
		asked.ID = strings.ToLower(rand.Text()[:short])
	}
	secret, token, err := rpc.NewToken(asked.ID, asked.Holder, asked.MaxClass, asked.Verbs)
	if err != nil {
		return usagef(cmd, "", "%w", err)
	}
	entry := tokenEntry{ID: token.ID, SHA256: token.SHA256, Holder: token.Holder, MaxClass: token.MaxClass, Verbs: token.Verbs}
	if !asked.NotAfter.IsZero() {
		entry.NotAfter = &asked.NotAfter
	}
	if a.format == formatJSON {
		return output.Value(a.Out, struct {
			Token string `json:"token"`
			tokenEntry
		}{secret, entry})
	}
	lines, err := yaml.Dump(map[string]any{"tokens": []tokenEntry{entry}}, yaml.WithIndent(2), yaml.WithCompactSeqIndent(false))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "token (shown once): %s\n\n# for the tokens_file:\n%s", secret, lines)
	return err
}

func (a *App) tokenList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list FILE",
		Short: "List the entries of a tokens_file",
		Long: `List the entries of a tokens_file: ids, holders, classes, verbs and expiry. It reads the file, and asks no node: a node has
the entries of its last start or SIGHUP.`,
		Example: `  quotad token list /etc/quotad/tokens.yaml`,
		Args:    arguments("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			tokens, err := rpc.LoadTokens(args[0])
			if err != nil {
				return fail(ExitFailure, "", "%w", err)
			}
			return a.printTokens(tokens.List(), time.Now())
		},
	}
	return a.outputFlag(cmd)
}

// listedToken is a line about a token, without its hash.
type listedToken struct {
	ID       string     `json:"id"`
	Holder   string     `json:"holder"`
	MaxClass string     `json:"max_class"`
	Verbs    []rpc.Verb `json:"verbs"`
	NotAfter *time.Time `json:"not_after,omitempty"`
	Expired  bool       `json:"expired"`
}

func (a *App) printTokens(tokens []rpc.Token, now time.Time) error {
	listed := make([]listedToken, len(tokens))
	table := output.Table{Header: []string{"TOKEN", "HOLDERS", "MAX CLASS", "VERBS", "EXPIRES"}}
	for i, token := range tokens {
		line := listedToken{ID: token.ID, Holder: token.Holder, MaxClass: cmp.Or(token.MaxClass, "standard"), Verbs: token.Verbs}
		expires := "never"
		if !token.NotAfter.IsZero() {
			line.NotAfter, line.Expired = &token.NotAfter, now.After(token.NotAfter)
			expires = token.NotAfter.UTC().Format(time.RFC3339)
		}
		if line.Expired {
			expires += " (expired)"
		}
		listed[i] = line
		words := make([]string, len(token.Verbs))
		for j, verb := range token.Verbs {
			words[j] = string(verb)
		}
		table.Add(line.ID, line.Holder, line.MaxClass, strings.Join(words, ","), expires)
	}
	if a.format == formatJSON {
		return output.Value(a.Out, map[string]any{"tokens": listed})
	}
	return table.Write(a.Out)
}

// tokenEntry is an entry of the tokens_file.
type tokenEntry struct {
	ID       string     `yaml:"id" json:"id"`
	SHA256   string     `yaml:"sha256" json:"sha256"`
	Holder   string     `yaml:"holder" json:"holder"`
	MaxClass string     `yaml:"max_class" json:"max_class"`
	Verbs    []rpc.Verb `yaml:"verbs,flow" json:"verbs"`
	NotAfter *time.Time `yaml:"not_after,omitempty" json:"not_after,omitempty"`
}
