package cli

import (
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/authority"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
)

// certFlags are the options of the commands that write certificates.
type certFlags struct {
	dir   string
	force bool
}

func (f *certFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "dir", "certs", "directory of the CA and of the certificates that it signs")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace existing files")
	_ = cmd.MarkFlagDirname("dir")
}

func (a *App) certCommand() *cobra.Command {
	return group("cert", "Make certificates, for clusters without a CA", a.certInit(), a.certNode(), a.certClient())
}

func (a *App) certInit() *cobra.Command {
	var f certFlags
	var name string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a CA",
		Long: `Make a CA that is valid for ten years: ca.pem, with which nodes and callers verify certificates, and ca-key.pem, which
signs them. Keep ca-key.pem away from the nodes: anybody who has it can act as every node.`,
		Example: `  quotad cert init
  quotad cert init --dir /secure/certs --name "quotad production"`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			issued, err := authority.Init(f.dir, name, f.force, time.Now())
			return a.printIssued(cmd, err, issued)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&name, "name", "quotad CA", "name of the CA in certificates")
	return cmd
}

func (a *App) certNode() *cobra.Command {
	var f certFlags
	var hosts []string
	cmd := &cobra.Command{
		Use:   "node ID...",
		Short: "Make certificates for nodes",
		Long: `Make a certificate for each node, ID.pem and ID-key.pem, valid for one year, for its API and for peer connections. It
names the node's id and its hosts: those of api.advertise and raft.advertise.`,
		Example: `  quotad cert node n1 --host 10.0.0.1 --host n1.example.org
  quotad cert node n1 n2 n3 --host 127.0.0.1      # three nodes on one machine`,
		Args: arguments("ID..."),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if len(hosts) == 0 {
				return usagef(cmd, "--host 10.0.0.1: where the others reach the node", "--host is missing")
			}
			// A DNS name that is a node's id lets the certificate act for that node.
			if i := slices.IndexFunc(hosts, func(host string) bool { return slices.Contains(ids, host) }); i >= 0 && len(ids) > 1 {
				return usagef(cmd, "call quotad cert node for each node, with its own --host",
					"--host %[1]s is the id of one node: the certificates of the others could act as %[1]s", hosts[i])
			}
			ca, err := authority.Open(f.dir, f.force)
			if err != nil {
				return a.printIssued(cmd, err)
			}
			var all []*authority.Issued
			for _, id := range ids {
				issued, err := ca.Node(id, hosts, time.Now())
				if err != nil {
					return errors.Join(a.printIssued(cmd, nil, all...), a.printIssued(cmd, err))
				}
				all = append(all, issued)
			}
			return a.printIssued(cmd, nil, all...)
		},
	}
	f.add(cmd)
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "IP address or name at which others reach the node; repeatable")
	return cmd
}

func (a *App) certClient() *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use:   "client NAME",
		Short: "Make a certificate for a caller",
		Long: `Make a certificate for a caller, NAME.pem and NAME-key.pem, valid for one year, for APIs with api.tls_client_ca. It cannot
act as a node. The caller's token decides what the caller may do.`,
		Example: `  quotad cert client ops
  quotad status --ca-file certs/ca.pem --cert-file certs/ops.pem --key-file certs/ops-key.pem`,
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ca, err := authority.Open(f.dir, f.force)
			if err != nil {
				return a.printIssued(cmd, err)
			}
			issued, err := ca.Client(args[0], time.Now())
			return a.printIssued(cmd, err, issued)
		},
	}
	f.add(cmd)
	return cmd
}

// printIssued prints the issued certificates, or returns the error.
func (a *App) printIssued(cmd *cobra.Command, err error, all ...*authority.Issued) error {
	if mistake, ok := errors.AsType[*authority.MistakeError](err); ok {
		return usagef(cmd, mistake.Hint, "%w", err)
	}
	if err != nil {
		return err
	}
	table := output.Table{}
	for _, issued := range all {
		table.Add(issued.CertFile, issued.KeyFile, "valid until "+issued.NotAfter.Format(time.DateOnly))
	}
	return table.Write(a.Out)
}
