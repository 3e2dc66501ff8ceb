package cli

import (
	"context"
	_ "embed" // the sample quotas
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/cmd/quotad/internal/daemon"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/raftnode/loopback"
)

//go:embed dev.quotas.yaml
var sampleQuotas []byte

// devFlags are the options of dev.
type devFlags struct {
	quotas, listen, level string
	// gateway is the address of the gateway; empty: there is none.
	gateway           string
	testing, insecure bool
}

func (a *App) devCommand() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run one node with throw-away data and sample quotas",
		Long: `Run one node with sample quotas (or those of -f). Its data is in a temporary directory that is removed at the end. Stop
it with Ctrl-C.

With --gateway it also runs a gateway, which needs no file: tools keep their keys and logins, and only their base URL changes.`,
		Example: `  quotad dev
  quotad dev --gateway
  quotad dev -f quotas.yaml --listen 127.0.0.1:0`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.dev(cmd, f)
		},
	}
	cmd.Flags().StringVarP(&f.quotas, "file", "f", "", "quotas.yaml to apply instead of the sample")
	cmd.Flags().StringVar(&f.listen, "listen", defaultServer, "address of the API; port 0 takes a free one")
	cmd.Flags().StringVar(&f.gateway, "gateway", "", "address of a gateway for Claude Code, Codex, gh and every SDK")
	cmd.Flags().Lookup("gateway").NoOptDefVal = devGatewayAddress
	cmd.Flags().StringVar(&f.level, "log-level", "warn", "lowest level to log: trace, debug, info, warn, error")
	cmd.Flags().BoolVar(&f.testing, "testing", false, "enable test-only endpoints")
	cmd.Flags().BoolVar(&f.insecure, "insecure", false, "allow --listen beyond loopback, in clear text and without tokens")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml")
	return cmd
}

func (a *App) dev(cmd *cobra.Command, f devFlags) (err error) {
	file, err := quotafile.Parse("the sample", sampleQuotas)
	if f.quotas != "" {
		file, err = a.readQuotas(f.quotas)
	}
	if err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(f.listen); err == nil && !config.Loopback(f.listen) && !f.insecure {
		return fail(ExitUsage, "--insecure allows it",
			"%s is beyond loopback: calls would travel in clear text, and every caller could do everything", f.listen)
	}
	dir, err := os.MkdirTemp("", "quotad-dev-")
	if err != nil {
		return err
	}
	defer func() {
		if removed := os.RemoveAll(dir); err == nil {
			err = removed
		}
	}()
	raftAddress, err := loopback.Free(1) // no other node ever connects to it
	if err != nil {
		return err
	}
	// The node ends after the gateway, whose calls settle at it.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer cancel(nil)
	alone := context.AfterFunc(cmd.Context(), func() { cancel(nil) })
	err = daemon.Run(ctx, daemon.Options{
		Load: func() (*config.Loaded, error) {
			in := config.Input{Flags: map[string]string{
				"data-dir": filepath.Join(dir, "data"), "api-listen": f.listen, "raft-listen": raftAddress[0],
				"api-insecure": strconv.FormatBool(f.insecure), "node-id": "dev", "log-level": f.level, "disk-refuse-below": "0B",
				"disk-stop-below": "0B",
			}}
			if host, port, err := net.SplitHostPort(f.listen); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
				in.Flags["api-advertise"] = net.JoinHostPort("127.0.0.1", port) // no other node learns of this one
			}
			if f.testing {
				in.Flags["testing"] = "true"
			}
			return config.Load(in)
		},
		LogTo: a.Err, Version: Version(), Quotas: file,
		Ready: func(address string, quotas error) {
			if quotas != nil {
				cancel(quotas)
				return
			}
			a.welcome(address, dir, file)
			if f.gateway != "" && alone() {
				go func() { cancel(a.devGateway(cmd.Context(), f, reachable(address))) }()
			}
		},
	})
	if cause := context.Cause(ctx); err == nil && cmd.Context().Err() == nil {
		return cause // the quotas could not be applied
	}
	return startError(err)
}

// welcome prints commands to try.
func (a *App) welcome(address, dir string, file *quotafile.File) {
	name := "t/core"
	if len(file.Quotas) > 0 {
		name = file.Quotas[0].Name
	}
	server := serverFlag(address)
	address = reachable(address)
	_, _ = fmt.Fprintf(a.Out, `quotad dev: one node on http://%[1]s, data in %[2]s (removed at the end). Ctrl-C stops it.

Try, in another terminal:

  curl -s -H 'content-type: application/json' \
    -d '{"holder":"me","items":[{"quota":"%[3]s","amount":1}],"ttl":"30s"}' \
    http://%[1]s/quota.v1.QuotaService/Reserve

  quotad quota list%[4]s
`, address, dir, name, server)
}

// reachable returns an address at which this machine reaches a listener.
func reachable(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && net.ParseIP(host).IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// serverFlag returns the flag with which commands reach a node; empty: they reach it without.
func serverFlag(address string) string {
	if address == defaultServer {
		return ""
	}
	return " --server " + address
}
