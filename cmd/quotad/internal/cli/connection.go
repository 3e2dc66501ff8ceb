package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// The output formats.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

// defaultServer is the address of `quotad dev` and of a server without configuration.
const defaultServer = "127.0.0.1:7450"

// connectionFlags are the flags for reaching a cluster.
type connectionFlags struct {
	servers                              []string
	tokenFile, caFile, certFile, keyFile string
	timeout                              string
}

// clientFlags gives a command the flags common to all commands that call a cluster. Each has an environment variable.
func (a *App) clientFlags(cmd *cobra.Command, formats ...string) *cobra.Command {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&a.connection.servers, "server", nil,
		"nodes to ask, host:port or URL; one is enough (env QUOTAD_SERVER, default "+defaultServer+")")
	flags.StringVar(&a.connection.tokenFile, "token-file", "", "file with the token (env QUOTAD_TOKEN_FILE)")
	flags.StringVar(&a.connection.caFile, "ca-file", "",
		"CA bundle that signed the nodes' certificates (PEM); enables TLS (env QUOTAD_CA_FILE)")
	flags.StringVar(&a.connection.certFile, "cert-file", "", "certificate to present (PEM) (env QUOTAD_CERT_FILE)")
	flags.StringVar(&a.connection.keyFile, "key-file", "", "private key of that certificate (PEM) (env QUOTAD_KEY_FILE)")
	flags.StringVar(&a.connection.timeout, "timeout", "", "how long to try (env QUOTAD_TIMEOUT, default 10s)")
	return a.outputFlag(cmd, formats...)
}

// outputFlag gives a command --output with table, json and further formats.
func (a *App) outputFlag(cmd *cobra.Command, formats ...string) *cobra.Command {
	all := append([]string{formatTable, formatJSON}, formats...)
	short := "o"
	if cmd.Flags().ShorthandLookup(short) != nil { // backup -o FILE
		short = ""
	}
	cmd.Flags().StringVarP(&a.format, "output", short, "", strings.Join(all, ", ")+" (env QUOTAD_OUTPUT, default table)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if a.format == "" {
			a.format, _ = a.lookup("QUOTAD_OUTPUT")
		}
		if a.format == "" {
			a.format = formatTable
		}
		if !slices.Contains(all, a.format) {
			wrong := a.format
			a.format = formatTable
			return usagef(cmd, "", "--output %q is not one of %s", wrong, strings.Join(all, ", "))
		}
		return nil
	}
	return cmd
}

// cluster is the nodes that a command may call.
type cluster struct {
	nodes   []node
	timeout time.Duration
}

// node is one of them.
type node struct {
	address string
	quota   quotav1connect.QuotaServiceClient
	admin   quotav1connect.AdminServiceClient
	task    quotav1connect.TaskServiceClient
}

// defaultTimeout bounds one command; an election takes less than two seconds of it.
const defaultTimeout = 10 * time.Second

// connect reads the connection's flags and environment. It opens no connection yet.
func (a *App) connect(cmd *cobra.Command) (*cluster, error) {
	flags, timeout, err := a.readConnection(cmd)
	if err != nil {
		return nil, err
	}
	return newCluster(cmd, flags, timeout)
}

// goClient makes a Go client from the connection's flags and environment. It opens no connection yet.
func (a *App) goClient(cmd *cobra.Command, holder string, options ...client.Option) (*client.Client, error) {
	flags, timeout, err := a.readConnection(cmd)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(flags)
	if err != nil {
		return nil, err
	}
	nodes := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	options = append(options, client.WithHTTPClient(nodes), client.WithCallTimeout(timeout))
	if flags.tokenFile != "" {
		token, err := readToken(flags.tokenFile)
		if err != nil {
			return nil, err
		}
		options = append(options, client.WithToken(token))
	}
	if holder != "" {
		options = append(options, client.WithHolder(holder))
	}
	addresses := make([]string, len(flags.servers))
	for i, server := range flags.servers {
		if addresses[i], err = baseURL(cmd, strings.TrimSpace(server), flags.caFile != ""); err != nil {
			return nil, err
		}
	}
	made, err := client.New(addresses, options...)
	if err != nil {
		return nil, usagef(cmd, "", "%w", err)
	}
	return made, nil
}

