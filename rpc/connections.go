package rpc

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// DefaultMaxConnections is how many connections the API port takes at once.
const DefaultMaxConnections = 10_000

// Listener takes so many connections at once. One on which nobody was let in yet, by a token where there are tokens, is a stranger.
// Strangers have a fifth of the room, shared by address; the others have the rest, shared by caller. Where there is no room, the
// connection that has been idle for longest ends: of the same address or caller where that has its part, of all otherwise. A connection is
// idle while no request on it is being served, however much of one has come.
type Listener struct {
	net.Listener

	mu                 sync.Mutex
	strangers, callers connectionPool
	evicted, refused   float64
}

// connectionPool is a part of a listener's connections.
type connectionPool struct {
	shares *shares
	// idle are the idle ones, those that have been so for longest first; idleOf are the same by owner.
	idle   *list.List
	idleOf map[string]*list.List
}

func newConnectionPool(shares *shares) connectionPool {
	return connectionPool{shares: shares, idle: list.New(), idleOf: map[string]*list.List{}}
}

// Listen listens for at most so many connections at once.
func Listen(address string, most int) (*Listener, error) {
	listener, err := (&net.ListenConfig{KeepAlive: keepAlive}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	strangers := max(1, int64(most)/5)
	callers := max(1, int64(most)-strangers)
	return &Listener{
		Listener:  listener,
		strangers: newConnectionPool(newShares("connections", strangers, 0, max(1, min(16, strangers/16)))),
		callers:   newConnectionPool(newShares("connections", callers, max(1, callers/8), max(1, min(16, callers/16)))),
	}, nil
}

// settleIn is how long a stranger's connection may take for its first request before it makes room for others: of many callers that
// connect at once, each gets to it. For as long at most a new connection is kept waiting where there is no other room.
const settleIn = 100 * time.Millisecond

// Accept implements net.Listener. Whoever cannot have room is sent away.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: accepted, listener: l, owner: accountOfAddress(accepted.RemoteAddr().String())}
		const steps = 50
		for range steps {
			if l.join(c, &l.strangers, c.owner, false, settleIn) == nil {
				return c, nil
			}
			time.Sleep(settleIn / steps)
		}
		if l.join(c, &l.strangers, c.owner, false, 0) == nil {
			return c, nil
		}
		l.mu.Lock()
		l.refused++
		l.mu.Unlock()
		_ = accepted.Close()
	}
}

// connection is one of a listener's.
type connection struct {
	net.Conn
	listener *Listener

	// All below is the listener's, under its lock. pool is nil before it has joined one and after it has ended.
	pool  *connectionPool
	owner string
	// let is set when a caller was let in.
	let bool
	// serving is how many requests are being served; while there are none it is in two lists.
	serving          int
	inIdle, inIdleOf *list.Element
	idleSince        time.Time
}

// join puts a connection into a pool, out of the one that it was in. It makes room by ending one that has been idle for so long at least.
func (l *Listener) join(c *connection, to *connectionPool, owner string, operator bool, idleFor time.Duration) *budgetError {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused := to.shares.take(owner, 1, operator)
	for refused != nil {
		from := to.idle
		if refused.own {
			from = to.idleOf[owner]
		}
		if from == nil || from.Len() == 0 {
			return refused
		}
		oldest, ok := from.Front().Value.(*connection)
		if !ok || time.Since(oldest.idleSince) < idleFor {
			return refused
		}
		l.evictLocked(oldest)
		refused = to.shares.take(owner, 1, operator)
	}
	c.leaveLocked()
	c.pool, c.owner = to, owner
	c.restLocked()
	return nil
}

func (l *Listener) evictLocked(c *connection) {
	l.evicted++
	c.leaveLocked()
	_ = c.Conn.Close()
}

// leaveLocked takes a connection out of its pool.
func (c *connection) leaveLocked() {
	if c.pool == nil {
		return
	}
	c.stirLocked()
	c.pool.shares.give(c.owner, 1)
	c.pool = nil
}

// restLocked lists a connection as idle if no request on it is being served.
func (c *connection) restLocked() {
	if c.pool == nil || c.serving > 0 || c.inIdle != nil {
		return
	}
	of := c.pool.idleOf[c.owner]
	if of == nil {
		of = list.New()
		c.pool.idleOf[c.owner] = of
	}
	c.inIdle, c.inIdleOf, c.idleSince = c.pool.idle.PushBack(c), of.PushBack(c), time.Now()
}

// stirLocked takes a connection off the lists of idle ones.
func (c *connection) stirLocked() {
	if c.inIdle == nil {
		return
	}
	c.pool.idle.Remove(c.inIdle)
	of := c.pool.idleOf[c.owner]
	if of.Remove(c.inIdleOf); of.Len() == 0 {
		delete(c.pool.idleOf, c.owner)
	}
	c.inIdle, c.inIdleOf = nil, nil
}

// serve notes that a request is being served, until done is called.
func (c *connection) serve() (done func()) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	c.serving++
	c.stirLocked()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.serving--
		c.restLocked()
	}
}

// letIn makes a connection one of a caller's: of the first one that was let in on it.
func (c *connection) letIn(key string, operator bool) *budgetError {
	c.listener.mu.Lock()
	known := c.let || c.pool == nil
	c.let = true
	c.listener.mu.Unlock()
	if known {
		return nil
	}
	refused := c.listener.join(c, &c.listener.callers, key, operator, 0)
	if refused != nil {
		c.listener.mu.Lock()
		c.let = false
		c.listener.mu.Unlock()
	}
	return refused
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.listener.mu.Lock()
	c.leaveLocked()
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

type connectionKey struct{}

// withConnection is for http.Server: requests find their connection by connectionOf.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	if ours, ok := c.(*connection); ok {
		return context.WithValue(ctx, connectionKey{}, ours)
	}
	return ctx
}

// connectionOf returns the connection of a request, nil where it has none of a Listener.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}

var (
	connectionsDesc = prometheus.NewDesc("quotad_api_connections",
		"Open connections: of callers, and of strangers, on which nobody was let in yet.", []string{"of"}, nil)
	connectionsEndedDesc = prometheus.NewDesc("quotad_api_connections_ended_total",
		"Connections that ended for want of room: idle ones, and new ones that were not taken.", []string{"which"}, nil)
)

// Describe implements prometheus.Collector.
func (l *Listener) Describe(to chan<- *prometheus.Desc) {
	to <- connectionsDesc
	to <- connectionsEndedDesc
}

// Collect implements prometheus.Collector.
func (l *Listener) Collect(to chan<- prometheus.Metric) {
	l.mu.Lock()
	evicted, refused := l.evicted, l.refused
	l.mu.Unlock()
	strangers, _ := l.strangers.shares.inUse()
	callers, _ := l.callers.shares.inUse()
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(strangers), "strangers")
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(callers), "callers")
	to <- prometheus.MustNewConstMetric(connectionsEndedDesc, prometheus.CounterValue, evicted, "idle")
	to <- prometheus.MustNewConstMetric(connectionsEndedDesc, prometheus.CounterValue, refused, "new")
}
