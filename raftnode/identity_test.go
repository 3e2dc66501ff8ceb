package raftnode_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// issue makes a certificate for loopback with one name, which is a URI if it contains a colon.
func (a *authority) issue(name string) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if uri, err := url.Parse(name); err == nil && strings.Contains(name, ":") {
		leaf.URIs = []*url.URL{uri}
	} else {
		leaf.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) settings(name string) func() *tls.Config {
	pair := a.issue(name)
	return func() *tls.Config {
		return &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: a.pool, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert,
			Certificates: []tls.Certificate{pair},
		}
	}
}

// talk is a connection to the port for peers with the preface sent.
type talk struct {
	*tls.Conn
	reader *bufio.Reader
	// last is the final byte of an answer: raft's ends with false.
	last byte
}

// talk connects with a certificate and claims to be a node.
func (a *authority) talk(address, certificate, claims, protocol, cluster string) (*talk, error) {
	a.t.Helper()
	return a.greet(address, certificate, map[string]any{"node": claims, "protocol": protocol, "cluster": cluster})
}

// greet connects with a certificate and sends a preface of the present versions.
func (a *authority) greet(address, certificate string, preface map[string]any) (*talk, error) {
	a.t.Helper()
	conn, err := tls.Dial("tcp", address, a.settings(certificate)())
	if err != nil {
		return nil, err
	}
	preface["magic"], preface["oldest"], preface["newest"] = "quotad-peer/2", fsm.OldestEntryVersion, fsm.EntryVersion
	hello, err := json.Marshal(preface)
	if err == nil {
		_, err = conn.Write(append(hello, '\n'))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &talk{Conn: conn, reader: bufio.NewReader(conn), last: 0xc2}, nil
}

// ask sends a message and returns the answer.
func (s *talk) ask(message string) (string, error) {
	_ = s.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := s.Write([]byte(message)); err != nil {
		return "", err
	}
	answer, err := s.reader.ReadSlice(s.last)
	return string(answer), err
}

// spoken connects with a certificate, claims to be a node, sends a message, and returns the answer.
func (a *authority) spoken(address, certificate, claims, protocol, cluster, message string) (string, error) {
	a.t.Helper()
	talk, err := a.talk(address, certificate, claims, protocol, cluster)
	if err != nil {
		return "", err
	}
	defer func() { _ = talk.Close() }()
	return talk.ask(message)
}

// TestIdentity_ACertificateActsForItsNodeOnly: this holds for both ends of a connection; raft connections also need a member.
func TestIdentity_ACertificateActsForItsNodeOnly(t *testing.T) {
	t.Parallel() // mostly waiting
	ca := newAuthority(t)
	names := map[string]string{"n0": "n0", "n1": "quotad:///n1", "n2": "spiffe://example.org/two"}
	c := newCluster(t, 3, func(conf *raftnode.Config) {
		conf.PeerTLS = ca.settings(names[conf.ID])
		conf.PeerNames = map[string][]string{"spiffe://example.org/two": {"n2"}}
	})
	c.propose(rate("q", 1000))
	id := c.id(0)
	const vote = "\x04\x82\xafProtocolVersion\x03\xa2ID\xa2n1" // a pre-vote without a term, which has no effect
	at := c.configs[0].RaftAddress
	if answer, err := ca.spoken(at, "n1", "n1", "raft", id, vote); !strings.Contains(answer, "Granted") {
		t.Errorf("a member is not answered: %q %v", answer, err)
	}
	for name, claim := range map[string]struct{ certificate, node, protocol, cluster string }{
		"another's certificate":         {"n9", "n1", "raft", id},
		"another member's certificate":  {"n2", "n1", "raft", id},
		"a certificate of no member":    {"n9", "n9", "raft", id},
		"another cluster's certificate": {"quotad://other/n1", "n1", "raft", id},
		"a question as another":         {"n9", "n1", "peer", id},
		"no cluster":                    {"n1", "n1", "raft", ""},
	} {
		answer, err := ca.spoken(at, claim.certificate, claim.node, claim.protocol, claim.cluster, vote+"\n")
		if strings.Contains(answer, "Granted") || strings.Contains(answer, `"term"`) || err == nil {
			t.Errorf("%s is answered: %q", name, answer)
		}
	}
	// The others do not talk to a node at n2's address with another name. Once it has its own name again, it returns.
	c.stop(2)
	own := c.configs[2].PeerTLS
	c.configs[2].PeerTLS = ca.settings("n9")
	c.start(2)
	if c.propose(reserve("q", 1)).GetGranted() == nil {
		t.Error("not granted")
	}
	last := c.nodes[c.leader()].Status().LastIndex
	if c.nodes[2].Status().LastIndex >= last {
		t.Error("a node with another's certificate was given entries")
	}
	c.stop(2)
	c.configs[2].PeerTLS = own
	c.start(2)
	c.hashesAgree()
}

// TestIdentity_WithoutAClusterNeedsTheSameList: a member that has not applied the cluster's first entry names no cluster. Raft answers it
// where it names the called node's list of peers, with a member's certificate.
func TestIdentity_WithoutAClusterNeedsTheSameList(t *testing.T) {
	ca := newAuthority(t)
	c := newCluster(t, 3, func(conf *raftnode.Config) { conf.PeerTLS = ca.settings(conf.ID) })
	c.propose(rate("q", 1000))
	id, at := c.id(0), c.configs[0].RaftAddress
	question, err := ca.talk(at, "n1", "n1", "peer", id)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = question.Close() }()
	question.last = '\n'
	answer, err := question.ask(`{"kind":"probe"}` + "\n")
	var node struct {
		List string `json:"list"`
	}
	if err := errors.Join(err, json.Unmarshal([]byte(answer), &node)); err != nil || node.List == "" {
		t.Fatalf("the node has no list of peers: %q %v", answer, err)
	}
	for name, claim := range map[string]struct {
		certificate, node, list string
		answered                bool
	}{
		"the same list":                  {"n1", "n1", node.List, true},
		"a different list":               {"n1", "n1", node.List[1:], false},
		"no list":                        {"n1", "n1", "", false},
		"the same list, no member":       {"n9", "n9", node.List, false},
		"the same list, as another node": {"n2", "n1", node.List, false},
	} {
		talk, err := ca.greet(at, claim.certificate, map[string]any{"node": claim.node, "protocol": "raft", "list": claim.list})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := talk.ask(vote(claim.node))
		if got := strings.Contains(answer, "Granted"); got != claim.answered {
			t.Errorf("%s: answered %t: %q %v", name, got, answer, err)
		}
		_ = talk.Close()
	}
}

