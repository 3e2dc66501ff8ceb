package raftnode

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// The port for peers carries two protocols; the first line of a connection says which, and who is calling.
const (
	protocolRaft = "raft"
	protocolPeer = "peer"

	// prefaceMagic names the protocol between peers, prefaceFamily all versions of it.
	prefaceFamily  = "quotad-peer/"
	prefaceMagic   = prefaceFamily + "2"
	prefaceTimeout = 3 * time.Second // of a stranger, its handshake included
	maxPreface     = 1024
	maxPeerMessage = 64 << 10
	peerTimeout    = 2 * time.Second
	userTimeout    = 5 * time.Second
)

// preface is the first line of a connection, as JSON.
type preface struct {
	Magic    string `json:"magic"`
	Protocol string `json:"protocol"`
	Node     string `json:"node"`
	// Cluster is the caller's cluster id; empty before it knows one.
	Cluster string `json:"cluster"`
	// List is the hash of the caller's static list; empty if it has none.
	List string `json:"list"`
	// Address is where the caller listens for peers.
	Address string `json:"address,omitempty"`
	Build
}

// tcp is the network of a real node. It speaks from the address that it listens on, so that a firewall, or whoever
// watches the links, can tell nodes apart.
type tcp struct{ from net.IP }

func newTCP(listen string) tcp {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return tcp{}
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.IsUnspecified() {
		return tcp{}
	}
	return tcp{ip}
}

// Listen implements Network.
func (tcp) Listen(address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	return timedListener{listener}, nil
}

// Dial implements Network.
func (t tcp) Dial(address string, timeout time.Duration) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Second}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	// A name may stand for an address of the other family, which this one cannot be spoken to from.
	if to := net.ParseIP(host); to != nil && t.from != nil && (to.To4() != nil) == (t.from.To4() != nil) {
		dialer.LocalAddr = &net.TCPAddr{IP: t.from}
	}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	setUserTimeout(conn)
	return conn, nil
}

// timedListener bounds how long its connections live when nothing comes back.
type timedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l timedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	setUserTimeout(conn)
	return conn, nil
}

// peerPort listens for peers, tells the protocols apart, and keeps strangers out.
type peerPort struct {
	network  Network
	listener net.Listener
	tls      func() *tls.Config
	logger   hclog.Logger
	// greet returns what this node says of itself; admit says why a caller is not let in; member tells whether this node knows a
	// node as a member.
	greet  func(protocol string) preface
	admit  func(preface) error
	member func(id string) bool
	// identifies checks that a certificate is a node's; nodeAt returns the node at an address.
	identifies func(conn *tls.Conn, node string) error
	nodeAt     func(address string) string
	serve      func(caller string, request peerRequest) peerReply
	// recordBuild records a peer's build and says why that cannot be a member of one cluster with this node.
	met func(node string, build Build) error

	// maxEntry bounds an entry of the log, in bytes.
	maxEntry int

	raftConns chan net.Conn
	slots     *connSlots
	closed    chan struct{}
	closeOnce sync.Once
	wg        sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	idle  map[string][]*peerConn
}

func listenPeers(network Network, address string, conf func() *tls.Config, logger hclog.Logger, maxEntry int) (*peerPort, error) {
	listener, err := network.Listen(address)
	if err != nil {
		return nil, err
	}
	return &peerPort{
		network: network, listener: listener, tls: conf, logger: logger, raftConns: make(chan net.Conn), closed: make(chan struct{}),
		slots: newSlots(), maxEntry: maxEntry, conns: map[net.Conn]bool{}, idle: map[string][]*peerConn{},
	}, nil
}

// start begins to accept. The functions of this node must be set.
func (p *peerPort) start() {
	p.wg.Go(func() {
		for {
			conn, err := p.listener.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				p.logger.Warn("a peer's connection could not be accepted", "error", err)
				select {
				case <-p.closed:
					return
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
			if !p.track(conn) {
				_ = conn.Close()
				return
			}
			in := p.slots.enter(conn)
			p.wg.Go(func() { p.handle(in) })
		}
	})
}

func (p *peerPort) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		return false
	default:
	}
	p.conns[conn] = true
	return true
}

