package raftnode

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/raftnode/peer"
)

const (
	// keyRetry is the shortest interval between questions to a member for its key: an anonymous caller that names the member cannot cause
	// more.
	keyRetry = time.Second
	// keyTimeout bounds a question for a key.
	keyTimeout = 500 * time.Millisecond
)

// attester makes and checks proofs of members' statements about calls that they forward. Each node has a random key for its lifetime.
// Members learn it from each other over the peer port, which gives it to members only.
type attester struct {
	own []byte

	mu      sync.Mutex
	members map[string]*memberKey
}

// memberKey has a member's key, as far as known.
type memberKey struct {
	// asking is held while the member is asked; asked is when it was last asked.
	asking sync.Mutex
	asked  time.Time
	// waiting is the budget of calls that wait for the answer, by source address.
	waiting *budget.Budget

	mu  sync.Mutex
	key []byte
}

func newAttester() *attester {
	own := make([]byte, sha256.Size)
	_, _ = rand.Read(own)
	return &attester{own: own, members: map[string]*memberKey{}}
}

// proofOf returns a statement's proof under a key.
func proofOf(key []byte, statement string) string {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(statement))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Attest returns a proof, for the other members, of this node's statement about a call that it forwards.
func (n *Node) Attest(statement string) string { return proofOf(n.attester.own, statement) }

// AttestedBy tells whether a member of the cluster made a statement. If the member's key is unknown, or changed by a restart, it asks the
// member. from is the address of the call: calls of one address cannot take the room in which those of others wait for the answer.
func (n *Node) AttestedBy(ctx context.Context, from, id, statement, proof string) bool {
	if id == n.config.ID {
		return hmac.Equal([]byte(n.Attest(statement)), []byte(proof))
	}
	address, isMember := n.memberAddress(id)
	if !isMember { // it may be a former member with a known key
		n.attester.forget(id)
		return false
	}
	known := n.attester.member(id)
	if known != nil && known.proves(statement, proof) {
		return true
	}
	if known == nil {
		known = n.attester.enter(id)
	}
	return n.learnKey(ctx, known, from, id, address) && known.proves(statement, proof)
}

func (v *attester) member(id string) *memberKey {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.members[id]
}

func (v *attester) enter(id string) *memberKey {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.members[id] == nil {
		v.members[id] = newMemberKey()
	}
	return v.members[id]
}

func (v *attester) forget(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.members, id)
}

func (k *memberKey) proves(statement, proof string) bool {
	k.mu.Lock()
	key := k.key
	k.mu.Unlock()
	return key != nil && hmac.Equal([]byte(proofOf(key, statement)), []byte(proof))
}

// maxKeyWaiters bounds the calls that wait for a member's key; minKeyWaiters is the number that one address may have in any case. It is not
// known yet whether these calls come from a member.
const (
	maxKeyWaiters = 256
	minKeyWaiters = 16
)

func newMemberKey() *memberKey {
	return &memberKey{waiting: budget.New("keys", maxKeyWaiters, 0, minKeyWaiters)}
}

// learnKey asks a member for its key, unless it was asked within keyRetry. Concurrent calls share one answer. false: the key could not be
// learned.
func (n *Node) learnKey(ctx context.Context, known *memberKey, from, member string, address raft.ServerAddress) bool {
	if known.waiting.Take(from, 1, false) != nil {
		return false
	}
	defer known.waiting.Give(from, 1)
	known.asking.Lock()
	defer known.asking.Unlock()
	if !known.asked.IsZero() && time.Since(known.asked) < keyRetry {
		return true // the key may have been learned while this call waited
	}
	known.asked = time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyTimeout)
	defer cancel()
	reply, err := n.port.Ask(ctx, member, string(address), peer.Request{Kind: "key", Node: n.config.ID})
	if err != nil || len(reply.Key) == 0 {
		return false
	}
	known.mu.Lock()
	defer known.mu.Unlock()
	known.key = reply.Key
	return true
}

// memberAddress returns where a member listens for peers, by the newest configuration that this node knows.
func (n *Node) memberAddress(id string) (raft.ServerAddress, bool) {
	for _, server := range n.servers() {
		if string(server.ID) == id {
			return server.Address, true
		}
	}
	return "", false
}