// TestIdentity_AFormerMemberIsRefused: though the list that forms the cluster still names it and its certificate is valid.
func TestIdentity_AFormerMemberIsRefused(t *testing.T) {
	ca := newAuthority(t)
	c := newCluster(t, 3, func(conf *raftnode.Config) { conf.PeerTLS = ca.settings(conf.ID) })
	leader := c.leader()
	gone := c.configs[(leader+1)%3].ID
	id := c.id(leader)
	vote := "\x04\x82\xafProtocolVersion\x03\xa2ID\xa2" + gone
	answers := func() bool {
		answer, _ := ca.spoken(c.configs[leader].RaftAddress, gone, gone, "raft", id, vote)
		return strings.Contains(answer, "Granted")
	}
	eventually(t, "a member is answered", answers)
	c.remove(gone)
	eventually(t, "a former member is not, though the list names it", func() bool { return !answers() })
}

// TestIdentity_RefusedNodeLearnsWhy: a node whose certificate the others do not trust has begun to write when they reject it. It must get
// the alert: an operator who sees only "broken pipe" would suspect the network.
func TestIdentity_RefusedNodeLearnsWhy(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	said := new(lines)
	c := newCluster(t, 1, func(conf *raftnode.Config) {
		conf.PeerTLS = ours.settings(conf.ID)
		conf.Logger = hclog.New(&hclog.LoggerOptions{Output: said, Level: hclog.Info})
	})
	c.leader()
	raw, err := net.Dial("tcp", c.configs[0].RaftAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
	conf := theirs.settings("n1")()
	conf.InsecureSkipVerify = true //nolint:gosec // the port is to be the one that refuses
	held := &held{Conn: raw}
	conn := tls.Client(held, conf)
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	// More bytes than the port reads at once arrive together with the certificate.
	if _, err := conn.Write(make([]byte, 32<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Write(held.last); err != nil {
		t.Fatal(err)
	}
	held.answer, _ = io.ReadAll(raw)
	if _, err := raw.Write([]byte("raft's first question")); err != nil {
		t.Errorf("the port was away before the caller could read why: %v", err)
	}
	_, err = conn.Read(make([]byte, 1))
	if failed := new(net.OpError); !errors.As(err, &failed) || failed.Op != "remote error" {
		t.Errorf("the caller learns %v", err)
	}
	eventually(t, "the port's own log says it", func() bool {
		return strings.Contains(said.String(),
			"TLS handshake with a peer failed: from=127.0.0.1")
	})
}

// held is a connection that holds back all writes except the first, and reads a stored answer first.
type held struct {
	net.Conn
	begun  bool
	last   []byte
	answer []byte
}

// Read implements net.Conn.
func (h *held) Read(p []byte) (int, error) {
	if len(h.answer) == 0 {
		return h.Conn.Read(p)
	}
	n := copy(p, h.answer)
	h.answer = h.answer[n:]
	return n, nil
}

// Write implements net.Conn.
func (h *held) Write(p []byte) (int, error) {
	if !h.begun {
		h.begun = true
		return h.Conn.Write(p)
	}
	h.last = append(h.last, p...)
	return len(p), nil
}

// TestCheckIdentity: which certificate names belong to a node.
func TestCheckIdentity(t *testing.T) {
	ca := newAuthority(t)
	mapped := map[string][]string{"shared.example": {"n1", "n2"}}
	for _, c := range []struct {
		name, node, cluster string
		good                bool
	}{
		{"n1", "n1", "c", true},
		{"n1", "n2", "c", false},
		{"n1.example", "n1", "c", false},
		{"quotad:///n1", "n1", "c", true},
		{"quotad://c/n1", "n1", "c", true},
		{"quotad://c/n1", "n1", "", true},
		{"quotad://d/n1", "n1", "c", false},
		{"other://c/n1", "n1", "c", false},
		{"quotad://c/x/n1", "n1", "c", false},
		{"shared.example", "n1", "c", true},
		{"shared.example", "n2", "c", true},
		{"shared.example", "n3", "c", false},
	} {
		leaf, err := x509.ParseCertificate(ca.issue(c.name).Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		err = raftnode.CheckIdentity(leaf, c.node, c.cluster, mapped)
		if foreign, ok := errors.AsType[*raftnode.ForeignIdentityError](err); c.good != (err == nil) ||
			!c.good && (!ok || foreign.Node != c.node) {
			t.Errorf("%s for %s in %q: %v", c.name, c.node, c.cluster, err)
		}
	}
}

// count returns how many lines of a level contain a text.
func (l *lines) count(level, what string) (n int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, "["+level+"]") && strings.Contains(line, what) {
			n++
		}
	}
	return n
}

// TestIdentity_WrongCertificateIsLoggedRarely: nodes retry again and again while one has another node's certificate. Each side logs
// it once in a while, and the rest at debug level.
func TestIdentity_WrongCertificateIsLoggedRarely(t *testing.T) {
	ca, began := newAuthority(t), time.Now()
	addresses, err := loopback.Free(2)
	if err != nil {
		t.Fatal(err)
	}
	var log lines
	for i, certificate := range []string{"n0", "n9"} {
		conf := raftnode.DefaultConfig()
		conf.ID, conf.DataDir, conf.RaftAddress = fmt.Sprint("n", i), t.TempDir(), addresses[i]
		conf.Peers = []raftnode.Peer{{ID: "n0", RaftAddress: addresses[0]}, {ID: "n1", RaftAddress: addresses[1]}}
		conf.PeerTLS = ca.settings(certificate)
		if i == 0 {
			conf.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &log})
		}
		n, err := raftnode.Open(conf)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Kill() })
	}
	for _, what := range []string{"another node answers at the address of a node", "rejected a peer"} {
		eventually(t, what+", again and again", func() bool { return log.count("DEBUG", what) >= 3 })
		const every = 30 * time.Second
		if said, most := log.count("WARN", what), 1+int(time.Since(began)/every); said < 1 || said > most {
			t.Errorf("%q was said %d times, want 1 to %d", what, said, most)
		}
	}
}
