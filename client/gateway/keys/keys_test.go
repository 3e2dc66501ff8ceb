package keys

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway/config"
)

func file(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead_NeedsPrivateSingleLine(t *testing.T) {
	t.Setenv("QUOTAD_TEST_KEY", " made-up ")
	credentials := filepath.Dir(file(t, "made-up", 0o644))
	t.Setenv("CREDENTIALS_DIRECTORY", credentials)
	for name, want := range map[string]struct {
		source config.Source
		err    string
	}{
		"environment":       {config.Source{Env: "QUOTAD_TEST_KEY"}, ""},
		"empty environment": {config.Source{Env: "QUOTAD_TEST_NONE"}, "QUOTAD_TEST_NONE is empty"},
		"file":              {config.Source{File: file(t, "made-up\n", 0o440)}, ""},
		"readable by all":   {config.Source{File: file(t, "made-up", 0o444)}, "other users can access"},
		"two lines":         {config.Source{File: file(t, "made-up\nsecret", 0o600)}, "more than one line"},
		"empty":             {config.Source{File: file(t, "\n", 0o600)}, "is empty"},
		"large":             {config.Source{File: file(t, strings.Repeat("x", maxSecret+1), 0o600)}, "too large"},
		"credential":        {config.Source{Credential: "key"}, ""},
		"none":              {config.Source{File: filepath.Join(credentials, "nothing")}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Read(want.source)
			switch {
			case want.err == "" && (err != nil || got != "made-up"):
				t.Errorf("got %q, %v", got, err)
			case want.err != "" && (err == nil || !strings.Contains(err.Error(), want.err)):
				t.Errorf("got %v, want %s", err, want.err)
			case err != nil && strings.Contains(err.Error(), "made-up"):
				t.Errorf("the error has the value: %v", err)
			}
		})
	}
}

func TestFor_TakesFirstMatch(t *testing.T) {
	from := config.Source{File: file(t, "x", 0o600)}
	set, err := Load(config.Upstream{Quotas: "openai", Pool: []string{"a", "b"}, Keys: []config.Key{
		{Name: "prod", From: from, For: config.Selector{Class: config.Critical}, Quotas: "openai-prod"},
		{Name: "night", From: from, For: config.Selector{Holder: "cron-*"}},
		{Name: "a", From: from},
		{Name: "b", From: from},
		{Name: "rest", From: from},
	}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		class  config.Class
		holder string
		names  string
	}{{config.Critical, "x", "prod"}, {config.Standard, "cron-1", "night"}, {config.ClassNone, "x", "a b"}, {config.Background, "x", "a b"}} {
		var names []string
		for _, k := range set.For(want.class, want.holder) {
			names = append(names, k.Name)
		}
		if got := strings.Join(names, " "); got != want.names {
			t.Errorf("%s %s: %s, want %s", want.class, want.holder, got, want.names)
		}
	}
	if all := set.Keys(); all[0].Quotas != "openai-prod" || all[2].Quotas != "openai" {
		t.Error("a key has not the prefix of its quotas")
	}
}
