package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
)

// certificates are a listener's pair and pool, which can be read anew while connections come in. A pair that does not
// load leaves the old one in use.
type certificates struct {
	files config.TLSFiles
	now   atomic.Pointer[loadedFiles]
}

type loadedFiles struct {
	pair tls.Certificate
	// pool verifies the other side; nil where no CA is configured.
	pool *x509.CertPool
}

// loadCertificates reads the files; nil where TLS is off.
func loadCertificates(files config.TLSFiles) (*certificates, error) {
	if !files.Enabled() {
		return nil, nil
	}
	c := &certificates{files: files}
	return c, c.reload()
}

// reload reads the files anew.
func (c *certificates) reload() error {
	if c == nil {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.files.Cert, err)
	}
	fresh := &loadedFiles{pair: pair}
	if c.files.CA != "" {
		bundle, err := os.ReadFile(c.files.CA)
		if err != nil {
			return err
		}
		fresh.pool = x509.NewCertPool()
		if !fresh.pool.AppendCertsFromPEM(bundle) {
			return fmt.Errorf("%s holds no PEM certificate", c.files.CA)
		}
	}
	c.now.Store(fresh)
	return nil
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

// apiClient is this node's side towards another node's API, to which it hands calls on. It shows its own certificate
// and believes what its own CA signed, or else the system's.
func (c *certificates) apiClient() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		RootCAs:              c.now.Load().pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.now.Load().pair, nil },
	}
}

// peers is both sides of the connections between nodes: each verifies the other. The pair is looked up for each
// connection; the pool is fixed at the start.
func (c *certificates) peers() (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	pool := c.now.Load().pool
	if pool == nil {
		return nil, errors.New("nodes verify each other: raft.tls_ca is missing")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.now.Load().pair, nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.now.Load().pair, nil },
	}, nil
}
