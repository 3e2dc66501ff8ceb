package raftnode

import "testing"

// TestAnswerPeer_KeyIsForMembers: whoever has a node's key can charge calls to any address, so strangers do not get it.
func TestAnswerPeer_KeyIsForMembers(t *testing.T) {
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress, conf.LogStore = "n0", t.TempDir(), "127.0.0.1:0", UnderTest
	conf.Peers = []Peer{{ID: "n0", RaftAddress: "127.0.0.1:1"}, {ID: "n1", RaftAddress: "127.0.0.1:2"}}
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close(t.Context()) }()
	if reply := n.answerPeer("n1", peerRequest{Kind: "key"}); len(reply.Key) == 0 {
		t.Error("a member did not get the key")
	}
	for _, stranger := range []string{"", "n9"} {
		if reply := n.answerPeer(stranger, peerRequest{Kind: "key", Node: "n1"}); len(reply.Key) != 0 {
			t.Errorf("%q got the key", stranger)
		}
	}
}
