package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/cmd/quotad/internal/gatewayfile"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
)

// defaultGateway is the address of a gateway unless a flag names another.
const defaultGateway = "http://127.0.0.1:7452"

// reach is how commands reach a gateway: by its URL, or over its socket. What no flag names is as the gateway's configuration says.
type reach struct{ config, url, socket string }

// flags adds the flags of a command that reaches a gateway.
func (r *reach) flags(cmd *cobra.Command, socket string) {
	cmd.Flags().StringVar(&r.config, "config", "", "the gateway's configuration, which has its address (env QUOTAD_GATEWAY_CONFIG, "+
		"default ~/.config/quotad/gateway.yaml if that exists)")
	cmd.Flags().StringVar(&r.url, "url", "", "the gateway's URL (default: as in its configuration, or "+defaultGateway+")")
	cmd.Flags().StringVar(&r.socket, "socket", "", socket)
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}

// assume sets the defaults where the configuration cannot be read. Without --config that is no error: the file may need variables that only
// the gateway's service has.
func (a *App) assume(r *reach, path string, failed error) error {
	if r.config != "" {
		return gatewayError(failed)
	}
	if !errors.Is(failed, fs.ErrNotExist) {
		_, _ = fmt.Fprintf(a.Err, "%s cannot be read, so %s is assumed: %v\n", path, defaultGateway, failed)
	}
	r.url, r.socket = defaultGateway, cmp.Or(r.socket, a.gatewaySocket())
	return nil
}

