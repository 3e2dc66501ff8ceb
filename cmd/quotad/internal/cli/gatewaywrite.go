package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// serviceSocket is the socket of a gateway that the system's service runs.
const serviceSocket = "/run/quotad/gateway.sock"

// gatewaySocket returns the socket of the gateway on this machine: the user's own, if there is one.
func (a *App) gatewaySocket() string {
	if dir, ok := a.lookup("XDG_RUNTIME_DIR"); ok && dir != "" {
		own := filepath.Join(dir, "quotad", "gateway.sock")
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	return serviceSocket
}

// writeTool writes the settings of a tool that reads them from a file of its own. done is false where the caller has to
// print the settings.
func (a *App) writeTool(ctx context.Context, write bool, tool string, values map[string]string) (done bool, err error) {
	switch {
	case write && tool == "codex":
		return true, a.writeCodex(values["G"])
	case write && tool == "gh":
		return true, a.writeGh(ctx, values["Socket"])
	}
	return false, nil
}

// writeGh lets gh store the socket, because only gh knows where its configuration is. If no gateway served the socket,
// every later command of gh would fail.
func (a *App) writeGh(ctx context.Context, socket string) error {
	if info, err := os.Stat(socket); err != nil || info.Mode()&fs.ModeSocket == 0 {
		return fail(ExitUsage, "set listen.unix in gateway.yaml, start the gateway, and name the socket with --socket",
			"no gateway serves the socket %s", socket)
	}
	gh := exec.CommandContext(ctx, "gh", "config", "set", "http_unix_socket", socket)
	gh.Env, gh.Stdout, gh.Stderr = a.Environ, a.Err, a.Err
	if err := gh.Run(); err != nil {
		return fail(ExitUsage, "gh has to be installed and in PATH", "gh config set http_unix_socket %s: %w", socket, err)
	}
	_, err := fmt.Fprintf(a.Out, "# gh uses the socket %s\n", socket)
	return err
}

// The lines around a block that quotad wrote, by which it finds the block again.
const (
	blockBegin = "# quotad gateway env: begin"
	blockEnd   = "# quotad gateway env: end"
)

var (
	// written matches a block between those lines.
	written = regexp.MustCompile(`(?s)` + blockBegin + `\n.*?` + blockEnd + `\n`)
	// ownProvider matches another provider at the top; ownTable matches a table with the name that quotad uses.
	ownProvider = regexp.MustCompile(`(?m)^[ \t]*["']?model_provider["']?[ \t]*=.*$`)
	ownTable    = regexp.MustCompile(`(?m)^[ \t]*\[[ \t]*model_providers[ \t]*\.[ \t]*["']?quotad["']?[ \t]*\]`)
	table       = regexp.MustCompile(`(?m)^[ \t]*\[`)
)

// codexSettings returns the text of Codex's configuration with the gateway as its provider. It replaces quotad's earlier
// lines and leaves all other lines unchanged.
func codexSettings(text, gateway string) (string, error) {
	text = strings.TrimRight(written.ReplaceAllString(text, ""), "\n")
	top := text
	if at := table.FindStringIndex(text); at != nil {
		top = text[:at[0]]
	}
	if other := ownProvider.FindString(top); other != "" {
		return "", fmt.Errorf("it has a provider already: %s", strings.TrimSpace(other))
	}
	if other := ownTable.FindString(text); other != "" {
		return "", fmt.Errorf("it has the table %s already", strings.TrimSpace(other))
	}
	if text != "" {
		text += "\n"
	}
	return blockBegin + "\nmodel_provider = \"quotad\"\n" + blockEnd + "\n" + text + blockBegin + `
[model_providers.quotad]
name = "quotad"
base_url = "` + gateway + `/openai/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
supports_websockets = false
` + blockEnd + "\n", nil
}

// writeCodex makes the gateway Codex's provider.
func (a *App) writeCodex(gateway string) error {
	dir, _ := a.lookup("CODEX_HOME")
	if dir == "" {
		dir = filepath.Join(a.home(), ".codex")
	}
	path := filepath.Join(dir, "config.toml")
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays a link
	}
	mode := fs.FileMode(0o600)
	text, err := os.ReadFile(path)
	switch info, failed := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	case err != nil:
		return err
	case failed == nil:
		mode = info.Mode().Perm()
	}
	settings, err := codexSettings(string(text), gateway)
	if err != nil {
		return fail(ExitUsage, "remove that from the file, or write the lines that the command prints without --write", "%s: %w", path, err)
	}
	if err := replaceFile(path, settings, mode); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "# wrote %s\n", path)
	return err
}

// replaceFile replaces a file atomically.
func replaceFile(path, text string, mode fs.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".quotad-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.WriteString(text)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
