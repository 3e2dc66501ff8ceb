package raftnode

import (
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode/peer"
)

// TestLearnKey_AnonymousCallersLeaveRoom: while a member is asked for its key, an anonymous caller whose calls claim to come through that
// member cannot take all the room in which calls wait for the answer. Calls that do come through it are charged to their callers.
func TestLearnKey_AnonymousCallersLeaveRoom(t *testing.T) {
	n, key := &Node{}, newMemberKey()
	const anonymous, member = "address:192.0.2.66", "address:192.0.2.1"
	key.asking.Lock() // the member is asked
	var waiting sync.WaitGroup
	var turnedAway sync.WaitGroup
	turnedAway.Add(2*maxKeyWaiters - maxKeyWaiters/2)
	for range 2 * maxKeyWaiters {
		waiting.Go(func() {
			if !n.learnKey(t.Context(), key, anonymous, "n1", "127.0.0.1:1") {
				turnedAway.Done()
			}
		})
	}
	turnedAway.Wait()
	learned := make(chan bool)
	for range minKeyWaiters {
		go func() { learned <- n.learnKey(t.Context(), key, member, "n1", "127.0.0.1:1") }()
	}
	for used, callers := key.waiting.InUse(); used < maxKeyWaiters/2+minKeyWaiters || callers != 2; used, callers = key.waiting.InUse() {
		select {
		case <-learned:
			t.Fatal("a call that came through the member did not wait")
		default:
		}
	}
	key.asked = time.Now() // it answered
	key.asking.Unlock()
	for range minKeyWaiters {
		if !<-learned {
			t.Error("a call that came through the member did not learn its key")
		}
	}
	waiting.Wait()
}

// TestAnswerPeer_KeyIsForMembers: with a node's key a caller can charge calls to any address, so anonymous callers do not get it.
func TestAnswerPeer_KeyIsForMembers(t *testing.T) {
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress, conf.LogStore = "n0", t.TempDir(), "127.0.0.1:0", UnderTest
	conf.Peers = []Peer{{ID: "n0", RaftAddress: "127.0.0.1:1"}, {ID: "n1", RaftAddress: "127.0.0.1:2"}}
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close(t.Context()) }()
	if reply := n.answerPeer("n1", peer.Request{Kind: "key"}); len(reply.Key) == 0 {
		t.Error("a member did not get the key")
	}
	for _, anonymous := range []string{"", "n9"} {
		if reply := n.answerPeer(anonymous, peer.Request{Kind: "key", Node: "n1"}); len(reply.Key) != 0 {
			t.Errorf("%q got the key", anonymous)
		}
	}
}

// TestLearnKey_AsksOnceASecond: a member that does not answer is asked once, however many calls claim to come through it, and again after
// a second.
func TestLearnKey_AsksOnceASecond(t *testing.T) {
	n, key := openOne(t), newMemberKey()
	learn := func() bool { return n.learnKey(t.Context(), key, "address:192.0.2.66", "n1", "127.0.0.1:1") }
	if learn() || key.asked.IsZero() {
		t.Fatal("nobody answers, and the question is not remembered")
	}
	key.asked = time.Now().Add(time.Hour) // the test may be slow
	if !learn() {
		t.Error("it is asked again within a second")
	}
	key.asked = time.Now().Add(-keyRetry)
	if learn() {
		t.Error("after a second it is not asked again")
	}
}