// complete sets what no flag named. A gateway without a TCP address leaves the URL empty.
func (a *App) complete(cmd *cobra.Command, r *reach) error {
	switch {
	case r.config != "" && r.url != "":
		return usagef(cmd, "", "--config and --url exclude each other")
	case r.url != "":
		r.socket = cmp.Or(r.socket, a.gatewaySocket())
		return nil
	}
	path, err := filepath.Abs(a.gatewayPath(r.config))
	if err != nil {
		return err
	}
	conf, err := gatewayfile.Load(path)
	if err != nil {
		return a.assume(r, path, err)
	}
	listen := conf.Complete().Listen
	if _, err := os.Stat(listen.Unix); err == nil || r.config != "" {
		r.socket = cmp.Or(r.socket, listen.Unix)
	}
	r.socket = cmp.Or(r.socket, a.gatewaySocket())
	if len(listen.TCP) == 0 {
		return nil
	}
	host, port, err := net.SplitHostPort(listen.TCP[0])
	if err != nil {
		return gatewayError(fmt.Errorf("listen.tcp: %w", err))
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if listen.Cert != "" {
		scheme = "https"
	}
	r.url = scheme + "://" + net.JoinHostPort(host, port)
	return nil
}

// toolSettings are the shell lines that point a tool at a gateway. .URL is the gateway's URL. .G is the same with the
// holder in the path, for tools that cannot send headers. .Holder is the holder's name, and .Socket the gateway's socket.
var toolSettings = map[string]string{
	"claude": `export ANTHROPIC_BASE_URL={{.URL}}/anthropic
{{if .Holder}}export ANTHROPIC_CUSTOM_HEADERS={{quote (printf "X-Quotad-Holder: %s" .Holder)}}
{{end}}`,
	"claude-bedrock": `export CLAUDE_CODE_USE_BEDROCK=1
export ANTHROPIC_BEDROCK_BASE_URL={{.URL}}/bedrock
export CLAUDE_CODE_SKIP_BEDROCK_AUTH=1
{{if .Holder}}export ANTHROPIC_CUSTOM_HEADERS={{quote (printf "X-Quotad-Holder: %s" .Holder)}}
{{end}}`,
	"codex": `# ~/.codex/config.toml:
#   model_provider = "quotad"
#   [model_providers.quotad]
#   name = "quotad"
#   base_url = "{{.G}}/openai/v1"
#   wire_api = "responses"
#   env_key = "OPENAI_API_KEY"
#   supports_websockets = false
# With a ChatGPT login instead of an API key:
#   base_url = "{{.G}}/chatgpt/codex"
#   requires_openai_auth = true
`,
	"copilot": `export COPILOT_PROVIDER_BASE_URL={{.G}}/openai/v1
export COPILOT_PROVIDER_TYPE=openai
`,
	"gemini": `export GOOGLE_GEMINI_BASE_URL={{.G}}/gemini
`,
	"aider": `export OPENAI_API_BASE={{.G}}/openai/v1
export ANTHROPIC_API_BASE={{.G}}/anthropic
`,
	"openai": `export OPENAI_BASE_URL={{.G}}/openai/v1
`,
	"anthropic": `export ANTHROPIC_BASE_URL={{.G}}/anthropic
`,
	"azure": `export AZURE_OPENAI_ENDPOINT={{.G}}/azure
`,
	"bedrock": `export AWS_ENDPOINT_URL_BEDROCK_RUNTIME={{.G}}/bedrock
`,
	"octokit": `export GITHUB_API_URL={{.G}}/github
`,
	"gh": `# once, with the gateway's socket (listen.unix): gh config set http_unix_socket {{.Socket}}
# without it, since they need other hosts (gh auth login, gh release download): gh config set http_unix_socket ""
# or a single call: GH_ENTERPRISE_TOKEN="$(gh auth token)" gh api {{.G}}/github/user
`,
}

func (a *App) gatewayEnv() *cobra.Command {
	var to reach
	var holder string
	var write bool
	cmd := &cobra.Command{
		Use:   "env TOOL...",
		Short: "Print the shell lines that point tools at a gateway",
		Long: `Print the environment variables that point a tool at a gateway, for eval in a shell. Settings in a tool's own files are
printed as comments; --write writes them there: Codex's provider to its config.toml, and the socket to gh's configuration, by gh itself.
Tools: ` + strings.Join(toolNames(), ", ") + `.`,
		Example: `  eval "$(quotad gateway env claude --holder picard)"
  quotad gateway env codex gh
  quotad gateway env codex gh --write`,
		Args: arguments("TOOL..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.complete(cmd, &to); err != nil {
				return err
			}
			at := cmp.Or(to.url, defaultGateway)
			u, err := url.Parse(at)
			if err != nil || u.Host == "" || strings.ContainsAny(at, shellSpecial) {
				return usagef(cmd, "such as "+defaultGateway, "--url %q is not a URL", at)
			}
			at = strings.TrimRight(at, "/")
			values := map[string]string{"URL": at, "G": at, "Holder": holder, "Socket": to.socket}
			if holder != "" {
				values["G"] += "/as/" + escapeHolder(holder)
			}
			for _, tool := range args {
				text, known := toolSettings[tool]
				if !known {
					return usagef(cmd, suggest.Hint(tool, toolNames()), "%q is not one of %s", tool, strings.Join(toolNames(), ", "))
				}
				if done, err := a.writeTool(cmd.Context(), write, tool, values); done || err != nil {
					if err != nil {
						return err
					}
					continue
				}
				lines, err := template.New(tool).Funcs(template.FuncMap{"quote": shellQuote}).Parse(text)
				if err != nil {
					return err
				}
				if err := lines.Execute(a.Out, values); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&holder, "holder", "", "name of the holder (default: the gateway names the tool's session)")
	to.flags(cmd, "the gateway's socket, for gh (default: as in its configuration, or the one that exists of "+
		"$XDG_RUNTIME_DIR/quotad/gateway.sock and /run/quotad/gateway.sock)")
	cmd.Flags().BoolVar(&write, "write", false, "write the settings of codex and gh to their own files")
	return cmd
}

func toolNames() []string {
	names := make([]string, 0, len(toolSettings))
	for name := range toolSettings {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// shellSpecial are the characters that mean something to a shell in an unquoted word.
const shellSpecial = " \t\n\"'`$&|;<>()*?#~!\\{}"

// escapeHolder escapes all of a name but letters, digits and a few signs: the path stands unquoted in a shell, and ~ would separate a
// class.
func escapeHolder(name string) string {
	var out strings.Builder
	for _, b := range []byte(name) {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', strings.IndexByte("-._@:", b) >= 0:
			out.WriteByte(b)
		default:
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}

// shellQuote quotes a text as one word of a shell.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func (a *App) gatewayStatus() *cobra.Command {
	var to reach
	var tokenFile, caFile string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a gateway's upstreams, queue, batches, seats, keys and last refusals",
		Long:  `Show the contents of the page /status of a running gateway.`,
		Example: `  quotad gateway status
  quotad gateway status --socket /run/quotad/gateway.sock -o json
  quotad gateway status --url https://node-7:7452 --token-file token --ca-file ca.pem`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			transport, err := newTransport(connectionFlags{caFile: caFile})
			if err != nil {
				return err
			}
			defer transport.CloseIdleConnections()
			if to.socket != "" && to.url != "" {
				return usagef(cmd, "", "--socket and --url exclude each other")
			}
			bySocket := to.socket != ""
			if err := a.complete(cmd, &to); err != nil {
				return err
			}
			at := to.url
			if bySocket || at == "" {
				at = "http://localhost"
				transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{Timeout: defaultTimeout}).DialContext(ctx, "unix", to.socket)
				}
			}
			token := ""
			if tokenFile != "" {
				if token, err = readToken(tokenFile); err != nil {
					return err
				}
			}
			status, err := readGatewayStatus(cmd.Context(), &http.Client{Transport: transport}, strings.TrimRight(at, "/"), token)
			if err != nil {
				return fail(ExitUnavailable, "is a gateway running there? name another with --url or --socket", "%w", err)
			}
			if a.format == formatJSON {
				return output.Value(a.Out, status)
			}
			return printGatewayStatus(a.Out, status)
		},
	}
	to.flags(cmd, "the gateway's socket, instead of its URL")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with a token of the gateway that has the verb read")
	cmd.Flags().StringVar(&caFile, "ca-file", "", "CA bundle that signed the gateway's certificate (PEM)")
	return a.outputFlag(cmd)
}

