package raftnode_test

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode"
)

// vote is a pre-vote without a term, which has no effect.
func vote(node string) string { return "\x04\x82\xafProtocolVersion\x03\xa2ID\xa2" + node }

// TestLinks_OfAFormerMemberEnd: a removed member's open raft connection is closed, and another member's is not.
func TestLinks_OfAFormerMemberEnd(t *testing.T) {
	ca := newAuthority(t)
	c := newCluster(t, 3, func(conf *raftnode.Config) { conf.PeerTLS = ca.settings(conf.ID) })
	leader := c.leader()
	gone, other := c.configs[(leader+1)%3].ID, c.configs[(leader+2)%3].ID
	id := c.id(leader)
	open := func(node string) *talk {
		talk, err := ca.talk(c.configs[leader].RaftAddress, node, node, "raft", id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = talk.Close() })
		if answer, err := talk.ask(vote(node)); !strings.Contains(answer, "Granted") {
			t.Fatalf("a member is not answered: %q %v", answer, err)
		}
		return talk
	}
	theirs, others := open(gone), open(other)
	c.remove(gone)
	theirs.ends(t)
	if answer, err := others.ask(vote(other)); !strings.Contains(answer, "Granted") {
		t.Errorf("another member's connection is not answered any more: %q %v", answer, err)
	}
}

// TestLinks_OfADroppedCAEnd: the TLS settings of the port for peers are reloaded with one trusted CA less. Open connections with that CA's
// certificates are closed, for raft and for questions. Others stay open, and the cluster works.
func TestLinks_OfADroppedCAEnd(t *testing.T) {
	stays, goes := newAuthority(t), newAuthority(t)
	var trusted atomic.Pointer[x509.CertPool]
	both := x509.NewCertPool()
	both.AddCert(stays.cert)
	both.AddCert(goes.cert)
	trusted.Store(both)
	c := newCluster(t, 3, func(conf *raftnode.Config) {
		pair := stays.issue(conf.ID)
		conf.PeerTLS = func() *tls.Config {
			return &tls.Config{
				MinVersion: tls.VersionTLS13, RootCAs: trusted.Load(), ClientCAs: trusted.Load(), ClientAuth: tls.RequireAndVerifyClientCert,
				Certificates: []tls.Certificate{pair},
			}
		}
	})
	c.propose(rate("q", 1000))
	leader := c.leader()
	member := c.configs[(leader+1)%3].ID
	id := c.id(leader)
	goes.pool = both // to verify the node's certificate
	open := func(ca *authority, protocol, message, want string) *talk {
		talk, err := ca.talk(c.configs[leader].RaftAddress, member, member, protocol, id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = talk.Close() })
		if protocol == "peer" {
			talk.last = '\n'
		}
		if answer, err := talk.ask(message); !strings.Contains(answer, want) {
			t.Fatalf("a member is not answered: %q %v", answer, err)
		}
		return talk
	}
	const probe = `{"kind":"probe"}` + "\n"
	dropped := []*talk{open(goes, "raft", vote(member), "Granted"), open(goes, "peer", probe, `"term"`)}
	kept := []*talk{open(stays, "raft", vote(member), "Granted"), open(stays, "peer", probe, `"term"`)}
	c.nodes[leader].CheckPeerTLS()
	if answer, err := dropped[0].ask(vote(member)); !strings.Contains(answer, "Granted") {
		t.Errorf("settings that are as they were ended a connection: %q %v", answer, err)
	}
	trusted.Store(stays.pool)
	for _, n := range c.nodes {
		n.CheckPeerTLS()
	}
	for _, talk := range dropped {
		talk.ends(t)
	}
	if answer, err := kept[0].ask(vote(member)); !strings.Contains(answer, "Granted") {
		t.Errorf("raft: the connection of a CA that stays is not answered any more: %q %v", answer, err)
	}
	if answer, err := kept[1].ask(probe); !strings.Contains(answer, `"term"`) {
		t.Errorf("questions: the connection of a CA that stays is not answered any more: %q %v", answer, err)
	}
	if c.propose(reserve("q", 1)).GetGranted() == nil {
		t.Error("not granted")
	}
}

// ends waits until the connection ends.
func (s *talk) ends(t *testing.T) {
	t.Helper()
	_ = s.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := s.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection stays open: %v", err)
	}
}
