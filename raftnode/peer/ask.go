package peer

import (
	"bufio"
	"context"
	"errors"
	"net"
	"time"
)

// Request is a question of one node to another.
type Request struct {
	// Kind is probe, hello or key.
	Kind string `json:"kind"`
	// Nonce is the caller's formation nonce, for hello.
	Nonce string `json:"nonce,omitempty"`
	// Node is the caller's id, for hello.
	Node string `json:"node,omitempty"`
	// Newcomer, for hello, says that the caller's disk is empty: the leader must make sure that the caller is a member.
	Newcomer bool `json:"newcomer,omitempty"`
}

// Reply is the answer.
type Reply struct {
	Node string `json:"node"`
	// Term is raft's term, read after the request arrived. Wall is the wall clock at that moment.
	Term uint64 `json:"term"`
	Wall int64  `json:"wall"`
	// Last is the last index in the node's log.
	Last uint64 `json:"last"`
	// Room: the node's disk has free space for grants.
	Room bool `json:"room,omitempty"`
	// Empty: the node has no state. Cluster is its cluster's id.
	Empty   bool   `json:"empty"`
	Cluster string `json:"cluster"`
	List    string `json:"list"`
	Nonce   string `json:"nonce"`
	// Configuration is the index of the newest committed configuration that the node knows. Member: the caller is in that configuration or in
	// an uncommitted one.
	Configuration uint64 `json:"configuration"`
	Member        bool   `json:"member"`
	// Voter: the caller votes in the node's newest configuration, committed or not. Learner is the index of the committed configuration in
	// which the caller is a learner, if the node is certainly the leader; otherwise 0.
	Voter   bool   `json:"voter,omitempty"`
	Learner uint64 `json:"learner,omitempty"`
	// FormedWith are the nonces with which this node formed the cluster. It is set only if the caller's nonce is among them.
	FormedWith []string `json:"formedWith,omitempty"`
	// Key, for key, is the node's key for the calls that it forwards (attester).
	Key []byte `json:"key,omitempty"`
	// API is the node's API address, from its own settings.
	API string `json:"api,omitempty"`
	// Refused says why the node does not answer the question. No other field is set then.
	Refused string `json:"refused,omitempty"`
	Build
}

// RefusedError says that a node is reachable but refuses this node's questions.
type RefusedError struct{ reason string }

// Error implements error.
func (e *RefusedError) Error() string { return e.reason }

// servePeer answers questions until the caller hangs up.
func (p *Port) servePeer(conn net.Conn, reader *bufio.Reader, caller string) {
	for {
		var request Request
		if readLine(reader, maxMessage, &request) != nil {
			return
		}
		_ = conn.SetWriteDeadline(time.Now().Add(Timeout))
		if writeLine(conn, p.config.Local.Answer(caller, request)) != nil {
			return
		}
	}
}

// askConn is a connection for questions.
type askConn struct {
	conn   net.Conn
	reader *bufio.Reader
}

// Ask asks a peer, within Timeout including the dial. If an idle connection turns out to be dead, Ask closes the other idle ones to that
// peer and tries one new connection.
func (p *Port) Ask(ctx context.Context, node, address string, request Request) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	key := node + "@" + address // the node that the connection was made to is part of the key
	if c := p.takeIdle(key); c != nil {
		reply, err := p.askOn(ctx, key, c, request)
		if err == nil || errors.As(err, new(*RefusedError)) {
			return reply, err
		}
		p.closeIdle(key)
	}
	deadline, _ := ctx.Deadline()
	timeout := time.Until(deadline)
	if timeout <= 0 {
		return Reply{}, context.DeadlineExceeded
	}
	conn, err := p.dial(node, address, ProtocolPeer, timeout)
	if err != nil {
		return Reply{}, err
	}
	return p.askOn(ctx, key, &askConn{conn: conn, reader: bufio.NewReader(conn)}, request)
}

func (p *Port) askOn(ctx context.Context, key string, c *askConn, request Request) (Reply, error) {
	deadline, _ := ctx.Deadline()
	_ = c.conn.SetDeadline(deadline)
	var reply Reply
	err := writeLine(c.conn, request)
	if err == nil {
		err = readLine(c.reader, maxMessage, &reply)
	}
	if err != nil {
		_ = c.conn.Close()
		return Reply{}, err
	}
	if reply.Refused != "" {
		_ = c.conn.Close()
		return Reply{}, &RefusedError{reply.Refused}
	}
	if err := p.config.Local.Met(reply.Node, reply.Build); err != nil {
		_ = c.conn.Close()
		return Reply{}, &RefusedError{err.Error()}
	}
	p.putIdle(key, c)
	return reply, nil
}

func (p *Port) takeIdle(address string) *askConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle[address]
	if len(idle) == 0 {
		return nil
	}
	c := idle[len(idle)-1]
	p.idle[address] = idle[:len(idle)-1]
	return c
}

// closeIdle ends the idle connections to a peer.
func (p *Port) closeIdle(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle[address] {
		_ = c.conn.Close()
	}
	delete(p.idle, address)
}

func (p *Port) putIdle(address string, c *askConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		_ = c.conn.Close()
		return
	default:
	}
	if len(p.idle[address]) >= 4 {
		_ = c.conn.Close()
		return
	}
	p.idle[address] = append(p.idle[address], c)
}
