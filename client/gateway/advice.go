package gateway

import (
	"cmp"
	"strings"

	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/dialect"
)

// preset is a set of predefined quotas, which "quotad quota apply" creates.
type preset struct {
	// name is the preset's name, with its lowest tier if it needs one; prefix begins its quotas' names by default.
	name, prefix string
	// model is the parameter that names the model; empty: the preset is not for models.
	model string
	// limits are the limits that only the owner of the account knows.
	limits []string
}

// presets has the preset of each dialect. A test of the command line applies all of them as refusals advise.
var presets = map[dialect.Name]preset{ //nolint:exhaustive // Generic has none
	dialect.OpenAI:    {"openai:tier1", "openai", "model", []string{"rpm", "tpm"}},
	dialect.Codex:     {"openai:tier1", "openai", "model", []string{"rpm", "tpm"}},
	dialect.Anthropic: {"anthropic:start", "anthropic", "model", []string{"rpm", "itpm", "otpm"}},
	dialect.Azure:     {"azure", "azure", "deployment", []string{"rpm", "tpm"}},
	dialect.Bedrock:   {"bedrock", "bedrock", "model", []string{"rpm", "tpm"}},
	dialect.Gemini:    {"gemini", "gemini", "model", []string{"rpm", "tpm", "rpd"}},
	dialect.GitHub:    {"github", "github", "", nil},
}

// applyHelp is the advice if no preset has the quota.
const applyHelp = "Apply one: quotad quota apply --help"

// adviseModel tells how to create a quota for the call's model. The model's name is a valid quota name, so shells read it literally.
func (c *call) adviseModel() string {
	p, ok := presets[c.upstream.dialect]
	if !ok || p.model == "" {
		return applyHelp
	}
	return "Apply one, with your account's limits: " + p.command(c.prefixOfQuotas, cmp.Or(cut(c.target.Model), catalog.AnyModel))
}

// adviseQuota tells how to create a quota that the cluster lacks.
func (c *call) adviseQuota(quota string) string {
	if c.upstream != nil {
		p, ok := presets[c.upstream.dialect]
		if below, found := strings.CutPrefix(quota, c.prefixOfQuotas+"/"); ok && p.model == "" && found && !strings.Contains(below, "/") {
			return "Apply it: " + p.command(c.prefixOfQuotas, "")
		}
	}
	return applyHelp
}

// command returns the command that applies a preset. Values for the user to fill in are in capitals.
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
