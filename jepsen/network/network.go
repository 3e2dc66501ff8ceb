//go:build linux

// Package network gives each process of a run its own host, and breaks the links between hosts: cuts in one or both directions, loss, and
// bounded bandwidth in the kernel. Proxies on each link add delay, streams that are reset midway, and streams that stall.
//
// Hosts are network namespaces, made through netlink, on a bridge in a namespace of its own: nothing of it is visible outside, and all of
// it disappears with the process. Where namespaces are not allowed, hosts are addresses of 127/8 and each link is a proxy.
package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"time"
)

// Kind is the kind of hosts.
type Kind string

// The kinds.
const (
	Namespaces Kind = "namespaces"
	Loopback   Kind = "loopback"
)

// ErrUnsupported says that this kind of network does not support the operation.
var ErrUnsupported = errors.New("this kind of network cannot do it")

// Options select a network.
type Options struct {
	// Kind is namespaces or loopback; empty: namespaces, or loopback if those are not allowed.
	Kind Kind
	// Proxied puts a proxy on each link to a port that a host serves. Loopback links are always proxied.
	Proxied bool
}

// Link is one direction between two hosts, by name.
type Link struct{ From, To string }

// Hits count the traffic that a link kept back so far, to confirm a fault from outside.
type Hits struct {
	// Dropped counts packets (namespaces) or pieces of streams (proxies) that were dropped or kept back.
	Dropped uint64
	// Delayed counts delayed pieces, Reset the reset streams.
	Delayed, Reset uint64
}

// Network is a set of hosts and the links between them. Its methods are safe for concurrent use.
type Network struct {
	kind    Kind
	reason  string
	proxied bool
	proxies *proxies
	fabric  fabric

	mu    sync.Mutex
	hosts map[string]*Host
}

// fabric is the part that differs between the kinds.
type fabric interface {
	// add makes a numbered host.
	add(h *Host) error
	start(h *Host, cmd *exec.Cmd) error
	dial(ctx context.Context, h *Host, network, address string, mark bool) (net.Conn, error)
	listen(h *Host, address string) (net.Listener, error)
	// drop sets the share of packets from one host to another to drop.
	drop(from, to *Host, d dropping) error
	rate(h *Host, bytesPerSecond int64) error
	// dropped returns how many packets were dropped by link.
	dropped() (map[Link]uint64, error)
	// route leads connections from a host to an address through a proxy's listener, if that is needed.
	route(h, to *Host, port int, proxy net.Addr) error
	close() error
}

// dropping is the fate of packets between two hosts.
type dropping struct {
	// percent is the percentage of dropped packets.
	percent int
	// reject answers with a reset instead of silence.
	reject bool
}

// Open makes a network without hosts.
func Open(o Options) (*Network, error) {
	n := &Network{kind: o.Kind, proxied: o.Proxied, hosts: map[string]*Host{}}
	switch o.Kind {
	case Namespaces, "":
		spaces, err := openNamespaces()
		switch {
		case err == nil:
			n.kind, n.fabric = Namespaces, spaces
		case o.Kind == Namespaces:
			return nil, err
		default:
			n.reason = err.Error()
		}
	case Loopback:
	default:
		return nil, fmt.Errorf("there is no kind of network %q", o.Kind)
	}
	if n.fabric == nil {
		n.kind, n.proxied, n.fabric = Loopback, true, &loopback{}
	}
	n.proxies = newProxies(n)
	return n, nil
}

// Kind is the kind of hosts.
func (n *Network) Kind() Kind { return n.kind }

// Reason says why hosts are no namespaces; empty if they are, or if loopback was requested.
func (n *Network) Reason() string { return n.reason }

// Host is an endpoint with addresses of its own.
type Host struct {
	network *Network
	name    string
	number  int
	// listenIP is the address on which its processes listen, ip the one at which others reach them.
	listenIP, ip string
	serves       []int
	space        *space
}

// AddHost makes a host. serves are the TCP ports at which others can call it through proxies.
func (n *Network) AddHost(name string, serves ...int) (*Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[name] != nil {
		return nil, fmt.Errorf("there is a host %q already", name)
	}
	h := &Host{network: n, name: name, number: len(n.hosts) + 1, serves: serves}
	if h.number > 250 {
		return nil, errors.New("there are 250 hosts already")
	}
	if err := n.fabric.add(h); err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	if n.proxied {
		if err := n.proxies.connect(h, n.hosts); err != nil {
			return nil, fmt.Errorf("host %s: %w", name, err)
		}
	}
	n.hosts[name] = h
	return h, nil
}

func (n *Network) host(name string) (*Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hosts[name]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("there is no host %q", name)
}

