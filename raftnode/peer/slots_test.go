package peer

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"testing/synctest"
)

// fromHost is a connection from a host; it records whether it was closed.
type fromHost struct {
	net.Conn
	host   string
	closed bool
}

func (c *fromHost) RemoteAddr() net.Addr { return hostName(c.host) }

func (c *fromHost) Close() error {
	c.closed = true
	return nil
}

type hostName string

func (hostName) Network() string  { return "test" }
func (h hostName) String() string { return string(h) + ":1" }

// TestCallers_EachLosesItsOwnOldest: a caller with too many connections loses its own oldest one.
func TestCallers_EachLosesItsOwnOldest(t *testing.T) {
	c := newSlots()
	enter := func(host string) (*fromHost, *incoming) {
		conn := &fromHost{host: host}
		return conn, c.enter(conn)
	}
	member := func(protocol, node string, known bool) *fromHost {
		conn, in := enter("10.0.0.1")
		c.admit(in, protocol, node, known)
		return conn
	}
	raft, other := member(ProtocolRaft, "n1", true), member(ProtocolRaft, "n2", true)
	first := member(ProtocolPeer, "n1", true)
	quiet, _ := enter("10.0.0.9")
	for i := range 200 {
		enter("10.0.0.1")                                    // silent anonymous callers at a member's host
		enter(fmt.Sprintf("10.0.1.%d", i%(maxAnonymous/16))) // and at some other hosts
		member(ProtocolPeer, "n1", true)
		member(ProtocolRaft, fmt.Sprint("made up ", i), false)
	}
	if raft.closed || other.closed || quiet.closed {
		t.Errorf("another's connections took those of raft (%v, %v), or an anonymous caller's of another host (%v)", raft.closed, other.closed,
			quiet.closed)
	}
	if !first.closed {
		t.Error("the oldest question of a member with too many is still open")
	}
	asks, guests := len(c.members[ProtocolPeer+"/n1"]), len(c.members[ProtocolRaft+"/"])
	if len(c.anonymous) > maxAnonymous+maxAnonymousPerHost || asks > maxPerMember || guests > maxGuests {
		t.Errorf("%d anonymous callers, %d of a member, %d guests", len(c.anonymous), asks, guests)
	}
	newest, in := enter("10.0.0.1")
	if newest.closed {
		t.Error("the newest goes")
	}
	c.leave(in)
	c.leave(in)
	for _, all := range c.members {
		for _, in := range slices.Clone(all) {
			c.leave(in)
		}
	}
	if len(c.members) > 0 {
		t.Errorf("%d lists are left", len(c.members))
	}
}

// TestAnonymous_LeaveMembersTheirHandshake: no number of anonymous callers from other hosts, nor of addresses in one IPv6 network, closes
// the connection of a member whose handshake takes long.
func TestAnonymous_LeaveMembersTheirHandshake(t *testing.T) {
	for _, host := range []string{"10.0.0.1", "[2001:db8:0:1::1]"} {
		c := newSlots()
		enter := func(host string) (*fromHost, *incoming) {
			conn := &fromHost{host: host}
			return conn, c.enter(conn)
		}
		_, earlier := enter(host)
		c.admit(earlier, ProtocolRaft, "n1", true)
		c.leave(earlier)
		handshake, _ := enter(host)
		for i := range 10 * maxAnonymous {
			enter(fmt.Sprintf("10.1.%d.%d", i/250, i%250))
			enter(fmt.Sprintf("[2001:db8:0:2::%x]", i))
		}
		if handshake.closed {
			t.Errorf("%s: anonymous callers closed a member's connection in its handshake", host)
		}
		network := 0
		for _, in := range c.anonymous {
			if in.host == hostOf("[2001:db8:0:2::1]:1") {
				network++
			}
		}
		if len(c.anonymous) > maxAnonymous+1 || network > maxAnonymousPerHost {
			t.Errorf("%s: %d anonymous callers, %d of one network", host, len(c.anonymous), network)
		}
		for range maxAnonymousPerHost {
			enter(host)
		}
		if !handshake.closed {
			t.Errorf("%s: anonymous callers from the member's own host have no bound", host)
		}
	}
}

// TestAnonymous_GuestsHostIsNoMembers: a node that is not a member, as far as this one knows, gains nothing for anonymous callers from its
// host.
func TestAnonymous_GuestsHostIsNoMembers(t *testing.T) {
	c := newSlots()
	enter := func(host string) (*fromHost, *incoming) {
		conn := &fromHost{host: host}
		return conn, c.enter(conn)
	}
	_, guest := enter("10.0.0.5")
	c.admit(guest, ProtocolRaft, "n9", false)
	first, _ := enter("10.0.0.5")
	enter("10.0.0.5") // so that the host has the most
	for i := range maxAnonymous {
		enter(fmt.Sprintf("10.1.0.%d", i))
	}
	if !first.closed {
		t.Error("in a full pool, callers from a guest's host keep their places")
	}
}

// TestHandle_OtherClusterTakesNoMembersPlace: refused connections close none of a member's, though they name that member, as from a node
// of the same name in another cluster.
func TestHandle_OtherClusterTakesNoMembersPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := askingPort(nil)
		p.config.Local.Knows = func(string) bool { return true }
		p.config.Local.Answer = func(string, Request) Reply { return Reply{Node: "n0"} }
		p.config.Local.Admit = func(hello Preface) error {
			if hello.Cluster != "ours" {
				return errors.New("cluster ID mismatch")
			}
			return nil
		}
		var all []net.Conn
		open := func(cluster string) net.Conn {
			here, there := net.Pipe()
			all = append(all, here)
			if !p.links.enter(there) {
				t.Fatal("the port is closed")
			}
			in := p.slots.enter(there)
			p.wg.Go(func() { p.handle(in) })
			_ = writeLine(here, Preface{Magic: Magic, Protocol: ProtocolPeer, Node: "n1", Cluster: cluster})
			synctest.Wait()
			return here
		}
		member := open("ours")
		for range maxPerMember {
			open("theirs")
		}
		answer := Reply{}
		err := errors.Join(writeLine(member, Request{Kind: "hello"}), readLine(bufio.NewReader(member), maxMessage, &answer))
		if err != nil || answer.Node != "n0" {
			t.Errorf("the member's connection: %+v, %v", answer, err)
		}
		for _, conn := range all {
			_ = conn.Close()
		}
		p.wg.Wait()
	})
}
