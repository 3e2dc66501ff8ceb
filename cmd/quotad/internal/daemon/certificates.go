package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/chain"
)

// certificates are a listener's pair and pools, which can be read again while connections come in. Files that do not
// load leave the old ones in use.
type certificates struct {
	files config.TLSFiles
	now   atomic.Pointer[loadedFiles]
}

type loadedFiles struct {
	pair tls.Certificate
	// pool verifies the other side; nil where no CA is configured. peers verifies other nodes' API certificates; nil: the
	// system's CAs do.
	pool, peers *x509.CertPool
}

// loadCertificates reads the files; nil where TLS is off.
func loadCertificates(files config.TLSFiles) (*certificates, error) {
	if !files.Enabled() {
		return nil, nil
	}
	c := &certificates{files: files}
	return c, c.reload()
}

// reload reads the files again.
func (c *certificates) reload() error {
	if c == nil {
		return nil
	}
	fresh, err := readFiles(c.files)
	if err != nil {
		return err
	}
	c.now.Store(fresh)
	return nil
}

func readFiles(files config.TLSFiles) (*loadedFiles, error) {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", files.Cert, err)
	}
	fresh := &loadedFiles{pair: pair}
	if fresh.pool, err = readPool(files.CA); err != nil {
		return nil, err
	}
	if fresh.peers, err = readPool(files.PeerCA); err != nil {
		return nil, err
	}
	if fresh.peers == nil {
		fresh.peers = fresh.pool
	}
	return fresh, nil
}

// readPool reads a bundle of CAs; nil where none is configured.
func readPool(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	bundle, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s has no PEM certificate", path)
	}
	return pool, nil
}

// expires is when the present certificate ends.
func (c *certificates) expires() time.Time {
	if leaf := c.now.Load().pair.Leaf; leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

// apiServer is the API's side towards callers. Pair and pool are looked up for each connection.
func (c *certificates) apiServer() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			files := c.now.Load()
			settings := &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
				Certificates: []tls.Certificate{files.pair},
			}
			if files.pool != nil {
				settings.ClientAuth, settings.ClientCAs = tls.RequireAndVerifyClientCert, files.pool
			}
			return settings, nil
		},
		// http.Server wants to see where certificates come from; GetConfigForClient answers before this is asked.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.now.Load().pair, nil },
	}
}

// apiClient returns this node's side towards other nodes' APIs, to which it forwards calls; nil without TLS. It shows its own
// certificate, and verifies theirs by what trust names.
func (c *certificates) apiClient() func() *tls.Config {
	if c == nil {
		return nil
	}
	return func() *tls.Config {
		files := c.now.Load()
		return &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: files.peers,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &files.pair, nil },
		}
	}
}

// trust names what other nodes' API certificates are verified by, as the end of "is not signed by".
func trust(files config.TLSFiles) string {
	switch {
	case files.PeerCA != "":
		return "api.tls_ca"
	case files.CA != "":
		return "api.tls_client_ca, and api.tls_ca is not set"
	}
	return "a CA of the system, and api.tls_ca is not set"
}

// peers returns both sides of the connections between nodes: each verifies the other. Pair and pool are looked up for each
// connection.
func (c *certificates) peers() (func() *tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	if c.now.Load().pool == nil {
		return nil, errors.New("nodes verify each other: raft.tls_ca is missing")
	}
	return func() *tls.Config {
		files := c.now.Load()
		return &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: files.pool, ClientCAs: files.pool, ClientAuth: tls.RequireAndVerifyClientCert,
			Certificates: []tls.Certificate{files.pair}, SessionTicketsDisabled: true, // each connection verifies anew
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &files.pair, nil },
		}
	}, nil
}

// CheckCertificates reads the certificates of a configuration and judges them as the other nodes would. It returns all that is
// wrong: files that do not load, and certificates that the others will refuse.
func CheckCertificates(c config.Config) []error {
	var mistakes []error
	if c.API.TLS.Enabled() {
		files, err := readFiles(c.API.TLS)
		switch {
		case err != nil:
			mistakes = append(mistakes, fmt.Errorf("api.tls_cert: %w", err))
		case len(c.Peers) != 1: // others forward calls to this node, and it calls them with its own certificate
			err := verifyAs(files.pair, files.peers, c.API.Advertise, x509.ExtKeyUsageServerAuth)
			mistakes = appendRefusal(mistakes, "api.tls_cert", c.API, trust(c.API.TLS), err)
			if files.pool != nil {
				err := verifyAs(files.pair, files.pool, "", x509.ExtKeyUsageClientAuth)
				mistakes = appendRefusal(mistakes, "api.tls_cert", c.API, "api.tls_client_ca", err)
			}
		}
	}
	if c.Raft.TLS.Enabled() {
		files, err := readFiles(c.Raft.TLS)
		if err != nil {
			return append(mistakes, fmt.Errorf("raft.tls_cert: %w", err))
		}
		err = verifyAs(files.pair, files.pool, c.Raft.Advertise, x509.ExtKeyUsageServerAuth)
		if err == nil {
			err = verifyAs(files.pair, files.pool, "", x509.ExtKeyUsageClientAuth)
		}
		if err == nil {
			err = raftnode.CheckIdentity(files.pair.Leaf, c.NodeID, "", c.RaftNames)
		}
		mistakes = appendRefusal(mistakes, "raft.tls_cert", c.Raft, "raft.tls_ca", err)
	}
	return mistakes
}

// verifyAs verifies a pair for one usage; for a server's, with its address.
func verifyAs(pair tls.Certificate, pool *x509.CertPool, address string, usage x509.ExtKeyUsage) error {
	host := ""
	if address != "" {
		host, _, _ = net.SplitHostPort(address)
	}
	certificates := []*x509.Certificate{pair.Leaf}
	for _, der := range pair.Certificate[1:] {
		if intermediate, err := x509.ParseCertificate(der); err == nil {
			certificates = append(certificates, intermediate)
		}
	}
	return chain.Verify(certificates, pool, usage, host, time.Time{})
}

// appendRefusal words why the other nodes will refuse a certificate.
func appendRefusal(mistakes []error, key string, listener config.Listener, trust string, err error) []error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	switch {
	case err == nil:
		return mistakes
	case errors.As(err, &unknown):
		err = fmt.Errorf("%s: %s is not signed by %s: the nodes will refuse each other's calls", key, listener.TLS.Cert, trust)
	case errors.As(err, &host):
		err = fmt.Errorf("%s: %s does not name the host of the advertised address %s", key, listener.TLS.Cert, listener.Advertise)
	default:
		err = fmt.Errorf("%s: %s: the other nodes will refuse it: %w", key, listener.TLS.Cert, err)
	}
	return append(mistakes, err)
}
