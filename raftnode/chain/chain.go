// Package chain verifies certificates that were shown earlier against the present settings.
package chain

import (
	"crypto/x509"
	"time"
)

// Verify verifies a non-empty chain, owner's certificate first, for one usage as of a moment; the zero time means now. If host is set, the
// owner's certificate must be valid for that name or address.
func Verify(certificates []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, host string, at time.Time) error {
	options := x509.VerifyOptions{
		Roots: roots, Intermediates: x509.NewCertPool(), DNSName: host, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage},
	}
	for _, intermediate := range certificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err := certificates[0].Verify(options)
	return err
}
