package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/neterr"
)

const (
	// maxSkew is the largest difference between this machine's clock and a node's without a warning. A Date header has
	// whole seconds.
	maxSkew = 5 * time.Second
	// expiresSoon is the remaining lifetime of a certificate below which doctor warns.
	expiresSoon = 14 * 24 * time.Hour
	// maxBody is the largest part of an answer to read, in bytes.
	maxBody = 4 << 10
)

func (e *examination) dial(ctx context.Context, address string) error {
	dialer := &net.Dialer{Timeout: e.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// endpoint checks that something listens at an address. It adds no finding for success, because a later check does.
func (e *examination) endpoint(ctx context.Context, check, address string) bool {
	err := e.dial(ctx, address)
	if err == nil {
		return true
	}
	hint := "check the address, and that nothing on the way closes the port"
	var name *net.DNSError
	switch {
	case errors.As(err, &name):
		hint = "check the name, or use an address"
	case neterr.Refused(err):
		hint = "nothing listens there: is a node running, and is that its API port (7450 by default, 7451 is Raft's)?"
	case os.IsTimeout(err):
		hint = "nothing answers: check the address and the firewalls on the way"
	}
	e.add(check, Failed, hint, "cannot be reached: %s", rootCause(err))
	return false
}

// tls verifies a node's certificate as the client does.
func (e *examination) tls(ctx context.Context, s Server) bool {
	check := "tls " + s.Address
	settings := e.Transport.TLSClientConfig.Clone()
	if settings == nil {
		settings = &tls.Config{MinVersion: tls.VersionTLS13}
	}
	settings.ServerName = s.URL.Hostname()
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: e.Timeout}, Config: settings}
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", s.URL.Host)
	if err != nil {
		e.add(check, Failed, tlsHint(err), "%s", err.Error())
		return false
	}
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok || len(secure.ConnectionState().PeerCertificates) == 0 {
		e.add(check, Failed, "", "the node showed no certificate")
		return false
	}
	certificate := secure.ConnectionState().PeerCertificates[0]
	if left := certificate.NotAfter.Sub(e.Now()); left < expiresSoon {
		e.add(check, Warning, "renew it: quotad cert node, then SIGHUP to the node", "the node's certificate ends on %s",
			certificate.NotAfter.Format(time.DateOnly))
		return true
	}
	e.add(check, OK, "", "the node's certificate is good until %s", certificate.NotAfter.Format(time.DateOnly))
	return true
}

func tlsHint(err error) string {
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		return "--ca-file (QUOTAD_CA_FILE) has to name the CA that signed the node's certificate"
	case errors.As(err, &hostname):
		return "use a name of the certificate in --server, or make one with this name: quotad cert node --host"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the certificate (quotad cert node), and check this machine's clock"
	case errors.As(err, &plain):
		return "the node speaks clear text: leave --ca-file out and use http://, or set api.tls_cert on the node"
	}
	return "check --ca-file, --cert-file and --key-file against the node's api.tls_ca"
}

// clock sends a node a request over HTTP, and compares its time of day with this machine's.
func (e *examination) clock(ctx context.Context, s Server) bool {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.URL.String(), "/")+"/livez", nil)
	if err != nil {
		e.add("http "+s.Address, Failed, "check --server", "%s", err.Error())
		return false
	}
	began := e.Now()
	response, err := e.http.Do(request)
	if err != nil {
		e.add("http "+s.Address, Failed, httpHint(err), "no answer over HTTP: %s", rootCause(err))
		return false
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxBody)) // a partial body is enough
	ended := e.Now()
	if response.StatusCode == http.StatusBadRequest && strings.Contains(string(body), "HTTPS server") {
		e.add("tls "+s.Address, Failed, "name the CA with --ca-file (QUOTAD_CA_FILE), which enables TLS", "the node speaks TLS only")
		return false
	}
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return true // something between client and node removed it
	}
	skew := date.Add(time.Second / 2).Sub(began.Add(ended.Sub(began) / 2))
	if skew.Abs() > maxSkew+ended.Sub(began) {
		e.add("clock "+s.Address, Warning, "set the clock by NTP; leases do not depend on it, but certificates and providers' times do",
			"this machine and the node are %s apart", skew.Abs().Round(time.Second))
		return true
	}
	e.add("clock "+s.Address, OK, "", "this machine and the node agree to a few seconds")
	return true
}

func httpHint(err error) string {
	// A TLS alert has no type of its own. A node sends it after the handshake if it requires a certificate or rejects the
	// one it got.
	if operation, ok := errors.AsType[*net.OpError](err); ok && operation.Op == "remote error" {
		return "the node asks for a certificate: --cert-file and --key-file"
	}
	return "is that the API port of a quotad node? 7450 by default, 7451 is Raft's"
}

// rootCause is the reason for a failed connection in the system's words.
func rootCause(err error) string {
	if system, ok := errors.AsType[*os.SyscallError](err); ok {
		return system.Err.Error()
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return name.Err
	}
	if operation, ok := errors.AsType[*net.OpError](err); ok {
		return operation.Err.Error()
	}
	return err.Error()
}
