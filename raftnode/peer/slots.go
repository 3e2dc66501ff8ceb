package peer

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Bounds on incoming connections.
const (
	// maxAnonymous bounds the connections in handshake and preface from hosts of no member, maxAnonymousPerHost those from one host.
	maxAnonymous        = 64
	maxAnonymousPerHost = 16
	// maxPerMember bounds the connections of one member, separately for raft, which uses up to five, and for questions: many are asked at once
	// and must not take raft's slots.
	maxPerMember = 32
	// maxGuests bounds the connections of nodes that are not members as far as this node knows. Its knowledge may be old, or empty while it
	// waits to be added.
	maxGuests = 32
)

// connSlots bounds incoming connections. Anonymous callers share one pool, and each member has slots of its own, so that no caller takes
// another's.
// In a full pool a new connection replaces the oldest. So a peer whose connections were cut off silently can connect again, and silent
// connections are the first to go.
type connSlots struct {
	mu sync.Mutex
	// anonymous and each list in members are ordered oldest first. The keys of members are protocol and node id; guests have an empty id.
	anonymous []*incoming
	members   map[string][]*incoming
	// hosts has the host of each member's last admitted connection. A member in its handshake is an anonymous caller; it loses its place to
	// others from its own host only.
	hosts map[string]string
}

// incoming is one accepted connection.
type incoming struct {
	conn net.Conn
	host string
	// key is its key in connSlots.members, valid once admitted is set; guarded by connSlots.mu.
	key      string
	admitted bool
}

func newSlots() *connSlots {
	return &connSlots{members: map[string][]*incoming{}, hosts: map[string]string{}}
}

// wholeNetwork is the length in bits of the prefix that tells IPv6 networks apart: a machine can use any address in its network.
const wholeNetwork = 64

// hostOf returns the host of an address: an IPv4 address, or the network of an IPv6 address.
func hostOf(address string) string {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	host := parsed.Addr().Unmap().WithZone("")
	if network, err := host.Prefix(wholeNetwork); err == nil && host.Is6() {
		return network.String()
	}
	return host.String()
}

// enter registers an anonymous caller. In a full pool it closes the oldest anonymous caller of the same host, or else of the host with
// the most.
func (c *connSlots) enter(conn net.Conn) *incoming {
	in := &incoming{conn: conn, host: hostOf(conn.RemoteAddr().String())}
	c.mu.Lock()
	of := map[string]int{}
	for _, s := range c.anonymous {
		of[s.host]++
	}
	var gone *incoming
	if of[in.host] >= maxAnonymousPerHost {
		gone = c.oldest(in.host)
	} else if !c.ofMember(in.host) {
		most, all := in.host, 0
		for host, n := range of {
			if c.ofMember(host) {
				continue
			}
			if all += n; n > of[most] {
				most = host
			}
		}
		if all >= maxAnonymous {
			gone = c.oldest(most)
		}
	}
	c.anonymous = append(c.anonymous, in)
	c.mu.Unlock()
	closeIncoming(gone)
	return in
}

// ofMember reports whether a member's last connection came from a host.
func (c *connSlots) ofMember(host string) bool {
	for _, known := range c.hosts {
		if known == host {
			return true
		}
	}
	return false
}

// oldest removes and returns the oldest anonymous caller of a host.
func (c *connSlots) oldest(host string) *incoming {
	i := slices.IndexFunc(c.anonymous, func(s *incoming) bool { return s.host == host })
	if i < 0 {
		return nil
	}
	gone := c.anonymous[i]
	c.anonymous = slices.Delete(c.anonymous, i, i+1)
	return gone
}

// admit moves a connection from the anonymous callers to a member's slots, or to those of guests.
func (c *connSlots) admit(in *incoming, protocol, node string, member bool) {
	most := maxPerMember
	if !member {
		node, most = "", maxGuests
	}
	key := protocol + "/" + node
	var gone *incoming
	c.mu.Lock()
	c.anonymous = without(c.anonymous, in)
	if member {
		c.hosts[node] = in.host
	}
	in.key, in.admitted = key, true
	if all := c.members[key]; len(all) >= most {
		gone = all[0]
		c.members[key] = slices.Delete(all, 0, 1)
	}
	c.members[key] = append(c.members[key], in)
	c.mu.Unlock()
	closeIncoming(gone)
}

// leave removes a connection, if it is still registered.
func (c *connSlots) leave(in *incoming) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !in.admitted {
		c.anonymous = without(c.anonymous, in)
		return
	}
	if c.members[in.key] = without(c.members[in.key], in); len(c.members[in.key]) == 0 {
		delete(c.members, in.key)
	}
}

func without(all []*incoming, in *incoming) []*incoming {
	if i := slices.Index(all, in); i >= 0 {
		return slices.Delete(all, i, i+1)
	}
	return all
}

func closeIncoming(in *incoming) {
	if in != nil {
		_ = in.conn.Close() // its handler then ends
	}
}
