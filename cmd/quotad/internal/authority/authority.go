// Package authority is a small certificate authority in a directory, for clusters whose operators have none. It has one CA,
// a pair of certificate and key for each node, and one for each client.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// The lifetime of certificates. They begin an hour early, for clocks that are behind.
const (
	caYears   = 10
	leafYears = 1
	early     = time.Hour
)

// The files of the authority itself.
const (
	CAFile  = "ca.pem"
	keyFile = "ca-key.pem"
)

// MistakeError names the mistake in a request and the way out.
type MistakeError struct{ Message, Hint string }

// Error implements error.
func (e *MistakeError) Error() string { return e.Message }

// Issued is a certificate that was written.
type Issued struct {
	// CertFile and KeyFile are its files; NotAfter is its expiry.
	CertFile, KeyFile string
	NotAfter          time.Time
}

// Authority is a CA that is open for signing.
type Authority struct {
	dir   string
	force bool
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
}

// Init makes a CA in a directory. It replaces existing files only with force: that invalidates every certificate of the old
// CA.
func Init(dir, name string, force bool, now time.Time) (*Issued, error) {
	if len(name) == 0 || len(name) > 64 {
		return nil, &MistakeError{Message: fmt.Sprintf("the name %q must have 1 to 64 bytes", name)}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// MaxPathLenZero: it signs leaves only.
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, NotBefore: now.Add(-early), NotAfter: now.AddDate(caYears, 0, 0),
	}
	a := &Authority{dir: dir, force: force, cert: template, key: key}
	return a.write(template, key, CAFile, keyFile)
}

// Open opens the CA of a directory. Where file modes show it, Open refuses a key that other users can read: a copy of the
// key is enough to act as any node.
func Open(dir string, force bool) (*Authority, error) {
	info, err := os.Stat(filepath.Join(dir, keyFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &MistakeError{Message: fmt.Sprintf("%s has no CA", dir), Hint: "run quotad cert init"}
	case err != nil:
		return nil, err
	case readableByOthers(info):
		return nil, &MistakeError{
			Message: fmt.Sprintf("other users can read %s: its mode is %04o", filepath.Join(dir, keyFile), info.Mode().Perm()),
			Hint:    "chmod 600 it, and make a new CA if another user may have read it",
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, CAFile), filepath.Join(dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("the CA in %s: %w", dir, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, &MistakeError{Message: fmt.Sprintf("%s in %s is not a CA of quotad cert", CAFile, dir), Hint: "use another directory"}
	}
	return &Authority{dir: dir, force: force, cert: pair.Leaf, key: key}, nil
}

var (
	safeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	dnsName  = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)
)

// Node makes a node's certificate: for both sides of connections, for its id, and for the hosts at which other nodes reach
// it.
func (a *Authority) Node(id string, hosts []string, now time.Time) (*Issued, error) {
	template := a.leaf(id, now)
	template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	template.DNSNames = []string{id}
	template.URIs = []*url.URL{{Scheme: "quotad", Path: "/" + id}}
	for _, host := range hosts {
		switch ip := net.ParseIP(host); {
		case ip != nil && ip.IsUnspecified():
			return nil, &MistakeError{
				Message: fmt.Sprintf("host %s means every address", host),
				Hint:    "name the address at which others reach the node",
			}
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case !dnsName.MatchString(host) || len(host) > 253:
			return nil, &MistakeError{
				Message: fmt.Sprintf("host %q is neither an IP address nor a DNS name", host),
				Hint:    "omit the port; wildcards are not allowed",
			}
		default:
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(id, template)
}

// Client makes the certificate of a caller. It has no DNS name, so that it cannot stand for a node.
func (a *Authority) Client(name string, now time.Time) (*Issued, error) {
	return a.issue(name, a.leaf(name, now))
}

// leaf makes the template of a caller's certificate, which ends no later than the CA.
func (a *Authority) leaf(name string, now time.Time) *x509.Certificate {
	end := now.AddDate(leafYears, 0, 0)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-early), NotAfter: end, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

func (a *Authority) issue(name string, template *x509.Certificate) (*Issued, error) {
	switch {
	case !safeName.MatchString(name):
		return nil, &MistakeError{Message: fmt.Sprintf("%q must be 1 to 64 letters, digits and . _ -, and begin with a letter or digit", name)}
	case name+".pem" == CAFile || name+".pem" == keyFile:
		return nil, &MistakeError{Message: fmt.Sprintf("%q is the CA's own name", name), Hint: "choose another"}
	case !template.NotAfter.After(template.NotBefore.Add(early)):
		return nil, &MistakeError{
			Message: fmt.Sprintf("the CA expired at %s", a.cert.NotAfter.Format(time.DateOnly)),
			Hint:    "make a new one in another directory",
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return a.write(template, key, name+".pem", name+"-key.pem")
}

// write signs a certificate, and writes it and its key; neither, if one of them cannot be written. Without force it writes
// neither if one of them exists.
func (a *Authority) write(template *x509.Certificate, key *ecdsa.PrivateKey, certFile, keyFile string) (*Issued, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	issued := &Issued{CertFile: filepath.Join(a.dir, certFile), KeyFile: filepath.Join(a.dir, keyFile), NotAfter: template.NotAfter}
	for _, path := range []string{issued.CertFile, issued.KeyFile} {
		if _, err := os.Lstat(path); err == nil && !a.force {
			return nil, &MistakeError{Message: path + " already exists", Hint: "--force replaces it"}
		}
	}
	return issued, writePair([2]pemFile{{issued.KeyFile, "PRIVATE KEY", keyDER}, {issued.CertFile, "CERTIFICATE", der}}, a.force)
}

// pemFile is a file to write.
type pemFile struct {
	path, kind string
	der        []byte
}

// writePair writes two files that belong together, or neither: with force both are complete before one replaces an older file.
func writePair(pair [2]pemFile, force bool) (err error) {
	suffix := ""
	if force {
		suffix = ".new"
	}
	var written []string
	defer func() {
		for _, path := range written {
			if err != nil {
				_ = os.Remove(path)
			}
		}
	}()
	for _, file := range pair {
		path := file.path + suffix
		if force { // a former attempt may have left it
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := writeFile(path, file); err != nil {
			return err
		}
		written = append(written, path)
	}
	for i := 0; force && i < len(pair); i++ {
		if err := os.Rename(pair[i].path+suffix, pair[i].path); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a new file that only its owner can read. It follows no link.
func writeFile(path string, content pemFile) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(pem.Encode(file, &pem.Block{Type: content.kind, Bytes: content.der}), file.Sync(), file.Close())
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}
