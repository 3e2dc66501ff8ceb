package authority

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode"
)

func verify(t *testing.T, dir string, issued *Issued, host string, usage x509.ExtKeyUsage) (*x509.Certificate, error) {
	t.Helper()
	bundle, err := os.ReadFile(filepath.Join(dir, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		t.Fatal("no CA")
	}
	pair, err := tls.LoadX509KeyPair(issued.CertFile, issued.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, KeyUsages: []x509.ExtKeyUsage{usage}})
	return pair.Leaf, err
}

// TestAuthority_SignsAsRequested checks the subject, usage and lifetime of certificates.
func TestAuthority_SignsAsRequested(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "certs"), time.Now()
	if _, err := Init(dir, "a CA", false, now); err != nil {
		t.Fatal(err)
	}
	ca, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	node, err := ca.Node("n1", []string{"10.0.0.1", "::1", "a.example.org"}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"n1", "10.0.0.1", "::1", "a.example.org"} {
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			leaf, err := verify(t, dir, node, host, usage)
			if err != nil || raftnode.CheckIdentity(leaf, "n1", "any", nil) != nil || raftnode.CheckIdentity(leaf, "n2", "any", nil) == nil {
				t.Errorf("%s, usage %d: %v", host, usage, err)
			}
		}
	}
	if _, err := verify(t, dir, node, "b.example.org", x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("it stands for another host")
	}
	client, err := ca.Client("n2", now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := verify(t, dir, client, "", x509.ExtKeyUsageClientAuth)
	if err != nil || raftnode.CheckIdentity(leaf, "n2", "any", nil) == nil {
		t.Errorf("a caller stands for a node: %v", err)
	}
	if _, err := verify(t, dir, client, "", x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a caller may serve")
	}
	if left := leaf.NotAfter.Sub(now); left < 364*24*time.Hour || left > 367*24*time.Hour {
		t.Errorf("a leaf is good for %v", left)
	}
	late, err := ca.Client("late", now.AddDate(9, 6, 0))
	if err != nil || late.NotAfter.After(now.AddDate(10, 0, 1)) {
		t.Errorf("it outlives its CA: %v %v", late, err)
	}
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 8 {
		t.Fatalf("%v %v", all, err)
	}
	for _, file := range all {
		if info, err := file.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", file.Name(), info.Mode(), err)
		}
	}
}

// TestAuthority_RefusesUnsafe: unsafe requests fail with a typed error and write nothing.
func TestAuthority_RefusesUnsafe(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	if _, err := Open(dir, false); !isMistake(err) {
		t.Errorf("a directory without a CA: %v", err)
	}
	if _, err := Init(dir, "a CA", false, now); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Init(dir, "a CA", false, now); !isMistake(err) {
		t.Errorf("a second CA over the first: %v", err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, keyFile)); err != nil || string(after) != string(before) {
		t.Error("the CA's key was replaced")
	}
	ca, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "ca", "ca-key", "../n1", "a/b", ".hidden", "-flag", "a b", "*", "n1\n", string(make([]byte, 65))} {
		if _, err := ca.Node(name, []string{"127.0.0.1"}, now); !isMistake(err) {
			t.Errorf("node %q: %v", name, err)
		}
		if _, err := ca.Client(name, now); !isMistake(err) {
			t.Errorf("client %q: %v", name, err)
		}
	}
	for _, host := range []string{"", "*", "*.example.org", "a b", "10.0.0.1:7450", "0.0.0.0", "::", "a..b", "http://x"} {
		if _, err := ca.Node("n1", []string{host}, now); !isMistake(err) {
			t.Errorf("host %q: %v", host, err)
		}
	}
	if _, err := ca.Client("late", now.AddDate(10, 0, 1)); !isMistake(err) {
		t.Errorf("a CA that has ended signs: %v", err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
		t.Errorf("files are left: %v %v", all, err)
	}
	if _, err := ca.Client("ops", now); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Client("ops", now); !isMistake(err) {
		t.Errorf("a pair was replaced without force: %v", err)
	}
	forced, err := Open(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if issued, err := forced.Client("ops", now); err != nil {
		t.Error(err)
	} else if _, err := verify(t, dir, issued, "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Join(dir, keyFile), 0o644); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	if _, err := Open(dir, false); !isMistake(err) {
		t.Errorf("a key that others may read: %v", err)
	}
}

// TestAuthority_ReplacesPairsWhole: if the certificate cannot be written, the old pair stays as it was.
func TestAuthority_ReplacesPairsWhole(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "certs"), time.Now()
	if _, err := Init(dir, "quotad", false, now); err != nil {
		t.Fatal(err)
	}
	ca, err := Open(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Client("ops", now); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "ops.pem.new", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Client("ops", now); err == nil {
		t.Fatal("the certificate was written")
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(dir, "ops.pem"), filepath.Join(dir, "ops-key.pem")); err != nil {
		t.Errorf("the pair: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "ops-key.pem.new")); err == nil {
		t.Error("the new key is left")
	}
}

func isMistake(err error) bool {
	_, ok := errors.AsType[*MistakeError](err)
	return ok
}
