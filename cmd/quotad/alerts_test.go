package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestAlerts_NameExistingMetrics: the code exports each metric that docs/alerts.yaml queries.
func TestAlerts_NameExistingMetrics(t *testing.T) {
	text, err := os.ReadFile("../../docs/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Record, Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	operations, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	policy, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	known := string(operations) + string(policy)
	metric := regexp.MustCompile(`\bquotad_[a-z_]+`)
	names := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			for _, name := range metric.FindAllString(rule.Expr, -1) {
				names++
				if name = strings.TrimSuffix(name, "_bucket"); !strings.Contains(known, name) && !strings.HasPrefix(name, "quotad_holder_") {
					t.Errorf("%s%s asks for %s, which no page lists", rule.Alert, rule.Record, name)
				}
			}
		}
	}
	if names < 7 {
		t.Fatalf("%d names of metrics found", names)
	}
}
