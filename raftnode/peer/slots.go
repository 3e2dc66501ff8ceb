package peer

import (
	"net"
	"slices"
	"sync"
)

// Bounds of the connections that come in on the port for peers.
const (
	// maxStrangers connections may be in handshake and preface at once, of one host no more than maxStrangersPerHost.
	maxStrangers        = 64
	maxStrangersPerHost = 16
	// maxPerMember connections of one member may be open for raft, which has up to five, and as many for questions: many may be
	// asked at once, and must not take raft's.
	maxPerMember = 32
	// maxGuests connections may be open of nodes that are no members as far as this node knows: its own knowledge may be old or,
	// where it waits to be added, none.
	maxGuests = 32
)

// connSlots bounds incoming connections. Strangers have a pool of their own, and each member has slots of its own, so that nobody takes
// another's. Where one is full, the oldest connection in it is closed for the new one: a peer whose connections were cut off without
// a word comes in again, and whoever keeps silent goes first.
type connSlots struct {
	mu sync.Mutex
	// strangers and each list in members begin with the oldest. They are kept by protocol and member; guests have no id.
	strangers []*incoming
	members   map[string][]*incoming
}

// incoming is one connection that came in.
type incoming struct {
	conn net.Conn
	host string
	// key is where it stands in connSlots.members, once admitted is set; guarded by connSlots.mu.
	key      string
	admitted bool
}

func newSlots() *connSlots { return &connSlots{members: map[string][]*incoming{}} }

// enter takes in a stranger, and closes the one that has to go for it: the oldest of its host, or else of the host with the most.
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

// oldest takes the oldest stranger of a host out.
func (c *connSlots) oldest(host string) *incoming {
	i := slices.IndexFunc(c.strangers, func(s *incoming) bool { return s.host == host })
	if i < 0 {
		return nil
	}
	gone := c.strangers[i]
	c.strangers = slices.Delete(c.strangers, i, i+1)
	return gone
}

// admit moves a stranger to a member's slots, or to those of guests.
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

// leave forgets a connection; it may have been forgotten already.
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
		_ = in.conn.Close() // its handler ends with that
	}
}
