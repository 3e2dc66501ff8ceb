package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/genai"
	"github.com/quotad/quotad/client/gateway/identity"
	"github.com/quotad/quotad/cmd/quotad/internal/gatewayfile"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/telemetry"
	"github.com/quotad/quotad/rpc"
)

func (a *App) gatewayCommand() *cobra.Command {
	var path, format string
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Govern the calls of any tool by its base URL",
		Long: `Run a gateway: a proxy that tools reach instead of their provider, by base URL or over a unix socket. Each call asks the
cluster for a grant, waits for it, continues unchanged, and is settled by the usage in the provider's answer.

SIGHUP reloads the configuration, keys, tokens and certificates, all or nothing. SIGTERM and SIGINT stop it: waiting
calls are answered with 503, running ones continue for limits.drain.

With OTEL_EXPORTER_OTLP_ENDPOINT, such as http://127.0.0.1:4318, it sends spans and measurements of calls by OTLP.`,
		Example: `  quotad gateway --config gateway.yaml
  quotad gateway check gateway.yaml
  eval "$(quotad gateway env claude --holder picard)"`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runGateway(cmd, path, format) },
	}
	cmd.Flags().StringVar(&path, "config", "", "YAML file (env QUOTAD_GATEWAY_CONFIG, default ~/.config/quotad/gateway.yaml)")
	cmd.Flags().StringVar(&format, "log-format", "text", "format of the log: text or json")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	cmd.AddCommand(a.gatewayCheck(), a.gatewayEnv(), a.gatewayExplain(), a.gatewayStatus())
	return cmd
}

// gatewayPath returns the path of the configuration file.
func (a *App) gatewayPath(path string) string {
	if path != "" {
		return path
	}
	if named, ok := a.lookup("QUOTAD_GATEWAY_CONFIG"); ok && named != "" {
		return named
	}
	if dir, ok := a.lookup("XDG_CONFIG_HOME"); ok && dir != "" {
		return filepath.Join(dir, "quotad", "gateway.yaml")
	}
	return filepath.Join(a.home(), ".config", "quotad", "gateway.yaml")
}

// loadGateway reads a configuration and the tokens that it names.
func loadGateway(path string) (config.Config, *gatewayTokens, error) {
	conf, err := gatewayfile.Load(path)
	if err != nil {
		return conf, nil, err
	}
	if conf.Tokens == "" {
		return conf, nil, nil
	}
	tokens, err := rpc.LoadTokens(conf.Tokens)
	if err != nil {
		return conf, nil, fmt.Errorf("tokens: %w", err)
	}
	out := &gatewayTokens{}
	out.file.Store(tokens)
	return conf, out, nil
}

// gatewayTokens are the tokens of a file, which has the form of the cluster's token file. A reload replaces them.
type gatewayTokens struct{ file atomic.Pointer[rpc.Tokens] }

// Find implements identity.Tokens.
func (t *gatewayTokens) Find(secret string) (identity.Right, bool) {
	token, ok := t.file.Load().Find(secret)
	if !ok {
		return identity.Right{}, false
	}
	class, named := config.ClassNamed(token.MaxClass)
	if !named {
		class = config.Standard
	}
	right := identity.Right{ID: token.ID, Pattern: token.Holder, MaxClass: class}
	for _, verb := range token.Verbs {
		right.Verbs = append(right.Verbs, identity.Verb(verb))
	}
	return right, true
}

func gatewayOptions(tokens *gatewayTokens, logger *slog.Logger) gateway.Options {
	options := gateway.Options{Logger: logger, Version: Version()}
	if tokens != nil {
		options.Tokens = tokens
	}
	return options
}

// newGateway makes a gateway from a file.
func newGateway(path string, logger *slog.Logger, recorder *genai.Recorder) (*gateway.Gateway, *gatewayTokens, error) {
	conf, tokens, err := loadGateway(path)
	if err != nil {
		return nil, nil, gatewayError(err)
	}
	options := gatewayOptions(tokens, logger)
	options.Recorder = recorder
	g, err := gateway.New(conf, options)
	if err != nil {
		return nil, nil, gatewayError(err)
	}
	return g, tokens, nil
}

// gatewayError adds exit code and hint to an error of the configuration.
func gatewayError(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fail(ExitUsage, `write one, or name it with --config; docs/gateway.md begins with the shortest one`, "%w", err)
	}
	return fail(ExitUsage, `"quotad gateway check FILE" shows all that is wrong`, "%w", err)
}

