package catalog

import (
	"regexp"
	"strings"
)

// endings match additions to models' names: dates, versions and context sizes.
var endings = regexp.MustCompile(`(-v\d+:\d+|@20\d{6}|-20\d{2}-?[01]\d-?[0-3]\d|-latest|\[[0-9a-z]+\])$`)

// bedrockPrefix matches a region or area, and the vendor, before a model of Bedrock: us.anthropic. or meta.
var bedrockPrefix = regexp.MustCompile(`^([a-z]{2,6}(-[a-z]+)*\.)?` +
	`(ai21|amazon|anthropic|cohere|deepseek|meta|mistral|openai|qwen|stability|writer)\.`)

// Canonical returns a model's name without what providers add to it: a date, -latest, [1m], Bedrock's region, vendor and version. Two
// spellings of a model must not be two limits.
func Canonical(model string) string {
	model = Plain(model)
	model = bedrockPrefix.ReplaceAllString(model, "")
	for {
		shorter := endings.ReplaceAllString(model, "")
		if shorter == model || shorter == "" {
			return model
		}
		model = shorter
	}
}

// Plain returns the part of a name that identifies the model: of a path or an ARN, the part after the last slash.
func Plain(model string) string {
	if strings.HasPrefix(model, "arn:") || strings.HasPrefix(model, "models/") {
		return model[strings.LastIndexByte(model, '/')+1:]
	}
	return model
}

// Name returns a model's name with - for each character that quota names exclude.
func Name(model string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._-/@:", r):
			return r
		}
		return '-'
	}, strings.Trim(model, "/"))
}