func readGatewayStatus(ctx context.Context, by *http.Client, at, token string) (status gateway.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/status?format=json", nil)
	if err != nil {
		return status, err
	}
	if token != "" {
		request.Header.Set("X-Quotad-Token", token)
	}
	response, err := by.Do(request)
	if err != nil {
		return status, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return status, fmt.Errorf("%s answers with status %s", at, response.Status)
	}
	return status, json.NewDecoder(io.LimitReader(response.Body, 64<<20)).Decode(&status)
}

func openState(open bool) string {
	if open {
		return "open"
	}
	return "cooldown"
}

func printGatewayStatus(out io.Writer, s gateway.Status) error {
	state := "ready"
	switch {
	case s.Stopping:
		state = "stopping"
	case !s.Loaded:
		state = "no node of the cluster has answered yet"
	case s.Away:
		state = "no node of the cluster answered the last call"
	}
	if _, err := fmt.Fprintf(out, "gateway on %s: %s; %d calls in flight, %d waiting\n", s.Machine, state, s.InFlight, s.Waiting); err != nil {
		return err
	}
	for _, table := range gatewayTables(s) {
		if len(table.Rows) == 0 {
			continue
		}
		if _, err := fmt.Fprintln(out); err != nil {
			return err
		}
		if err := table.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// gatewayTables returns a gateway's status as one table for each part.
func gatewayTables(s gateway.Status) []output.Table {
	quotas := output.Table{Header: []string{"UPSTREAM", "QUOTA", "AVAILABLE", "OF", "STATE"}}
	batches := output.Table{Header: []string{"UPSTREAM", "BATCHES OF", "CLASS", "LEFT", "CONSUMED", "SPENT", "RETURNED"}}
	keys := output.Table{Header: []string{"UPSTREAM", "KEY", "QUOTAS", "READ BEFORE", "FREE"}}
	for _, u := range s.Upstreams {
		parts := u.Quotas
		for _, m := range u.Models {
			parts = append(parts, m.Parts...)
		}
		for _, p := range parts {
			quotas.Add(u.Name, p.Quota, output.Int(p.Available), output.Int(p.Usable), openState(p.Open))
			for _, member := range p.Members {
				quotas.Add("  "+member.Name, member.Quota, output.Int(member.Available), output.Int(member.Usable), openState(member.Open))
			}
		}
		for _, b := range u.Batches {
			batches.Add(u.Name, b.Quota, b.Class, output.Int(b.Left), output.Int(b.Consumed), output.Int(b.Spent), output.Int(b.Returned))
		}
		for _, k := range u.Keys {
			keys.Add(u.Name, k.Name, k.Quotas, k.Age.String(), output.Int(k.Free)+" %")
		}
	}
	queue := output.Table{Header: []string{"CLASS", "HOLDER", "UPSTREAM", "MODEL", "WAITED", "TIME TO GO"}}
	for _, w := range s.Queue {
		queue.Add(output.Or(w.Class), w.Holder, output.Or(w.Upstream), output.Or(w.Model), w.Waited.String(), w.Left.String())
	}
	seats := output.Table{Header: []string{"SEAT", "SESSION", "SILENT FOR"}}
	for _, seat := range s.Seats {
		seats.Add(fmt.Sprintf("%s-%d", seat.Tool, seat.Number), seat.Session, seat.Silent.String())
	}
	refusals := output.Table{Header: []string{"AT", "CODE", "HOLDER", "QUOTA", "WHY"}}
	for _, r := range s.Refusals {
		refusals.Add(r.At.UTC().Format(time.TimeOnly), output.Int(r.Status), r.Holder, r.Quota, r.Message)
	}
	return []output.Table{quotas, batches, keys, queue, seats, refusals}
}