// gatewayRecorder returns what records calls with OpenTelemetry, if the environment names a collector, and what sends the rest at the end.
func (a *App) gatewayRecorder(ctx context.Context, logger *slog.Logger) (*genai.Recorder, func(), error) {
	providers, err := telemetry.Start(ctx, a.lookup, "quotad-gateway", Version(), logger)
	if err != nil {
		return nil, nil, fail(ExitUsage, "correct the variable, or unset OTEL_EXPORTER_OTLP_ENDPOINT to send no telemetry", "%w", err)
	}
	stop := func() {
		if err := providers.Stop(); err != nil {
			logger.Warn("could not send telemetry", "error", err)
		}
	}
	if providers == nil {
		return nil, stop, nil
	}
	recorder, err := genai.New(providers.Traces, providers.Meters)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return recorder, stop, nil
}

func gatewayLogger(to io.Writer, format string) *slog.Logger {
	if format == formatJSON {
		return slog.New(slog.NewJSONHandler(to, nil))
	}
	return slog.New(slog.NewTextHandler(to, nil))
}

func (a *App) runGateway(cmd *cobra.Command, path, format string) error {
	if format != "text" && format != formatJSON {
		return usagef(cmd, "", "--log-format %q is not one of text, json", format)
	}
	path = a.gatewayPath(path)
	logger := gatewayLogger(a.Err, format)
	recorder, stop, err := a.gatewayRecorder(cmd.Context(), logger)
	if err != nil {
		return err
	}
	defer stop() // after the gateway has closed
	g, tokens, err := newGateway(path, logger, recorder)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	server, err := g.Listen(cmd.Context())
	if err != nil {
		return startError(err)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	go func() {
		for {
			select {
			case <-reload:
				reloadGateway(server, tokens, path, logger)
			case <-ctx.Done():
				_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
				return
			}
		}
	}()
	logger.Info("serving", "addresses", strings.Join(server.Addresses(), " "), "version", Version())
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	return server.Serve(ctx)
}

// reloadGateway applies a changed configuration with its tokens and certificate, all or nothing.
func reloadGateway(server *gateway.Server, tokens *gatewayTokens, path string, logger *slog.Logger) {
	conf, changed, err := loadGateway(path)
	if err == nil {
		err = server.Reload(conf)
	}
	if err != nil {
		logger.Error("reload failed: the old configuration stays in use", "error", err)
		return
	}
	if tokens != nil && changed != nil {
		tokens.file.Store(changed.file.Load())
	}
	logger.Info("reloaded the configuration")
}

func (a *App) gatewayCheck() *cobra.Command {
	var ask bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a gateway's configuration",
		Long: `Read the file as "quotad gateway" would, with the keys, tokens and certificates that it names, and print everything that
is wrong with it. With --cluster it also lists the quotas of the cluster, and compares its pools with the keys of the file, and its
quotas with batch: true; otherwise it asks no cluster.`,
		Example: `  quotad gateway check /etc/quotad/gateway.yaml
  quotad gateway check --cluster /etc/quotad/gateway.yaml`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, tokens, err := loadGateway(args[0])
			if err == nil {
				err = gateway.Check(conf, gatewayOptions(tokens, nil))
			}
			if err != nil {
				return gatewayError(err)
			}
			if ask {
				if err := checkCluster(cmd.Context(), args[0]); err != nil {
					return err
				}
			}
			for _, warning := range gateway.Warnings(conf) {
				_, _ = fmt.Fprintf(a.Err, "warning: %s\n", warning)
			}
			_, err = fmt.Fprintf(a.Out, "%s is fine\n", args[0])
			return err
		},
	}
	cmd.Flags().BoolVar(&ask, "cluster", false, "compare the cluster's pools with the file's keys, and its quotas with batch: true")
	return cmd
}

