package cli

import (
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/doctor"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
)

func (a *App) doctorCommand() *cobra.Command {
	var quotas []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out why a client cannot use a cluster",
		Long: `Look at everything between this machine and a cluster, with the flags and environment of any other command: the address, TLS,
the clock, the API, tokens, the leader, a request that has to be committed, and the quotas. Each finding says what is wrong and
what to do. The exit code is 0 if no check failed (warnings may be there), and 1 otherwise.`,
		Example: `  quotad doctor
  quotad doctor --server 10.0.0.1:7450 --ca-file ca.pem --token-file token --quota github/core
  quotad doctor -o json | jq '.findings[] | select(.state == "failed")'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd, quotas) },
	}
	cmd.Flags().StringSliceVar(&quotas, "quota", nil, "quota that has to be there; repeatable")
	return a.clientFlags(cmd)
}

// observeTimeout bounds each check: ten of them should not take a minute where nothing answers.
const observeTimeout = 3 * time.Second

func (a *App) doctor(cmd *cobra.Command, quotas []string) error {
	flags, timeout, err := a.readConnection(cmd)
	if err != nil {
		return err
	}
	made, err := newCluster(cmd, flags, timeout)
	if err != nil {
		return err
	}
	transport, err := newTransport(flags)
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	examined := &doctor.Client{Transport: transport, Quotas: quotas, Timeout: min(timeout, observeTimeout), Now: time.Now}
	for _, n := range made.nodes {
		base, err := baseURL(cmd, strings.TrimSpace(n.address), flags.caFile != "")
		if err != nil {
			return err
		}
		parsed, err := url.Parse(base)
		if err != nil {
			return usagef(cmd, "", "--server %q: %w", n.address, err)
		}
		examined.Servers = append(examined.Servers, doctor.Server{Address: n.address, URL: parsed, Quota: n.quota, Admin: n.admin})
	}
	return a.printFindings(examined.Examine(cmd.Context()))
}

func (a *App) printFindings(findings []doctor.Finding) error {
	failed := 0
	table := output.Table{Header: []string{"CHECK", "STATE", "MESSAGE"}}
	for _, f := range findings {
		state := string(f.State)
		if f.State == doctor.Failed {
			failed++
			state = "FAILED"
		}
		table.Add(f.Check, state, f.Message)
		if f.Hint != "" {
			table.Add("", "", "hint: "+f.Hint)
		}
	}
	var err error
	if a.format == formatJSON {
		err = output.Value(a.Out, map[string]any{"findings": findings, "failed": failed})
	} else {
		err = table.Write(a.Out)
	}
	switch {
	case err != nil:
		return err
	case failed > 0:
		return fail(ExitFailure, "", "%d of %d checks failed", failed, len(findings))
	}
	return nil
}
