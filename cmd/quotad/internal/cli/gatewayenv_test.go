package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gatewayEnvOf runs "quotad gateway env" and returns what it prints.
func gatewayEnvOf(t *testing.T, environ []string, args ...string) (string, error) {
	t.Helper()
	var out, errors strings.Builder
	app := &App{In: strings.NewReader(""), Out: &out, Err: &errors, Environ: environ}
	cmd := app.gatewayEnv()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errors)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestGatewayEnv_WritesCodexsProvider: the user's own settings stay, and a second write changes nothing.
func TestGatewayEnv_WritesCodexsProvider(t *testing.T) {
	const own = "model = \"gpt-5\"\napproval_policy = \"never\"\n\n[model_providers.other]\nname = \"other\"\nmodel_provider = \"x\"\n"
	for name, before := range map[string]string{"no file": "", "own settings": own, "no last newline": strings.TrimRight(own, "\n")} {
		dir := filepath.Join(t.TempDir(), "codex")
		path := filepath.Join(dir, "config.toml")
		if before != "" {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(before), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		printed, err := gatewayEnvOf(t, []string{"CODEX_HOME=" + dir}, "codex")
		if _, missing := os.ReadFile(path); err != nil || !strings.HasPrefix(printed, "# ~/.codex") || before == "" && missing == nil {
			t.Fatalf("%s: without --write it prints %q, %v, and writes", name, printed, err)
		}
		var first string
		for _, holder := range []string{"picard", "data", "data"} {
			printed, err := gatewayEnvOf(t, []string{"CODEX_HOME=" + dir}, "codex", "--write", "--holder", holder)
			if err != nil || printed != "# wrote "+path+"\n" {
				t.Fatalf("%s: %q, %v", name, printed, err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			now := string(text)
			top, tables, _ := strings.Cut(now, "[")
			if strings.Count(now, `model_provider = "quotad"`) != 1 || !strings.Contains(top, `model_provider = "quotad"`) ||
				strings.Count(tables, "model_providers.quotad]") != 1 ||
				!strings.Contains(now, `base_url = "http://127.0.0.1:7452/as/`+holder+`/openai/v1"`) ||
				!strings.Contains(now, strings.TrimRight(before, "\n")) {
				t.Errorf("%s, %s: the file is\n%s", name, holder, now)
			}
			if first != "" && strings.ReplaceAll(first, "picard", "data") != now {
				t.Errorf("%s: written again, it is\n%s", name, now)
			}
			first = now
		}
		if info, err := os.Stat(path); err != nil || before != "" && info.Mode().Perm() != 0o640 || before == "" && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

func TestGatewayEnv_LeavesAnotherProviderAlone(t *testing.T) {
	for _, own := range []string{
		"model_provider = \"mine\"\n", "a = 1\n  \"model_provider\"=\"mine\"\n", "[ model_providers . quotad ]\nname = \"mine\"\n",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "config.toml")
		if err := os.WriteFile(path, []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := gatewayEnvOf(t, []string{"CODEX_HOME=" + dir}, "codex", "--write"); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("%q: got %v", own, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != own {
			t.Errorf("%q became %q, %v", own, text, err)
		}
	}
}

// TestGatewayEnv_HasGhKeepTheSocket: gh writes its own configuration.
func TestGatewayEnv_HasGhKeepTheSocket(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\nprintf '%s\\n' \"$*\" > '" + dir + "/asked'\n"
	if err := os.WriteFile(filepath.Join(dir, "gh"), []byte(script), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/bin:/usr/bin")
	asked := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "asked"))
		return string(text)
	}
	printed, err := gatewayEnvOf(t, nil, "gh")
	if err != nil || asked() != "" || !strings.Contains(printed, "http_unix_socket "+serviceSocket) {
		t.Errorf("without --write: %q, %v, gh was asked %q", printed, err, asked())
	}
	const set = "config set http_unix_socket "
	listens := func(path string) {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
	}
	named, own := filepath.Join(dir, "x.sock"), filepath.Join(dir, "quotad", "gateway.sock")
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, missing := range []string{named, filepath.Join(dir, "plain")} {
		_, err := gatewayEnvOf(t, nil, "gh", "--write", "--socket", missing)
		if err == nil || !strings.Contains(err.Error(), missing) || asked() != "" {
			t.Errorf("%s: got %v, gh was asked %q", missing, err, asked())
		}
	}
	listens(named)
	if _, err := gatewayEnvOf(t, nil, "gh", "--write", "--socket", named); err != nil || asked() != set+named+"\n" {
		t.Errorf("%v, gh was asked %q", err, asked())
	}
	if err := os.Mkdir(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	listens(own)
	if _, err := gatewayEnvOf(t, []string{"XDG_RUNTIME_DIR=" + dir}, "gh", "--write"); err != nil || asked() != set+own+"\n" {
		t.Errorf("%v, gh was asked %q, want %s", err, asked(), own)
	}
}

// TestGatewayEnv_NamesTheTokenOfASingleCall: gh treats the gateway's address as an Enterprise server, whose token has its
// own variable.
func TestGatewayEnv_NamesTheTokenOfASingleCall(t *testing.T) {
	printed, err := gatewayEnvOf(t, nil, "gh")
	if err != nil || !strings.Contains(printed, `GH_ENTERPRISE_TOKEN="$(gh auth token)" gh api http://127.0.0.1:7452/github/user`) {
		t.Errorf("got %q, %v", printed, err)
	}
}
