package preset

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// given are values for every parameter for which some preset has no figure.
var given = map[string]string{
	"model": "m-1.5", "deployment": "prod", "rpm": "60", "tpm": "90000", "itpm": "50000", "otpm": "10000", "rpd": "1000",
}

// render renders a preset with those of the given values that it uses.
func render(t *testing.T, p *Preset, tier string) *quotafile.File {
	t.Helper()
	set := map[string]string{}
	for name := range p.Parameters {
		if value, ok := given[name]; ok {
			set[name] = value
		}
	}
	text, err := p.Render(tier, set)
	if err != nil {
		t.Fatal(err)
	}
	file, err := quotafile.Parse(p.Name, text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return file
}

func TestRender_EveryTier(t *testing.T) {
	for _, p := range All() {
		for _, tier := range append(slices.Sorted(maps.Keys(p.Tiers)), "") {
			if tier == "" && len(p.Tiers) > 0 {
				continue
			}
			t.Run(p.Name+":"+tier, func(t *testing.T) {
				for _, quota := range render(t, p, tier).Quotas {
					if !strings.HasPrefix(quota.Name, p.Name+"/") {
						t.Errorf("a quota of another provider: %s", quota.Name)
					}
				}
			})
		}
	}
}

// TestPrefix_NamesQuotasOfAnotherUpstream: a preset serves each upstream that is compatible with its provider.
func TestPrefix_NamesQuotasOfAnotherUpstream(t *testing.T) {
	for _, p := range All() {
		tier := p.Default
		if tier == "" && len(p.Tiers) > 0 {
			tier = slices.Sorted(maps.Keys(p.Tiers))[0]
		}
		set := map[string]string{"prefix": "corp/eu"}
		for name := range p.Parameters {
			if value, ok := given[name]; ok {
				set[name] = value
			}
		}
		text, err := p.Render(tier, set)
		if err != nil {
			t.Fatal(err)
		}
		file, err := quotafile.Parse(p.Name, text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for _, quota := range file.Quotas {
			if !strings.HasPrefix(quota.Name, "corp/eu/") || quota.Parent != "" && !strings.HasPrefix(quota.Parent, "corp/eu/") {
				t.Errorf("%s: the quota %s below %q", p.Name, quota.Name, quota.Parent)
			}
		}
		set["prefix"] = "a b"
		if _, err := p.Render(tier, set); err == nil || !strings.Contains(err.Error(), "prefix cannot be") {
			t.Errorf("%s takes a prefix that no name can have: %v", p.Name, err)
		}
	}
}

// TestFigures_NameTheirSource: each figure names its source and a day; unpublished parameters, and only these, have
// headroom.
func TestFigures_NameTheirSource(t *testing.T) {
	url := regexp.MustCompile(`[a-z]+\.[a-z]+/`)
	for _, p := range All() {
		sources := map[string][2]string{"": {p.Source, p.Date}}
		for name, tier := range p.Tiers {
			sources[name] = [2]string{tier.Source, tier.Date}
			for parameter, figure := range tier.Figures {
				if p.Parameters[parameter].Kind != "limit" || figure < 1 {
					t.Errorf("%s:%s has a figure of %q", p.Name, name, parameter)
				}
			}
			for model, figures := range tier.Models {
				for parameter := range figures {
					if p.Parameters[parameter].Kind != "limit" {
						t.Errorf("%s:%s: %s has a figure of %q", p.Name, name, model, parameter)
					}
				}
			}
		}
		if len(p.Tiers) > 0 {
			delete(sources, "")
		}
		for name, source := range sources {
			if _, err := time.Parse(time.DateOnly, source[1]); err != nil || !url.MatchString(source[0]) {
				t.Errorf("%s:%s is from %q of %q", p.Name, name, source[0], source[1])
			}
		}
	}
}

func TestRender_GitHubKinds(t *testing.T) {
	p, tier, err := Find("github")
	if err != nil || tier != "user" {
		t.Fatal(tier, err)
	}
	quotas := map[string]*quotav1.Quota{}
	for _, quota := range render(t, p, tier).Quotas {
		quotas[quota.Name] = quota
	}
	for name, limit := range map[string]int64{"github/core": 5000, "github/graphql": 5000, "github/search": 30, "github/code_search": 10} {
		window := quotas[name].GetWindow()
		if window.GetLimit() != limit || window.GetAnchor() != quotav1.Anchor_ANCHOR_PROVIDER {
			t.Errorf("%s: %v", name, window)
		}
	}
	if got := quotas["github/concurrent"].GetSlots().GetLimit(); got != 100 {
		t.Errorf("%d at once", got)
	}
	for name, limit := range map[string]int64{
		"github/points": 900, "github/graphql-points": 2000, "github/content": 80, "github/content-per-hour": 500,
	} {
		if got := quotas[name].GetRate().GetLimit(); got != limit {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// TestRates_HaveShares: critical calls do not wait a period of a provider's sliding limit because of other calls' bursts.
func TestRates_HaveShares(t *testing.T) {
	for _, p := range All() {
		for _, tier := range append(slices.Sorted(maps.Keys(p.Tiers)), "") {
			if tier == "" && len(p.Tiers) > 0 {
				continue
			}
			for _, quota := range render(t, p, tier).Quotas {
				if quota.GetRate() != nil && quota.GetPolicy().GetShares() == nil {
					t.Errorf("%s:%s: %s has no shares", p.Name, tier, quota.Name)
				}
			}
		}
	}
}

func TestHeadroom_OnlyOfUnpublishedFigures(t *testing.T) {
	for name, want := range map[string]float64{
		"gemini": 0.35, "bedrock": 0.35, "azure": 0, "copilot": 0.35, "openai:tier2": 0, "anthropic:build": 0,
	} {
		p, tier, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, quota := range render(t, p, tier).Quotas {
			if quota.Headroom != want {
				t.Errorf("%s: %s has headroom %v, want %v", name, quota.Name, quota.Headroom, want)
			}
		}
	}
	p, tier, _ := Find("gemini")
	text, err := p.Render(tier, map[string]string{"model": "m", "rpm": "1", "tpm": "1", "rpd": "1", "headroom": "0"})
	if err != nil || strings.Contains(string(text), "headroom") {
		t.Errorf("%v\n%s", err, text)
	}
	p, tier, _ = Find("openai:tier1")
	text, err = p.Render(tier, map[string]string{"rpm": "500", "headroom": "0.1"})
	if err != nil || strings.Count(string(text), "headroom: 0.1") != 2 {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestRender_MarksAssumptions: a figure without a source is marked as an assumption, until the user sets it.
func TestRender_MarksAssumptions(t *testing.T) {
	p, tier, err := Find("copilot")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		set  map[string]string
		want []string
	}{
		{nil, []string{"# Completions per hour, an assumption: --set completions=... gives yours.", "rate: {limit: 80, per: 1h}"}},
		{map[string]string{"completions": "120"}, []string{"# Completions per hour, as given.", "rate: {limit: 120, per: 1h}"}},
	} {
		text, err := p.Render(tier, c.set)
		for _, want := range c.want {
			if err != nil || !strings.Contains(string(text), want) {
				t.Errorf("%v: %v, no %q in\n%s", c.set, err, want, text)
			}
		}
	}
}

func TestRender_PublishedFiguresAreOptional(t *testing.T) {
	p, tier, err := Find("anthropic:start")
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Render(tier, map[string]string{"model": "claude-fable-5"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"limit: 500000", "Input tokens per minute, as published.", "Source: platform.claude.com/docs/en/api/rate-limits", "2026-10-17",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("without %q:\n%s", want, text)
		}
	}
	text, err = p.Render(tier, map[string]string{"model": "claude-fable-5", "itpm": "750000"})
	if err != nil || !strings.Contains(string(text), "limit: 750000") ||
		!strings.Contains(string(text), "Input tokens per minute, as given.") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestErrors_NameCauseAndRemedy(t *testing.T) {
	for name, tt := range map[string]struct {
		preset        string
		set           map[string]string
		message, hint string
	}{
		"no such preset":  {"gihub", nil, `no preset "gihub"`, `did you mean "github"?`},
		"nothing like it": {"zzzzzz", nil, "no preset", "known: anthropic, azure"},
		"no tier":         {"openai", nil, "needs a tier", "openai:tier1"},
		"no such tier":    {"openai:tier6", nil, `no tier "tier6"`, "did you mean"},
		"no tiers":        {"gemini:free", nil, "has no tiers", "use gemini without a tier"},
		"figures missing": {"openai:tier1", nil, "needs --set rpm=... (requests per minute)", "platform.openai.com"},
		"another model": {
			"anthropic:start", map[string]string{"model": "x"}, "--set itpm=... (input tokens per minute), --set otpm", "platform.claude.com",
		},
		"no such parameter":  {"openai:tier1", map[string]string{"rpn": "1"}, `no parameter "rpn"`, `did you mean "rpm"?`},
		"no number":          {"openai:tier1", map[string]string{"rpm": "many"}, `rpm cannot be "many"`, "whole number"},
		"too small":          {"azure", map[string]string{"rpm": "5"}, `rpm cannot be "5"`, "from 6"},
		"a suspended quota":  {"openai:tier1", map[string]string{"rpm": "0"}, `rpm cannot be "0"`, "from 1"},
		"too large":          {"openai:tier1", map[string]string{"rpm": "9007199254740992"}, "rpm cannot be", ""},
		"a name with a line": {"azure", map[string]string{"deployment": "a\n  - name: b"}, "deployment cannot be", "letters"},
		"all headroom":       {"gemini", map[string]string{"headroom": "1"}, `headroom cannot be "1"`, "0.35"},
		"fine headroom":      {"gemini", map[string]string{"headroom": "NaN"}, `headroom cannot be "NaN"`, "0.35"},
	} {
		t.Run(name, func(t *testing.T) {
			p, tier, err := Find(tt.preset)
			if err == nil {
				_, err = p.Render(tier, tt.set)
			}
			e, ok := errors.AsType[*Error](err)
			if !ok || !strings.Contains(e.Message, tt.message) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("%T: %v", err, err)
			}
		})
	}
}
