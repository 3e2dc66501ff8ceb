package peer

import (
	"net"
	"slices"
	"sync"
)

// Bounds on incoming connections.
const (
	// maxStrangers bounds the connections in handshake and preface, maxStrangersPerHost those of one host.
	maxStrangers        = 64
	maxStrangersPerHost = 16
	// maxPerMember bounds the connections of one member, separately for raft, which uses up to five, and for questions: many are asked at once
	// and must not take raft's slots.
	maxPerMember = 32
	// maxGuests bounds the connections of nodes that are not members as far as this node knows. Its knowledge may be old, or empty while it
	// waits to be added.
	maxGuests = 32
)

// connSlots bounds incoming connections. Strangers share one pool, and each member has slots of its own, so that no caller takes another's.
// In a full pool a new connection replaces the oldest. So a peer whose connections were cut off silently can connect again, and silent
// connections are the first to go.
type connSlots struct {
	mu sync.Mutex
	// strangers and each list in members are ordered oldest first. The keys of members are protocol and node id; guests have an empty id.
	strangers []*incoming
	members   map[string][]*incoming
}

// incoming is one accepted connection.
type incoming struct {
	conn net.Conn
	host string
	// key is its key in connSlots.members, valid once admitted is set; guarded by connSlots.mu.
	key      string
	admitted bool
}

func newSlots() *connSlots { return &connSlots{members: map[string][]*incoming{}} }

// enter registers a stranger. In a full pool it closes the oldest stranger of the same host, or else of the host with the most.
func (c *connSlots) enter(conn net.Conn) *incoming {
	in := &incoming{conn: conn, host: conn.RemoteAddr().String()}
	if host, _, err := net.SplitHostPort(in.host); err == nil {
		in.host = host
	}
	c.mu.Lock()
	of := map[string]int{}
	most := in.host
	for _, s := range c.strangers {
		if of[s.host]++; of[s.host] > of[most] {
			most = s.host
		}
	}
	var gone *incoming
	switch {
	case of[in.host] >= maxStrangersPerHost:
		gone = c.oldest(in.host)
	case len(c.strangers) >= maxStrangers:
		gone = c.oldest(most)
	}
	c.strangers = append(c.strangers, in)
	c.mu.Unlock()
	closeIncoming(gone)
	return in
}

// oldest removes and returns the oldest stranger of a host.
func (c *connSlots) oldest(host string) *incoming {
	i := slices.IndexFunc(c.strangers, func(s *incoming) bool { return s.host == host })
	if i < 0 {
		return nil
	}
	gone := c.strangers[i]
	c.strangers = slices.Delete(c.strangers, i, i+1)
	return gone
}

// admit moves a connection from the strangers to a member's slots, or to those of guests.
func (c *connSlots) admit(in *incoming, protocol, node string, member bool) {
	most := maxPerMember
	if !member {
		node, most = "", maxGuests
	}
	key := protocol + "/" + node
	var gone *incoming
	c.mu.Lock()
	c.strangers = without(c.strangers, in)
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
		c.strangers = without(c.strangers, in)
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
