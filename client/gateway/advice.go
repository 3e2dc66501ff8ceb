package gateway

import (
	"cmp"
	"strings"

	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/dialect"
)

// preset is a set of ready quotas, which "quotad quota apply" makes.
type preset struct {
	// name is that of the preset, with its lowest tier where it needs one; prefix is what its quotas' names begin with by default.
	name, prefix string
	// model is the parameter that names the model; empty: it is not for models.
	model string
	// limits are those that only the user of the account knows.
	limits []string
}

// presets are those for each dialect. A test of the command line applies all of them as refusals advise.
var presets = map[dialect.Name]preset{ //nolint:exhaustive // Generic has none
	dialect.OpenAI:    {"openai:tier1", "openai", "model", []string{"rpm", "tpm"}},
	dialect.Codex:     {"openai:tier1", "openai", "model", []string{"rpm", "tpm"}},
	dialect.Anthropic: {"anthropic:start", "anthropic", "model", []string{"rpm", "itpm", "otpm"}},
	dialect.Azure:     {"azure", "azure", "deployment", []string{"rpm", "tpm"}},
	dialect.Bedrock:   {"bedrock", "bedrock", "model", []string{"rpm", "tpm"}},
	dialect.Gemini:    {"gemini", "gemini", "model", []string{"rpm", "tpm", "rpd"}},
	dialect.GitHub:    {"github", "github", "", nil},
}

// applyHelp is the advice where no preset has the quota.
const applyHelp = "Apply one: quotad quota apply --help"

// adviseModel says how the call's model gets a quota. Its name is that of a quota, so nothing in it means anything to a shell.
func (c *call) adviseModel() string {
	p, ok := presets[c.upstream.dialect]
	if !ok || p.model == "" {
		return applyHelp
	}
	return "Apply one, with your account's limits: " + p.command(c.prefixOfQuotas, cmp.Or(cut(c.target.Model), catalog.AnyModel))
}

// adviseQuota says how a quota comes to be that the cluster does not have.
func (c *call) adviseQuota(quota string) string {
	if c.upstream != nil {
		p, ok := presets[c.upstream.dialect]
		if below, found := strings.CutPrefix(quota, c.prefixOfQuotas+"/"); ok && p.model == "" && found && !strings.Contains(below, "/") {
			return "Apply it: " + p.command(c.prefixOfQuotas, "")
		}
	}
	return applyHelp
}

// command returns the command that applies a preset. What its user has to fill in is in capitals.
func (p preset) command(prefix, model string) string {
	words := []string{"quotad quota apply --preset", p.name}
	set := func(parameter, value string) { words = append(words, "--set", parameter+"="+value) }
	if prefix != p.prefix {
		set("prefix", prefix)
	}
	if model != "" {
		set(p.model, model)
	}
	for _, limit := range p.limits {
		set(limit, strings.ToUpper(limit))
	}
	return strings.Join(words, " ")
}
