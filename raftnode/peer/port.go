package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Protocols of the port. The first line of a connection names the protocol and the caller.
const (
	ProtocolRaft = "raft"
	// ProtocolPeer is the protocol of questions (Port.Ask).
	ProtocolPeer = "peer"
)

const (
	// Magic names the version of the protocol between peers; prefaceFamily is the prefix of all versions.
	Magic         = prefaceFamily + "2"
	prefaceFamily = "quotad-peer/"

	// Timeout bounds a question, including the dial.
	Timeout = 2 * time.Second

	prefaceTimeout = 3 * time.Second // bounds an anonymous caller's handshake and first line
	maxPreface     = 1024
	maxMessage     = 64 << 10
)

// Preface is the first line of a connection, as JSON.
type Preface struct {
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

// Local is the port's view of its own node. The functions may be called concurrently.
type Local struct {
	// Greet returns the preface with which the node begins a connection for a protocol.
	Greet func(protocol string) Preface
	// Admit returns nil for a caller that may connect, or the reason for refusal: ErrNotAdmitted if that may change without an operator.
	Admit func(Preface) error
	// Knows tells whether the node knows another node as a member.
	Knows func(node string) bool
	// Identifies checks that a connection's certificate belongs to a node.
	Identifies func(conn *tls.Conn, node string) error
	// NodeAt returns the node at an address, "" if none is known.
	NodeAt func(address string) string
	// Answer answers a caller's question.
	Answer func(caller string, request Request) Reply
	// Met records the build of a peer that answered. It returns an error if that build cannot be in one cluster with the node's.
	Met func(node string, build Build) error
}

// ErrNotAdmitted says that a node has an empty disk and does not know yet whether it may vote.
var ErrNotAdmitted = errors.New("this node's disk is empty and must not vote yet")

// Network is how a node listens for its peers and dials them.
type Network interface {
	// Listen listens on an address, host:port.
	Listen(address string) (net.Listener, error)
	// Dial connects to an address within a timeout.
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// Config configures a Port.
type Config struct {
	Network Network
	// Address is where to listen, host:port.
	Address string
	// TLS returns the present settings for both directions; nil: connections are not encrypted.
	TLS    func() *tls.Config
	Logger hclog.Logger
	// MaxEntry bounds an entry of the log, in bytes.
	MaxEntry int
	Local    Local
}

// Port listens for peers, dispatches connections by protocol, and limits anonymous callers. It is raft's StreamLayer.
type Port struct {
	config   Config
	listener net.Listener

	raftConns chan net.Conn
	slots     *connSlots
	links     *links
	closed    chan struct{}
	closeOnce sync.Once
	wg        sync.WaitGroup

	mu   sync.Mutex
	idle map[string][]*askConn
}

// Listen opens the port. It can dial peers at once, but accepts none before Start. Errors are those of Network.Listen.
func Listen(config Config) (*Port, error) {
	listener, err := config.Network.Listen(config.Address)
	if err != nil {
		return nil, err
	}
	p := newPort(config)
	p.listener = listener
	return p, nil
}

func newPort(config Config) *Port {
	return &Port{
		config: config, raftConns: make(chan net.Conn), closed: make(chan struct{}), slots: newSlots(), links: newLinks(),
		idle: map[string][]*askConn{},
	}
}

// Start begins to accept connections.
func (p *Port) Start() {
	p.wg.Go(func() {
		for {
			conn, err := p.listener.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				p.config.Logger.Warn("could not accept a peer's connection", "error", err)
				select {
				case <-p.closed:
					return
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
			if !p.links.enter(conn) {
				_ = conn.Close()
				return
			}
			in := p.slots.enter(conn)
			p.wg.Go(func() { p.handle(in) })
		}
	})
}

// handle reads a preface and passes the connection to its protocol.
func (p *Port) handle(in *incoming) {
	raw := in.conn
	release := func() {
		p.slots.leave(in)
		p.links.leave(raw)
		_ = raw.Close()
	}
	conn := raw
	known := link{raw: raw, in: true, since: time.Now()}
	_ = conn.SetDeadline(time.Now().Add(prefaceTimeout))
	if p.config.TLS != nil {
		secured := tls.Server(raw, p.config.TLS())
		if err := secured.HandshakeContext(context.Background()); err != nil { // raw has a deadline
			p.handshakeFailed(in, err)
			release()
			return
		}
		conn, known.secured = secured, secured
	}
	reader := bufio.NewReaderSize(conn, 4096)
	var hello Preface
	if err := readLine(reader, maxPreface, &hello); err != nil || !strings.HasPrefix(hello.Magic, prefaceFamily) {
		release()
		return
	}
	known.protocol, known.node = hello.Protocol, hello.Node
	// The link is identified before it is checked, so that no change of settings in between is missed.
	if err := p.trusted(p.links.identify(known)); err != nil {
		p.refuse(conn, reader, hello, err)
		release()
		return
	}
	if hello.Protocol != ProtocolRaft && hello.Protocol != ProtocolPeer {
		release()
		return
	}
	// A guest takes a slot first: Admit may have to ask other members about it. A member's slots are for admitted callers only: a node of
	// another cluster can have the same name.
	member := p.config.Local.Knows(hello.Node)
	if !member {
		p.slots.admit(in, hello.Protocol, hello.Node, false)
	}
	if err := p.config.Local.Admit(hello); err != nil {
		p.refuse(conn, reader, hello, err)
		release()
		return
	}
	if member {
		p.slots.admit(in, hello.Protocol, hello.Node, true)
	}
	_ = conn.SetDeadline(time.Time{})
	if hello.Protocol == ProtocolRaft {
		framed := &incomingRaft{Conn: newFramedConn(conn, reader, false, p.config.MaxEntry), onClose: release}
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

// handshakeFailed logs why a handshake failed, and gives the caller time to read the alert. With TLS 1.3 the caller starts to write before
// it learns of the failure. Closing a connection with unread bytes resets it, and the alert is lost.
func (p *Port) handshakeFailed(in *incoming, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, new(*os.SyscallError)) {
		p.config.Logger.Debug("a peer closed the connection during the TLS handshake", "from", in.host, "reason", err)
		return
	}
	p.config.Logger.Warn("TLS handshake with a peer failed", "from", in.host, "reason", err)
	if half, ok := in.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, in.conn, maxMessage) // the connection has a deadline
	}
}

// refuse logs why a caller is refused. If the caller asks a question, refuse also answers with the reason.
func (p *Port) refuse(conn net.Conn, reader *bufio.Reader, hello Preface, err error) {
	log := p.config.Logger.Warn
	if errors.Is(err, ErrNotAdmitted) {
		log = p.config.Logger.Debug // the caller retries again and again meanwhile
	}
	log("rejected a peer", "node", hello.Node, "address", conn.RemoteAddr(), "reason", err)
	if hello.Protocol == ProtocolPeer && readLine(reader, maxMessage, new(Request)) == nil {
		_ = writeLine(conn, Reply{Refused: err.Error()}) // the caller may show the reason to an operator
	}
}

// incomingRaft is an accepted connection for raft.
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
			return fmt.Errorf("the message has more than %d bytes", most)
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
func (p *Port) dial(node, address, protocol string, timeout time.Duration) (*outgoing, error) {
	deadline := time.Now().Add(timeout)
	raw, err := p.config.Network.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	out := &outgoing{Conn: raw, raw: raw, port: p}
	if !p.links.enter(raw) {
		return nil, errors.Join(net.ErrClosed, raw.Close())
	}
	if err := p.introduce(out, node, address, protocol, deadline); err != nil {
		p.links.leave(raw)
		return nil, errors.Join(err, raw.Close())
	}
	return out, nil
}

// introduce does the TLS handshake, checks that the remote node is the expected one, and sends this node's preface.
func (p *Port) introduce(out *outgoing, node, address, protocol string, deadline time.Time) error {
	known := link{raw: out.raw, protocol: protocol, node: node, since: time.Now()}
	_ = out.raw.SetDeadline(deadline)
	if p.config.TLS != nil {
		host, _, _ := net.SplitHostPort(address)
		conf := p.config.TLS().Clone()
		if conf.ServerName == "" {
			conf.ServerName = host
		}
		known.secured = tls.Client(out.raw, conf)
		if err := known.secured.HandshakeContext(context.Background()); err != nil { // out.raw has a deadline
			return err
		}
		out.Conn = known.secured
	}
	if err := p.trusted(p.links.identify(known)); err != nil {
		p.config.Logger.Warn("another node answers at the address of a node", "node", node, "address", address, "reason", err)
		return err
	}
	if err := writeLine(out, p.config.Local.Greet(protocol)); err != nil {
		return err
	}
	_ = out.SetDeadline(time.Time{})
	return nil
}

// errNobodyThere says that no known member listens at an address.
var errNobodyThere = errors.New("no known member has this address")

// Dial implements raft.StreamLayer.
func (p *Port) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	node := ""
	if p.config.TLS != nil {
		if node = p.config.Local.NodeAt(string(address)); node == "" {
			return nil, errNobodyThere // without a node id the certificate cannot be checked, as while raft starts
		}
	}
	conn, err := p.dial(node, string(address), ProtocolRaft, timeout)
	if err != nil {
		return nil, err
	}
	return newFramedConn(conn, conn, true, p.config.MaxEntry), nil
}

// outgoing is a connection to a peer. It is registered in the port's links, so that Port.Close ends it: raft's heartbeats run on their own,
// and a stopped leader that still sent them would keep its followers from electing another.
type outgoing struct {
	net.Conn
	raw  net.Conn
	port *Port
}

// Close implements net.Conn.
func (o *outgoing) Close() error {
	o.port.links.leave(o.raw)
	return o.Conn.Close()
}

// Accept implements net.Listener for raft.
func (p *Port) Accept() (net.Conn, error) {
	select {
	case conn := <-p.raftConns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Closed returns a channel that is closed when the port closes.
func (p *Port) Closed() <-chan struct{} { return p.closed }

// Wait returns when the handlers of all accepted connections have ended. The port must be closed.
func (p *Port) Wait() { p.wg.Wait() }

// Addr implements net.Listener.
func (p *Port) Addr() net.Addr { return p.listener.Addr() }

// Close implements net.Listener: it closes the port and all its connections.
func (p *Port) Close() error {
	p.closeOnce.Do(func() {
		close(p.closed)
		_ = p.listener.Close()
		p.links.end() // idle ones too
		p.mu.Lock()
		p.idle = map[string][]*askConn{}
		p.mu.Unlock()
	})
	return nil
}