// readConnection reads the connection's flags, and takes missing ones from the environment.
func (a *App) readConnection(cmd *cobra.Command) (connectionFlags, time.Duration, error) {
	flags := a.connection
	if err := config.CheckEnvironment(a.Environ); err != nil {
		return flags, 0, usagef(cmd, "", "%w", err)
	}
	for _, fallback := range []struct {
		field    *string
		variable string
	}{
		{&flags.tokenFile, "QUOTAD_TOKEN_FILE"},
		{&flags.caFile, "QUOTAD_CA_FILE"},
		{&flags.certFile, "QUOTAD_CERT_FILE"},
		{&flags.keyFile, "QUOTAD_KEY_FILE"},
		{&flags.timeout, "QUOTAD_TIMEOUT"},
	} {
		if *fallback.field == "" {
			*fallback.field, _ = a.lookup(fallback.variable)
		}
	}
	if list, ok := a.lookup("QUOTAD_SERVER"); ok && len(flags.servers) == 0 {
		flags.servers = strings.Split(list, ",")
	}
	if len(flags.servers) == 0 {
		flags.servers = []string{defaultServer}
	}
	timeout := defaultTimeout
	if flags.timeout != "" {
		length, err := strictyaml.ParseDuration(flags.timeout)
		if err != nil || length <= 0 {
			return flags, 0, usagef(cmd, "such as 30s or 2m", "--timeout %q is not a duration above 0", flags.timeout)
		}
		timeout = length
	}
	return flags, timeout, nil
}

func newCluster(cmd *cobra.Command, flags connectionFlags, timeout time.Duration) (*cluster, error) {
	transport, err := newTransport(flags)
	if err != nil {
		return nil, err
	}
	options := []connect.ClientOption{}
	if flags.tokenFile != "" {
		token, err := readToken(flags.tokenFile)
		if err != nil {
			return nil, err
		}
		options = append(options, connect.WithInterceptors(bearer(token)))
	}
	c := &cluster{timeout: timeout}
	client := &http.Client{Transport: transport}
	for _, server := range flags.servers {
		base, err := baseURL(cmd, strings.TrimSpace(server), flags.caFile != "")
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, node{
			address: server,
			quota:   quotav1connect.NewQuotaServiceClient(client, base, options...),
			admin:   quotav1connect.NewAdminServiceClient(client, base, options...),
			task:    quotav1connect.NewTaskServiceClient(client, base, options...),
		})
	}
	return c, nil
}

// baseURL completes host:port to a URL.
func baseURL(cmd *cobra.Command, server string, secure bool) (string, error) {
	full := server
	if !strings.Contains(server, "://") {
		full = "http://" + server
		if secure {
			full = "https://" + server
		}
	}
	parsed, err := url.Parse(full)
	if err != nil || parsed.Host == "" || parsed.Port() == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return "", usagef(cmd, "such as 10.0.0.1:7450 or https://quota.example:7450", "--server %q is not host:port or a URL with a port", server)
	}
	if port, err := strconv.Atoi(parsed.Port()); err != nil || port < 1 || port > 65_535 {
		return "", usagef(cmd, "a node's default port is 7450", "--server %q: the port is not within 1 to 65535", server)
	}
	return strings.TrimSuffix(full, "/"), nil
}

func newTransport(flags connectionFlags) (*http.Transport, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS13}
	if flags.caFile != "" {
		bundle, err := os.ReadFile(flags.caFile)
		if err != nil {
			return nil, notReadable(err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fail(ExitUsage, "", "%s has no PEM certificate", flags.caFile)
		}
	}
	if flags.certFile != "" || flags.keyFile != "" {
		pair, err := tls.LoadX509KeyPair(flags.certFile, flags.keyFile)
		if err != nil {
			return nil, fail(ExitUsage, "--cert-file and --key-file belong together", "%w", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	// The transport deliberately ignores a proxy from the environment: it connects to nodes directly, as the Go client
	// does.
	return &http.Transport{
		DialContext:       (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		TLSClientConfig:   settings,
		ForceAttemptHTTP2: true,
	}, nil
}

// notReadable is the error for a file that the user named and that cannot be read.
func notReadable(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fail(ExitNotFound, "", "%w", err)
	}
	return fail(ExitUsage, "", "%w", err)
}

func readToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", notReadable(err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fail(ExitUsage, `write the token into the file, as "quotad token new" printed it`, "%s has no token", path)
	}
	return token, nil
}

// bearer sends a token with every call.
type bearer string

// WrapUnary implements connect.Interceptor.
func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		request.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, request)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor; this process runs no handler.
func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// durationFlag parses a flag that holds a duration; an empty one is absent.
func durationFlag(cmd *cobra.Command, name, text string) (*durationpb.Duration, error) {
	if text == "" {
		return nil, nil
	}
	length, err := strictyaml.ParseDuration(text)
	if err != nil || length < 0 {
		return nil, usagef(cmd, "such as 500ms, 30s or 5m", "--%s %q is not a duration", name, text)
	}
	return durationpb.New(length), nil
}