func (p *peerPort) forget(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// handle reads a preface and hands the connection to its protocol.
func (p *peerPort) handle(in *incoming) {
	raw := in.conn
	release := func() {
		p.slots.leave(in)
		p.forget(raw)
		_ = raw.Close()
	}
	conn := raw
	_ = conn.SetDeadline(time.Now().Add(prefaceTimeout))
	if p.tls != nil {
		secured := tls.Server(raw, p.tls())
		if err := secured.HandshakeContext(context.Background()); err != nil { // it has a deadline
			p.handshakeFailed(in, err)
			release()
			return
		}
		conn = secured
	}
	reader := bufio.NewReaderSize(conn, 4096)
	var hello preface
	if err := readLine(reader, maxPreface, &hello); err != nil || !strings.HasPrefix(hello.Magic, prefaceFamily) {
		release()
		return
	}
	if secured, ok := conn.(*tls.Conn); ok {
		if err := p.identifies(secured, hello.Node); err != nil {
			p.refuse(conn, reader, hello, err)
			release()
			return
		}
	}
	if hello.Protocol != protocolRaft && hello.Protocol != protocolPeer {
		release()
		return
	}
	p.slots.admit(in, hello.Protocol, hello.Node, p.member(hello.Node))
	if err := p.admit(hello); err != nil {
		p.refuse(conn, reader, hello, err)
		release()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if hello.Protocol == protocolRaft {
		framed := &incomingRaft{Conn: newFramedConn(conn, reader, false, p.maxEntry), onClose: release}
		select {
		case p.raftConns <- framed:
		case <-p.closed:
			release()
		}
		return
	}
	defer release()
	p.servePeer(conn, reader, hello.Node)
}

// handshakeFailed logs why a handshake failed, and gives the caller time to read the same: with TLS 1.3 it begins to write before it
// knows, and a connection that is closed over bytes nobody read is reset, the alert with it.
func (p *peerPort) handshakeFailed(in *incoming, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, new(*os.SyscallError)) {
		p.logger.Debug("a peer went away in its TLS handshake", "from", in.host, "reason", err)
		return
	}
	p.logger.Warn("a peer's TLS handshake failed", "from", in.host, "reason", err)
	if half, ok := in.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, in.conn, maxPeerMessage) // it has a deadline
	}
}

// refuse logs why a caller is not let in and, where it asks a question, tells it.
func (p *peerPort) refuse(conn net.Conn, reader *bufio.Reader, hello preface, err error) {
	log := p.logger.Warn
	if errors.Is(err, errNotAdmitted) {
		log = p.logger.Debug // the caller asks again and again meanwhile
	}
	log("a peer was not let in", "node", hello.Node, "address", conn.RemoteAddr(), "reason", err)
	if hello.Protocol == protocolPeer && readLine(reader, maxPeerMessage, new(peerRequest)) == nil {
		_ = writeLine(conn, peerReply{Refused: err.Error()}) // who asks may tell an operator
	}
}

// incomingRaft is a connection on which a peer speaks raft.
type incomingRaft struct {
	net.Conn
	once    sync.Once
	onClose func()
}

// Close implements net.Conn.
func (c *incomingRaft) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.onClose)
	return err
}

func readLine(r *bufio.Reader, most int, into any) error {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > most:
			return fmt.Errorf("a message of more than %d bytes", most)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return err
		}
		return json.Unmarshal(line, into)
	}
}

