package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/keys"
	"github.com/quotad/quotad/client/internal/connpool"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// awayAfter is how long the cluster is tried before a call is refused.
const awayAfter = 5 * time.Second

// nodes is the gateway's access to the cluster.
type nodes struct {
	addresses []string
	token     string
	http      *http.Client
	// leave closes idle connections.
	leave func()
	// tls is the CA of the configuration; nil: the system's.
	tls *tls.Config
	// dialed: a custom function makes connections, for the client as well.
	dialed bool
}

// nodeQuiet is a node's silence before a ping.
const nodeQuiet = 2 * time.Second

// newNodes prepares the access. dial, if not nil, makes the connections; otherwise they are those of the process's clients.
func newNodes(conf config.Cluster, dial func(context.Context, string, string) (net.Conn, error)) (*nodes, error) {
	n := &nodes{addresses: conf.Nodes, dialed: dial != nil}
	secure := conf.CA != "" || strings.HasPrefix(conf.Nodes[0], "https://")
	if conf.CA != "" {
		pem, err := os.ReadFile(conf.CA)
		if err != nil {
			return nil, fmt.Errorf("cluster.ca: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cluster.ca: %s holds no PEM certificate", conf.CA)
		}
		n.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	if secure {
		for i, address := range conf.Nodes {
			if !strings.Contains(address, "://") {
				n.addresses = append([]string(nil), n.addresses...)
				n.addresses[i] = "https://" + address
			}
		}
	}
	if conf.Token != nil {
		token, err := keys.Read(*conf.Token)
		if err != nil {
			return nil, fmt.Errorf("cluster.token: %w", err)
		}
		n.token = token
	}
	n.http = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if dial == nil {
		n.http.Transport, n.leave = connpool.Acquire(n.tls)
		return n, nil
	}
	own := &http.Transport{
		DialContext: dial, MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second, Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{SendPingTimeout: nodeQuiet, PingTimeout: nodeQuiet}, TLSClientConfig: n.tls.Clone(),
	}
	own.Protocols.SetUnencryptedHTTP2(!secure)
	own.Protocols.SetHTTP2(secure)
	n.http.Transport, n.leave = own, own.CloseIdleConnections
	return n, nil
}

func (n *nodes) client(holder string, logger *slog.Logger, hooks client.Hooks) (*client.Client, error) {
	options := []client.Option{
		client.WithToken(n.token), client.WithHolder(holder), client.WithCallTimeout(awayAfter), client.WithLogger(logger),
		client.WithHooks(hooks),
	}
	switch {
	case n.dialed:
		options = append(options, client.WithHTTPClient(n.http))
	case n.tls != nil:
		options = append(options, client.WithTLS(n.tls))
	}
	return client.New(n.addresses, options...)
}

// base returns a node's URL.
func base(address string) string {
	if strings.Contains(address, "://") {
		return strings.TrimRight(address, "/")
	}
	return "http://" + address
}

// list reads all quotas from the first node that answers. The read sees everything acknowledged before it began: a node that has just
// started has not replayed its log, and calls would be refused permanently for quotas missing from its list.
func (n *nodes) list(ctx context.Context) ([]*quotav1.QuotaStatus, error) {
	var failed error
	for _, address := range n.addresses {
		out, err := n.listFrom(ctx, quotav1connect.NewQuotaServiceClient(n.http, base(address)))
		if err == nil {
			return out, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

func (n *nodes) listFrom(ctx context.Context, from quotav1connect.QuotaServiceClient) ([]*quotav1.QuotaStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	ctx, info := connect.NewClientContext(ctx)
	if n.token != "" {
		info.RequestHeader().Set("Authorization", "Bearer "+n.token)
	}
	var out []*quotav1.QuotaStatus
	request := &quotav1.ListQuotasRequest{PageSize: 1_000}
	for {
		page, err := from.ListQuotas(ctx, request)
		if err != nil {
			return nil, err
		}
		out = append(out, page.GetQuotas()...)
		if page.GetNextPageToken() == "" {
			return out, nil
		}
		request = &quotav1.ListQuotasRequest{PageSize: 1_000, PageToken: page.GetNextPageToken()}
	}
}

func (n *nodes) close() { n.leave() }
