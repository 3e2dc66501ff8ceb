package raftnode

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode/peer"
)

// TestAdmitMember_ConfirmationExpires: a node that a member confirmed may have been removed since. After ten seconds, or under
// another configuration, the members are asked again. If none confirms it any more, the cached answer changes.
func TestAdmitMember_ConfirmationExpires(t *testing.T) {
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
	n.config.PeerTLS = func() *tls.Config { return nil } // only TLS tells members from others
	const second = time.Second
	known, _ := n.configured.newest()
	for _, tc := range []struct {
		ago     time.Duration
		trusted bool
		under   uint64
	}{{0, true, known}, {9 * second, true, known}, {10 * second, false, known}, {time.Hour, false, known}, {0, false, known + 1}} {
		n.confirmations.of["n5"] = confirmation{at: time.Now().Add(-tc.ago), configuration: tc.under, member: true}
		if err := n.admitMember(peer.Preface{Node: "n5"}); (err == nil) != tc.trusted || err != nil && !errors.Is(err, errNoMember) {
			t.Errorf("a word of %v ago: %v", tc.ago, err)
		}
		if word := n.confirmations.of["n5"]; word.member != tc.trusted {
			t.Errorf("a word of %v ago is kept: %v", tc.ago, word.member)
		}
	}
	if err := n.admitMember(peer.Preface{Node: "n6"}); !errors.Is(err, errNoMember) {
		t.Errorf("one that nobody confirmed: %v", err)
	}
}

// TestConfirmations_Expire: the answer that a caller is a member holds for a while, the opposite one for a shorter time, both only under
// the configuration of that time. Otherwise each connection of a caller with a certificate would cost each member a question.
func TestConfirmations_Expire(t *testing.T) {
	const second = time.Second
	for _, tc := range []struct {
		member bool
		ago    time.Duration
		under  uint64
		good   bool
	}{
		{true, 0, 7, true},
		{true, 9 * second, 7, true},
		{true, 10 * second, 7, false},
		{true, 0, 8, false},
		{false, 0, 7, true},
		{false, 900 * time.Millisecond, 7, true},
		{false, second, 7, false},
		{false, 0, 6, false},
	} {
		v := confirmations{of: map[string]confirmation{}}
		v.keep("n5", confirmation{at: time.Now().Add(-tc.ago), configuration: 7, member: tc.member})
		if member, good := v.said("n5", tc.under); good != tc.good || member != (tc.good && tc.member) {
			t.Errorf("%+v: member %v, good %v", tc, member, good)
		}
		if _, good := v.said("n6", tc.under); good {
			t.Errorf("%+v: a word for another node is good", tc)
		}
	}
}

// TestConfirmations_AreBounded: a caller with certificates for many names cannot exhaust memory.
func TestConfirmations_AreBounded(t *testing.T) {
	v := confirmations{of: map[string]confirmation{}}
	for i := range 10 * maxConfirmations {
		v.keep(fmt.Sprint("n", i), confirmation{at: time.Now(), configuration: 1})
		if len(v.of) > maxConfirmations {
			t.Fatalf("%d words are kept", len(v.of))
		}
	}
}