func writeLine(w io.Writer, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// dial opens a connection to a node for a protocol.
func (p *peerPort) dial(node, address, protocol string, timeout time.Duration) (net.Conn, error) {
	deadline := time.Now().Add(timeout)
	raw, err := p.network.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	conn := raw
	if p.tls != nil {
		host, _, _ := net.SplitHostPort(address)
		conf := p.tls().Clone()
		if conf.ServerName == "" {
			conf.ServerName = host
		}
		secured := tls.Client(raw, conf)
		_ = secured.SetDeadline(deadline)
		if err := secured.HandshakeContext(context.Background()); err != nil { // it has a deadline
			return nil, errors.Join(err, raw.Close())
		}
		if err := p.identifies(secured, node); err != nil {
			p.logger.Warn("under a node's address answers another one", "node", node, "address", address, "reason", err)
			return nil, errors.Join(err, raw.Close())
		}
		conn = secured
	}
	_ = conn.SetDeadline(deadline)
	if err := writeLine(conn, p.greet(protocol)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, nil
}

// errNobodyThere says that no member is known to listen at an address.
var errNobodyThere = errors.New("no member is known to listen there")

// Dial implements raft.StreamLayer.
func (p *peerPort) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	node := ""
	if p.tls != nil {
		if node = p.nodeAt(string(address)); node == "" {
			return nil, errNobodyThere // whose certificate it must be is not known, as while raft starts
		}
	}
	conn, err := p.dial(node, string(address), protocolRaft, timeout)
	if err != nil {
		return nil, err
	}
	out := &outgoing{Conn: newFramedConn(conn, conn, true, p.maxEntry), raw: conn, port: p}
	if secured, ok := conn.(*tls.Conn); ok {
		out.raw = secured.NetConn() // its end does not wait until the peer has been told
	}
	if !p.track(out.raw) {
		_ = out.raw.Close()
		return nil, net.ErrClosed
	}
	return out, nil
}

// outgoing is a connection of raft to a peer. The port's end ends it: raft's heartbeats go on by themselves, so a leader
// that gave itself up would keep its followers waiting.
type outgoing struct {
	net.Conn
	raw  net.Conn
	port *peerPort
}

// Close implements net.Conn.
func (o *outgoing) Close() error {
	o.port.forget(o.raw)
	return o.Conn.Close()
}

// Accept implements net.Listener for raft.
func (p *peerPort) Accept() (net.Conn, error) {
	select {
	case conn := <-p.raftConns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (p *peerPort) Addr() net.Addr { return p.listener.Addr() }

// Close implements net.Listener: it ends the port and all its connections.
func (p *peerPort) Close() error {
	p.closeOnce.Do(func() {
		close(p.closed)
		_ = p.listener.Close()
		p.mu.Lock()
		open := slices.Collect(maps.Keys(p.conns))
		for _, idle := range p.idle {
			for _, c := range idle {
				open = append(open, c.conn)
			}
		}
		p.idle = map[string][]*peerConn{}
		p.mu.Unlock()
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	return nil
}

// peerRequest is a question of one node to another.
type peerRequest struct {
	// Kind is probe, hello or key.
	Kind string `json:"kind"`
	// Nonce is the caller's formation nonce, for hello.
	Nonce string `json:"nonce,omitempty"`
	// Node is the caller's id, for hello.
	Node string `json:"node,omitempty"`
	// Newcomer, for hello, asks a leader to make sure what the caller is: its disk is empty.
	Newcomer bool `json:"newcomer,omitempty"`
}

// peerReply is the answer.
type peerReply struct {
	Node string `json:"node"`
	// Term is raft's, read after the request arrived; Wall is the wall clock then.
	Term uint64 `json:"term"`
	Wall int64  `json:"wall"`
	// Last is the last index in the node's log.
	Last uint64 `json:"last"`
	// Room: the node's disk has room for grants.
	Room bool `json:"room,omitempty"`
	// Empty: the node has no state. Cluster is its cluster's id.
	Empty   bool   `json:"empty"`
	Cluster string `json:"cluster"`
	List    string `json:"list"`
	Nonce   string `json:"nonce"`
	// Configuration is the index of the newest committed configuration that the node knows. Member: the caller is in it, or in one
	// that is not committed yet.
	Configuration uint64 `json:"configuration"`
	Member        bool   `json:"member"`
	// Voter: the caller votes in the node's newest configuration, committed or not. Learner is the index of the committed one where
	// the node certainly leads and the caller is a learner in it.
	Voter   bool   `json:"voter,omitempty"`
	Learner uint64 `json:"learner,omitempty"`
	// FormedWith are the nonces with which this node formed the cluster, where the caller's is among them.
	FormedWith []string `json:"formedWith,omitempty"`
	// Key is the node's key for calls that it forwards (voucher), for key.
	Key []byte `json:"key,omitempty"`
	// Refused says why the question is not answered; then nothing else is set.
	Refused string `json:"refused,omitempty"`
	Build
}

// refusedError says that a node answers, but not this one's questions.
type refusedError struct{ reason string }

// Error implements error.
func (e *refusedError) Error() string { return e.reason }

// servePeer answers questions until the caller hangs up.
func (p *peerPort) servePeer(conn net.Conn, reader *bufio.Reader, caller string) {
	for {
		var request peerRequest
		if readLine(reader, maxPeerMessage, &request) != nil {
			return
		}
		_ = conn.SetWriteDeadline(time.Now().Add(peerTimeout))
		if writeLine(conn, p.serve(caller, request)) != nil {
			return
		}
	}
}

// peerConn is a connection for questions.
type peerConn struct {
	conn   net.Conn
	reader *bufio.Reader
}

// ask asks a peer, within peerTimeout in all. A connection that was idle may be dead; then the others are taken to be as well, and one new
// one is tried.
func (p *peerPort) ask(ctx context.Context, node, address string, request peerRequest) (peerReply, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	key := node + "@" + address // a connection was made to this node
	if c := p.takeIdle(key); c != nil {
		reply, err := p.askOn(ctx, key, c, request)
		if err == nil || errors.As(err, new(*refusedError)) {
			return reply, err
		}
		p.closeIdle(key)
	}
	deadline, _ := ctx.Deadline()
	timeout := time.Until(deadline)
	if timeout <= 0 {
		return peerReply{}, context.DeadlineExceeded
	}
	conn, err := p.dial(node, address, protocolPeer, timeout)
	if err != nil {
		return peerReply{}, err
	}
	return p.askOn(ctx, key, &peerConn{conn: conn, reader: bufio.NewReader(conn)}, request)
}

func (p *peerPort) askOn(ctx context.Context, key string, c *peerConn, request peerRequest) (peerReply, error) {
	deadline, _ := ctx.Deadline()
	_ = c.conn.SetDeadline(deadline)
	var reply peerReply
	err := writeLine(c.conn, request)
	if err == nil {
		err = readLine(c.reader, maxPeerMessage, &reply)
	}
	if err != nil {
		_ = c.conn.Close()
		return peerReply{}, err
	}
	if reply.Refused != "" {
		_ = c.conn.Close()
		return peerReply{}, &refusedError{reply.Refused}
	}
	if err := p.met(reply.Node, reply.Build); err != nil {
		_ = c.conn.Close()
		return peerReply{}, &refusedError{err.Error()}
	}
	p.putIdle(key, c)
	return reply, nil
}

func (p *peerPort) takeIdle(address string) *peerConn {
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
func (p *peerPort) closeIdle(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle[address] {
		_ = c.conn.Close()
	}
	delete(p.idle, address)
}

func (p *peerPort) putIdle(address string, c *peerConn) {
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
