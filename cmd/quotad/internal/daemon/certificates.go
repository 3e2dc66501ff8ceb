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

// certificates are a listener's key pair and CA pools, which can be reloaded while connections arrive. If files do not
// load, the old ones stay in use.
type certificates struct {
	files config.TLSFiles
	now   atomic.Pointer[loadedFiles]
}

type loadedFiles struct {
	pair tls.Certificate
	// pool verifies the other side; nil where no CA is configured. peers verifies other nodes' API certificates; nil: the
	// system's CAs verify them.
	pool, peers *x509.CertPool
}

// loadCertificates reads the files; it returns nil if TLS is off.
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

// readPool reads a bundle of CAs; it returns nil if path is empty.
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

// expires returns the expiry of the current certificate.
func (c *certificates) expires() time.Time {
	if leaf := c.now.Load().pair.Leaf; leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

// apiServer returns the API's configuration for callers; each connection uses the current pair and pool.
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
		// http.Server requires a source of certificates; GetConfigForClient takes precedence.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.now.Load().pair, nil },
	}
}

// apiClient returns the configuration for calls that this node forwards to other nodes' APIs; nil without TLS. It presents
// this node's certificate, and verifies theirs with the CA that trust names.
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

// trust names the CA that verifies other nodes' API certificates, as the end of "is not signed by".
func trust(files config.TLSFiles) string {
	switch {
	case files.PeerCA != "":
		return "api.tls_ca"
	case files.CA != "":
		return "api.tls_client_ca, and api.tls_ca is not set"
	}
	return "a CA of the system, and api.tls_ca is not set"
}

// peers returns the configuration for both sides of peer connections: each verifies the other. Each connection uses the
// current pair and pool.
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
			Certificates: []tls.Certificate{files.pair}, SessionTicketsDisabled: true, // no resumption: each connection is verified
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &files.pair, nil },
		}
	}, nil
}

// CheckCertificates reads the certificates of a configuration and verifies them as other nodes would. It returns all
// mistakes: files that do not load, and certificates that other nodes will reject.
func CheckCertificates(c config.Config) []error {
	var mistakes []error
	if c.API.TLS.Enabled() {
		files, err := readFiles(c.API.TLS)
		switch {
		case err != nil:
			mistakes = append(mistakes, fmt.Errorf("api.tls_cert: %w", err))
		case len(c.Peers) != 1: // other nodes forward calls to this node, and it calls them with its own certificate
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

// verifyAs verifies a pair for one usage; for a server, together with its address.
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

// appendRefusal appends the reason why other nodes will reject a certificate.
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
