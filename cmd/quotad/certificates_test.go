package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptCertificates makes a new CA and a certificate for both sides of connections on loopback. For each name it also
// makes a pair NAME.pem and NAME-key.pem that carries the name.
func scriptCertificates(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "certificates DIR [NAME...]")
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	ts.Check(err)
	writePEM(ts, filepath.Join(dir, "ca.pem"), "CERTIFICATE", caDER)
	scriptCertificate(ts, dir, "cert.pem", "key.pem", nil, ca, caKey)
	for _, name := range args[1:] {
		scriptCertificate(ts, dir, name+".pem", name+"-key.pem", []string{name}, ca, caKey)
	}
}

// scriptCertificate makes one pair for loopback.
func scriptCertificate(
	ts *testscript.TestScript, dir, certFile, keyFile string, names []string, ca *x509.Certificate, caKey *ecdsa.PrivateKey,
) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "node"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	ts.Check(err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	ts.Check(err)
	writePEM(ts, filepath.Join(dir, certFile), "CERTIFICATE", leafDER)
	writePEM(ts, filepath.Join(dir, keyFile), "EC PRIVATE KEY", keyDER)
}

func writePEM(ts *testscript.TestScript, path, kind string, der []byte) {
	ts.Check(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
