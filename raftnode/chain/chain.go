// Package chain verifies certificates that were shown before, by the settings of now.
package chain

import (
	"crypto/x509"
	"time"
)

// Verify verifies a chain of certificates, of which the first is its owner's, for one usage, and, if host is set, for that name or address.
// It judges as at a moment; the zero time stands for now. The chain must not be empty.
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