func (n *Network) pair(from, to string) (*Host, *Host, error) {
	a, err := n.host(from)
	if err != nil {
		return nil, nil, err
	}
	b, err := n.host(to)
	return a, b, err
}

// Name is the host's name.
func (h *Host) Name() string { return h.name }

// ListenIP is the address on which its processes listen, and from which they connect.
func (h *Host) ListenIP() string { return h.listenIP }

// IP is the address at which others reach it.
func (h *Host) IP() string { return h.ip }

// Start starts a process whose sockets are the host's.
func (h *Host) Start(cmd *exec.Cmd) error { return h.network.fabric.start(h, cmd) }

// DialContext connects from the host to an address.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return h.network.fabric.dial(ctx, h, network, address, false)
}

// Listen listens on the host, at its ListenIP.
func (h *Host) Listen(port int) (net.Listener, error) {
	return h.network.fabric.listen(h, net.JoinHostPort(h.listenIP, fmt.Sprint(port)))
}

// Cut drops everything that one host sends to another, silently, including packets of established connections.
func (n *Network) Cut(from, to string) error { return n.setDrop(from, to, dropping{percent: 100}) }

// HealLink ends Cut, Reject and Loss.
func (n *Network) HealLink(from, to string) error { return n.setDrop(from, to, dropping{}) }

// Reject answers packets from one host to another with a reset.
func (n *Network) Reject(from, to string) error {
	return n.setDrop(from, to, dropping{percent: 100, reject: true})
}

// Loss drops a share of the packets, in percent; 0: none.
func (n *Network) Loss(from, to string, percent int) error {
	if n.kind != Namespaces && percent > 0 {
		return fmt.Errorf("loss: %w", ErrUnsupported)
	}
	return n.setDrop(from, to, dropping{percent: percent})
}

func (n *Network) setDrop(from, to string, d dropping) error {
	a, b, err := n.pair(from, to)
	if err != nil {
		return err
	}
	if n.kind == Loopback {
		n.proxies.link(Link{from, to}).hold(d.percent == 100)
		return nil
	}
	return n.fabric.drop(a, b, d)
}

// Rate bounds the bandwidth from a host, in bytes a second; 0: no bound.
func (n *Network) Rate(host string, bytesPerSecond int64) error {
	h, err := n.host(host)
	if err != nil {
		return err
	}
	return n.fabric.rate(h, bytesPerSecond)
}

// proxiedLink is the proxy's side of a link.
func (n *Network) proxiedLink(from, to string) (*link, error) {
	if !n.proxied {
		return nil, fmt.Errorf("links without proxies: %w", ErrUnsupported)
	}
	if _, _, err := n.pair(from, to); err != nil {
		return nil, err
	}
	return n.proxies.link(Link{from, to}), nil
}

// Delay delays streams from one host to another, by mean ± jitter, in order; 0: no delay.
func (n *Network) Delay(from, to string, mean, jitter time.Duration) error {
	l, err := n.proxiedLink(from, to)
	if err == nil {
		l.delay(mean, jitter)
	}
	return err
}

// ResetAfter resets the next stream on a link after a number of bytes.
func (n *Network) ResetAfter(from, to string, bytes int64) error {
	l, err := n.proxiedLink(from, to)
	if err == nil {
		l.resetAfter(bytes)
	}
	return err
}

// Stall keeps the connections of a link open and delivers nothing on it.
func (n *Network) Stall(from, to string, on bool) error {
	l, err := n.proxiedLink(from, to)
	if err == nil {
		l.hold(on)
	}
	return err
}

// Heal ends all faults.
func (n *Network) Heal() error {
	n.mu.Lock()
	hosts := make([]*Host, 0, len(n.hosts))
	for _, h := range n.hosts {
		hosts = append(hosts, h)
	}
	n.mu.Unlock()
	n.proxies.heal()
	var err error
	for _, a := range hosts {
		err = errors.Join(err, n.fabric.rate(a, 0))
		for _, b := range hosts {
			if n.kind == Namespaces && a != b {
				err = errors.Join(err, n.fabric.drop(a, b, dropping{}))
			}
		}
	}
	return err
}

// Hits returns the counts of each link so far.
func (n *Network) Hits() (map[Link]Hits, error) {
	hits := n.proxies.hits()
	dropped, err := n.fabric.dropped()
	for l, count := range dropped {
		h := hits[l]
		h.Dropped += count
		hits[l] = h
	}
	return hits, err
}

// Close ends proxies and hosts. It kills nothing: processes on the hosts should be gone.
func (n *Network) Close() error {
	n.proxies.close()
	return n.fabric.close()
}
