// Package certs keeps the certificates of a run, made by quotad's own commands: a CA, a pair for each node, and their successors of each
// rotation.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// The files of a node's folder, and the bundle of callers.
const (
	caFile, certFile, keyFile = "ca.pem", "cert.pem", "key.pem"
)

// Set is the certificates of a run.
type Set struct {
	binary, dir string

	mu sync.Mutex
	// generation counts the CAs: the files of generation g are in folder ca-g.
	generation int
	// everywhere is the generation that all nodes and callers have. It lags behind while a rotation is unfinished.
	everywhere int
	// hosts are the addresses of the nodes.
	hosts map[string]string
}

// New makes a CA. The binary is quotad.
func New(ctx context.Context, binary, dir string) (*Set, error) {
	s := &Set{binary: binary, dir: dir, hosts: map[string]string{}}
	if err := s.init(ctx); err != nil {
		return nil, err
	}
	return s, s.TrustCallers(s.generation)
}

// Add makes the pair of a node, if it has none, and puts it in use.
func (s *Set) Add(ctx context.Context, id, host string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts[id] != "" {
		return nil
	}
	s.hosts[id] = host
	if err := s.sign(ctx, id, host); err != nil {
		return err
	}
	return errors.Join(s.trust(s.live(id), s.generation), s.usePair(id, s.generation))
}

// Flags are the flags with which a node uses its files, on both ports.
func (s *Set) Flags(id string) []string {
	ca, cert, key := filepath.Join(s.live(id), caFile), filepath.Join(s.live(id), certFile), filepath.Join(s.live(id), keyFile)
	return []string{
		"--api-tls-cert", cert, "--api-tls-key", key, "--api-tls-ca", ca, "--raft-tls-cert", cert, "--raft-tls-key", key, "--raft-tls-ca", ca,
	}
}

// Generation is the number of the current CA.
func (s *Set) Generation() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// Next makes another CA and a pair by it for each node, without putting them in use. If that fails, the current CA remains.
func (s *Set) Next(ctx context.Context) (generation int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	err = s.init(ctx)
	for id, host := range s.hosts {
		if err == nil {
			err = s.sign(ctx, id, host)
		}
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(s.folder(s.generation)))
		s.generation--
	}
	return s.generation, err
}

// Rotated records that all nodes and callers have the newest generation alone.
func (s *Set) Rotated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.everywhere = s.generation
}

// Finish completes a rotation that was cut off at any step, by the steps of the runbook. All nodes trust each generation that a node may
// show, then use the newest, then trust it alone. reload makes a node read its files again. Without a rotation Finish does nothing.
func (s *Set) Finish(ids []string, reload func(id string) error) error {
	s.mu.Lock()
	var shown []int
	for generation := s.everywhere; generation <= s.generation; generation++ {
		shown = append(shown, generation)
	}
	newest := s.generation
	s.mu.Unlock()
	if len(shown) == 1 {
		return nil
	}
	if err := s.TrustCallers(shown...); err != nil {
		return err
	}
	for _, change := range []func(id string) error{
		func(id string) error { return s.Trust(id, shown...) },
		func(id string) error { return s.UsePair(id, newest) },
		func(id string) error { return s.Trust(id, newest) },
	} {
		for _, id := range ids {
			if err := change(id); err != nil {
				return err
			}
			if err := reload(id); err != nil {
				return fmt.Errorf("finishing a rotation of certificates: %w", err)
			}
		}
	}
	if err := s.TrustCallers(newest); err != nil {
		return err
	}
	s.Rotated()
	return nil
}

// Trust gives a node the CAs of some generations. A node reads its files again at SIGHUP.
func (s *Set) Trust(id string, generations ...int) error { return s.trust(s.live(id), generations...) }

// TrustCallers gives callers the CAs of some generations. Callers read their bundle for each connection.
func (s *Set) TrustCallers(generations ...int) error {
	return s.trust(filepath.Join(s.dir, "callers"), generations...)
}

// UsePair gives a node its pair of a generation.
func (s *Set) UsePair(id string, generation int) error { return s.usePair(id, generation) }

// Bundle is the file of the CAs that callers trust.
func (s *Set) Bundle() string { return filepath.Join(s.dir, "callers", caFile) }

// CA is the file of one generation's CA.
func (s *Set) CA(generation int) string { return filepath.Join(s.folder(generation), caFile) }

// Pair is a node's pair of a generation.
func (s *Set) Pair(id string, generation int) (tls.Certificate, error) {
	return tls.LoadX509KeyPair(filepath.Join(s.folder(generation), id+".pem"), filepath.Join(s.folder(generation), id+"-key.pem"))
}

func (s *Set) folder(generation int) string {
	return filepath.Join(s.dir, fmt.Sprintf("ca-%d", generation))
}

func (s *Set) live(id string) string { return filepath.Join(s.dir, "nodes", id) }

func (s *Set) init(ctx context.Context) error {
	return s.run(ctx, "init", "--name", fmt.Sprintf("CA %d of a run", s.generation))
}

func (s *Set) sign(ctx context.Context, id, host string) error {
	return s.run(ctx, "node", id, "--host", host)
}

// run runs a command of quotad cert for the current CA.
func (s *Set) run(ctx context.Context, args ...string) error {
	args = append([]string{"cert"}, append(args, "--dir", s.folder(s.generation))...)
	if said, err := exec.CommandContext(ctx, s.binary, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("quotad %v: %w: %s", args, err, said)
	}
	return nil
}

func (s *Set) trust(folder string, generations ...int) error {
	var bundle []byte
	for _, generation := range generations {
		ca, err := os.ReadFile(s.CA(generation))
		if err != nil {
			return err
		}
		bundle = append(bundle, ca...)
	}
	return replace(filepath.Join(folder, caFile), bundle)
}

func (s *Set) usePair(id string, generation int) error {
	for from, to := range map[string]string{id + ".pem": certFile, id + "-key.pem": keyFile} {
		data, err := os.ReadFile(filepath.Join(s.folder(generation), from))
		if err != nil {
			return err
		}
		if err := replace(filepath.Join(s.live(id), to), data); err != nil {
			return err
		}
	}
	return nil
}

// replace writes a file atomically: concurrent readers see the old or the new one.
func replace(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Dial connects to an address.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Secured returns a Dial that speaks TLS over another one. It verifies servers by the CAs of a bundle, which it reads each time.
func Secured(dial Dial, bundle string, protocols ...string) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		config, err := trusting(bundle)
		if err != nil {
			return nil, err
		}
		config.NextProtos = protocols
		return Handshake(ctx, dial, network, address, config)
	}
}

// Handshake connects and speaks TLS with a configuration.
func Handshake(ctx context.Context, dial Dial, network, address string, config *tls.Config) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config.ServerName = host
	plain, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(plain, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	return secured, nil
}

// AsNode is the TLS configuration of a peer that shows a node's pair of a generation and trusts the CAs of a bundle.
func (s *Set) AsNode(id string, generation int, bundle string) (*tls.Config, error) {
	config, err := trusting(bundle)
	if err != nil {
		return nil, err
	}
	pair, err := s.Pair(id, generation)
	config.Certificates = []tls.Certificate{pair}
	return config, err
}

func trusting(bundle string) (*tls.Config, error) {
	data, err := os.ReadFile(bundle)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no certificate", bundle)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, nil
}
