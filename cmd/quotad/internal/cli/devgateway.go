package cli

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// devGatewayAddress is the address of the gateway of "quotad dev".
const devGatewayAddress = "127.0.0.1:" + config.DefaultPort

// devGateway runs the gateway of "quotad dev" until ctx ends. It has the providers with a known address, and no secrets.
func (a *App) devGateway(ctx context.Context, f devFlags, node string) error {
	var level slog.Level
	if level.UnmarshalText([]byte(f.level)) != nil {
		level = slog.LevelDebug // for trace
	}
	conf := config.Config{
		Listen: config.Listen{TCP: []string{f.gateway}}, Cluster: config.Cluster{Nodes: []string{node}}, Upstreams: map[string]config.Upstream{},
	}
	for _, name := range []string{"anthropic", "chatgpt", "gemini", "github", "openai"} {
		conf.Upstreams[name] = config.Upstream{Unknown: "observe"}
	}
	g, err := gateway.New(conf, gatewayOptions(nil, slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: level}))))
	if err != nil {
		return gatewayError(err)
	}
	defer func() { _ = g.Close() }()
	server, err := g.Listen(ctx)
	if err != nil {
		return fail(ExitFailure, "give --gateway another address, such as --gateway=127.0.0.1:0", "%w", err)
	}
	_, _ = fmt.Fprintf(a.Out, `
The gateway is on http://%[1]s. Tools keep their keys and logins:

  export ANTHROPIC_BASE_URL=http://%[1]s/anthropic
  export OPENAI_BASE_URL=http://%[1]s/openai/v1
  export GOOGLE_GEMINI_BASE_URL=http://%[1]s/gemini
  curl -s http://%[1]s/github/user

GitHub needs its quotas. Models without quotas pass uncounted. http://%[1]s/status shows both.

  quotad quota apply%[2]s --preset github
  quotad quota apply%[2]s --preset openai:tier2 --set model=gpt-5 --set rpm=500
`, server.Addresses()[0], serverFlag(node))
	return server.Serve(ctx)
}
