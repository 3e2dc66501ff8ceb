//go:build linux

package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// proxies are the proxies of a network.
type proxies struct {
	network *Network
	ctx     context.Context //nolint:containedctx // it is the proxies' life
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu        sync.Mutex
	links     map[Link]*link
	listeners []net.Listener
}

func newProxies(n *Network) *proxies {
	ctx, stop := context.WithCancel(context.Background())
	return &proxies{network: n, ctx: ctx, stop: stop, links: map[Link]*link{}}
}

// link is the treatment of the bytes of one direction.
type link struct {
	mu     sync.Mutex
	mean   time.Duration
	jitter time.Duration
	// pass is closed while bytes pass; a stall replaces it by an open channel.
	pass chan struct{}
	open bool
	// reset is the number of bytes after which the next stream is reset; 0: never.
	reset int64
	hits  Hits
}

func (p *proxies) link(l Link) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links[l] == nil {
		made := &link{pass: make(chan struct{}), open: true}
		close(made.pass)
		p.links[l] = made
	}
	return p.links[l]
}

func (l *link) delay(mean, jitter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mean, l.jitter = mean, jitter
}

func (l *link) resetAfter(bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset = bytes
}

// hold stalls the bytes of a link, or lets them pass again.
func (l *link) hold(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if on == !l.open {
		return
	}
	l.open = !on
	if on {
		l.pass = make(chan struct{})
	} else {
		close(l.pass)
	}
}

func (p *proxies) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.delay(0, 0)
		l.resetAfter(0)
		l.hold(false)
	}
}

func (p *proxies) hits() map[Link]Hits {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[Link]Hits{}
	for name, l := range p.links {
		l.mu.Lock()
		all[name] = l.hits
		l.mu.Unlock()
	}
	return all
}

// connect puts proxies on the links between a new host and the others.
func (p *proxies) connect(h *Host, others map[string]*Host) error {
	if p.network.kind == Loopback {
		return p.serveAll(h, h, h.ip)
	}
	var err error
	for _, other := range others {
		err = errors.Join(err, p.serveAll(h, other, "127.0.0.1"), p.serveAll(other, h, "127.0.0.1"))
	}
	return err
}

// serveAll accepts connections on a host, at an address, to the ports that another host serves.
func (p *proxies) serveAll(on, to *Host, ip string) error {
	for _, port := range to.serves {
		address := net.JoinHostPort(ip, "0")
		if p.network.kind == Loopback {
			address = net.JoinHostPort(ip, fmt.Sprint(port))
		}
		if err := p.serve(on, to, port, address); err != nil {
			return err
		}
	}
	return nil
}

// serve accepts connections on a host to a port of another.
func (p *proxies) serve(on, to *Host, port int, address string) error {
	listener, err := p.network.fabric.listen(on, address)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.listeners = append(p.listeners, listener)
	p.mu.Unlock()
	if err := p.network.fabric.route(on, to, port, listener.Addr()); err != nil {
		return err
	}
	target := net.JoinHostPort(to.listenIP, fmt.Sprint(port))
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			p.wg.Go(func() { p.carry(conn, p.sender(on, conn), to, target) })
		}
	})
	return nil
}

// sender is the host that opened a connection.
func (p *proxies) sender(on *Host, conn net.Conn) *Host {
	if p.network.kind == Namespaces {
		return on
	}
	remote, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	for _, h := range p.network.hosts {
		if h.listenIP == remote {
			return h
		}
	}
	return &Host{network: p.network, name: "elsewhere", listenIP: remote}
}

// carry carries a connection between two hosts until either side ends it.
func (p *proxies) carry(near net.Conn, from, to *Host, target string) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer func() { _ = near.Close() }()
	forth, back := p.link(Link{from.name, to.name}), p.link(Link{to.name, from.name})
	if !forth.await(ctx) { // a connection is not made while its first packet would not pass
		return
	}
	dial, done := context.WithTimeout(ctx, 5*time.Second)
	far, err := p.network.fabric.dial(dial, from, "tcp4", target, true)
	done()
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
	var wg sync.WaitGroup
	wg.Go(func() { defer cancel(); forth.pump(ctx, near, far) })
	wg.Go(func() { defer cancel(); back.pump(ctx, far, near) })
	wg.Wait()
}

// await waits until bytes pass.
func (l *link) await(ctx context.Context) bool {
	l.mu.Lock()
	pass := l.pass
	if !l.open {
		l.hits.Dropped++
	}
	l.mu.Unlock()
	select {
	case <-pass:
		return true
	case <-ctx.Done():
		return false
	}
}

// piece is some bytes and their delivery time.
type piece struct {
	data []byte
	due  time.Time
}

// pump carries bytes in one direction, in order.
func (l *link) pump(ctx context.Context, from io.Reader, to net.Conn) {
	queue := make(chan piece, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.deliver(ctx, queue, to)
	}()
	defer func() { <-done }()
	defer close(queue)
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			select {
			case queue <- piece{buffer[:n], l.due()}:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// due is the delivery time of bytes that arrive now.
func (l *link) due() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mean == 0 {
		return time.Time{}
	}
	l.hits.Delayed++
	wait := l.mean
	if l.jitter > 0 {
		wait += time.Duration(rand.Int64N(2*int64(l.jitter))) - l.jitter //nolint:gosec // no secret
	}
	return time.Now().Add(max(wait, 0))
}

func (l *link) deliver(ctx context.Context, queue <-chan piece, to net.Conn) {
	for next := range queue {
		if wait := time.Until(next.due); !next.due.IsZero() && wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		if !l.await(ctx) {
			break
		}
		data, cut := l.cut(next.data)
		_, err := to.Write(data)
		if cut {
			if tcp, ok := to.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // closing it then resets it
			}
		}
		if err != nil || cut {
			_ = to.Close()
			break
		}
	}
	for range queue { // the reader must not hang
	}
}

// cut returns the bytes to deliver, and whether the stream ends after them.
func (l *link) cut(data []byte) ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reset == 0 {
		return data, false
	}
	if int64(len(data)) < l.reset {
		l.reset -= int64(len(data))
		return data, false
	}
	kept := data[:l.reset]
	l.reset = 0
	l.hits.Reset++
	return kept, true
}

// close ends all proxies.
func (p *proxies) close() {
	p.stop()
	p.mu.Lock()
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
