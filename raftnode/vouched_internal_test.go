package raftnode

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode/peer"
)

// TestAdmitMember_AnothersWordIsGoodForAWhile: a node that a member vouched for may have been removed since. Ten seconds later, or under
// another configuration, the members are asked again, and where none vouches for it any more, the word is forgotten.
func TestAdmitMember_AnothersWordIsGoodForAWhile(t *testing.T) {
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress, conf.LogStore = "n0", t.TempDir(), "127.0.0.1:0", UnderTest
	conf.Peers = []Peer{{ID: "n0", RaftAddress: "127.0.0.1:0"}}
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close(t.Context()) }()
	for len(n.raft.GetConfiguration().Configuration().Servers) == 0 {
		select {
		case <-t.Context().Done():
			t.Fatal("it never formed a cluster")
		case <-time.After(time.Millisecond):
		}
	}
	n.config.PeerTLS = func() *tls.Config { return nil } // members are told from others with TLS only
	const second = time.Second
	known, _ := n.configured.newest()
	for _, tc := range []struct {
		ago     time.Duration
		trusted bool
		under   uint64
	}{{0, true, known}, {9 * second, true, known}, {10 * second, false, known}, {time.Hour, false, known}, {0, false, known + 1}} {
		n.vouched.of["n5"] = vouch{at: time.Now().Add(-tc.ago), configuration: tc.under}
		if err := n.admitMember(peer.Preface{Node: "n5"}); (err == nil) != tc.trusted || err != nil && !errors.Is(err, errNoMember) {
			t.Errorf("a word of %v ago: %v", tc.ago, err)
		}
		if _, kept := n.vouched.of["n5"]; kept != tc.trusted {
			t.Errorf("a word of %v ago is kept: %v", tc.ago, kept)
		}
	}
	if err := n.admitMember(peer.Preface{Node: "n6"}); !errors.Is(err, errNoMember) {
		t.Errorf("one that nobody vouched for: %v", err)
	}
}