// checkCluster compares the quotas of the cluster with a file.
func checkCluster(ctx context.Context, path string) error {
	g, _, err := newGateway(path, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	if err = g.CheckPools(ctx); err == nil {
		err = g.CheckBatches(ctx)
	}
	if wrong, ok := errors.AsType[*gateway.BatchError](err); ok {
		return fail(ExitUsage, wrong.Hint, "%w", err)
	}
	if wrong, ok := errors.AsType[*gateway.PoolError](err); ok {
		return fail(ExitUsage, wrong.Hint, "%w", err)
	}
	if err != nil {
		return fail(ExitUnavailable, "check that the nodes of cluster.nodes run and can be reached", "cannot list the quotas of the cluster: %w",
			err)
	}
	return nil
}

func (a *App) gatewayExplain() *cobra.Command {
	var path, target, method, file string
	var headers []string
	cmd := &cobra.Command{
		Use:   "explain --path PATH",
		Short: "Show the holder, class, quotas and amounts of a call without sending it",
		Long: `Show what the gateway would reserve for a call: its holder, its class, and the amounts of quotas. Nothing is sent and nothing is
reserved; the command only reads the cluster's quotas.`,
		Example: `  quotad gateway explain --path /openai/v1/responses -f body.json -H 'X-Quotad-Holder: picard'`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := explainedRequest(cmd, target, method, file, headers)
			if err != nil {
				return err
			}
			g, _, err := newGateway(a.gatewayPath(path), slog.New(slog.DiscardHandler), nil)
			if err != nil {
				return err
			}
			defer func() { _ = g.Close() }()
			explained, err := g.Explain(cmd.Context(), request)
			if err != nil {
				return fail(ExitUnavailable, "check that the nodes of cluster.nodes run and can be reached",
					"cannot list the quotas of the cluster: %w", err)
			}
			if a.format == formatJSON {
				return output.Value(a.Out, explained)
			}
			return printExplanation(a.Out, explained)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "YAML file (env QUOTAD_GATEWAY_CONFIG, default ~/.config/quotad/gateway.yaml)")
	cmd.Flags().StringVar(&target, "path", "", "path of the call at the gateway, such as /openai/v1/responses")
	cmd.Flags().StringVar(&method, "method", "", "HTTP method (default POST with a body, else GET)")
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the body")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "header of the call, Name: value")
	return a.outputFlag(cmd)
}

func explainedRequest(cmd *cobra.Command, target, method, file string, headers []string) (*http.Request, error) {
	if !strings.HasPrefix(target, "/") {
		return nil, usagef(cmd, "such as --path /openai/v1/responses", "--path is missing or does not begin with a slash")
	}
	body := ""
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		body = string(data)
	}
	if method == "" {
		method = http.MethodGet
		if file != "" {
			method = http.MethodPost
		}
	}
	request, err := http.NewRequestWithContext(cmd.Context(), method, "http://localhost"+target, strings.NewReader(body))
	if err != nil {
		return nil, usagef(cmd, "", "--path: %w", err)
	}
	for _, header := range headers {
		name, value, found := strings.Cut(header, ":")
		if !found {
			return nil, usagef(cmd, "such as -H 'X-Quotad-Holder: picard'", "--header %q has no colon", header)
		}
		request.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return request, nil
}

func printExplanation(out io.Writer, e gateway.Explanation) error {
	class := e.Class
	if class == "" {
		class = "the holder's own"
	}
	if e.Key == "" && slices.ContainsFunc(e.Draws, func(d gateway.ExplainedDraw) bool { return len(d.Members) > 0 }) {
		e.Key = "that of the granted member"
	}
	lines := [][2]string{
		{"upstream", e.Upstream},
		{"url", e.URL},
		{"holder", e.Holder + " (by " + e.Source + ")"},
		{"class", class},
		{"model", e.Model},
		{"key", e.Key},
		{"wait", e.Wait.String()},
		{"batch", e.Batch},
		{"no batch", e.Unbatched},
		{"ungoverned", e.Ungoverned},
		{"refused", e.Refusal},
	}
	for _, line := range lines {
		if line[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(out, "%-11s %s\n", line[0], line[1]); err != nil {
			return err
		}
	}
	for _, d := range e.Draws {
		cut := ""
		if d.Cut {
			cut = " (cut to the most that can be granted)"
		}
		if _, err := fmt.Fprintf(out, "%-11s %s %d%s\n", "draws", d.Quota, d.Amount, cut); err != nil {
			return err
		}
		for _, m := range d.Members {
			state := ""
			if !m.Open {
				state = ", in cooldown"
			}
			if _, err := fmt.Fprintf(out, "%-11s %s: %d of %d available%s\n", "member "+m.Name, m.Quota, m.Available, m.Usable, state); err != nil {
				return err
			}
		}
	}
	return nil
}
