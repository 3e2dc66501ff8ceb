package rpc

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode/budget"
)

// DefaultMaxConnections is the default for how many connections the API port takes at once.
const DefaultMaxConnections = accounts.DefaultMaxConnections

// Listener bounds the connections of a port. A connection is an anonymous caller until a caller is admitted on it, by a token where there
// are
// tokens. Anonymous callers have a fifth of the room, shared by address; the others have the rest, shared by caller. Where there is no
// room, the
// connection that has been idle for longest is closed. It is one of the same address or caller if that has used up its part, and any one
// otherwise. A connection is idle while no request on it is being served, even if part of one has arrived. Connections whose requests all
// wait for their refusal are closed first.
//
// A new connection without room waits, behind older ones of its address. So a client that opens many connections at once, to use one of
// them, does not lose that one, and no other address waits for them.
type Listener struct {
	net.Listener
	// idleGrace is how long a connection may take for its first or next request before it makes room for others. A new connection waits for
	// room as long.
	idleGrace time.Duration
	// accepted passes connections that have room to Accept; done is closed with the listener.
	accepted chan accepted
	done     chan struct{}
	close    func() error

	mu                 sync.Mutex
	anonymous, callers connectionPool
	// waiting are the new connections without room, oldest first; waits bounds them per address. joining is set while joinWaiting runs.
	waiting          *list.List
	waits            *budget.Budget
	joining          bool
	evicted, refused float64
}

// accepted is a result of Accept.
type accepted struct {
	conn net.Conn
	err  error
}

// connectionPool is a part of a listener's connections.
type connectionPool struct {
	shares *budget.Budget
	// idle are the idle connections, those idle for longest first; idleOf are the same by owner.
	idle   *list.List
	idleOf map[string]*list.List
}

func newConnectionPool(shares *budget.Budget) connectionPool {
	return connectionPool{shares: shares, idle: list.New(), idleOf: map[string]*list.List{}}
}

// Listen listens on address and takes at most this many connections at once, until it is closed.
func Listen(address string, most int) (*Listener, error) {
	listener, err := (&net.ListenConfig{KeepAlive: keepAlive}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	l := newListener(listener, most, idleGrace)
	go l.take()
	return l, nil
}

// idleGrace is long compared with a client's time until its first request, so that each of many that connect at once gets there. It is
// short compared with the patience of a health check.
const idleGrace = time.Second

func newListener(listener net.Listener, most int, idleGrace time.Duration) *Listener {
	named := func() *budget.Budget { return budget.New("connections", 0, 0, 0) }
	l := &Listener{
		Listener: listener, idleGrace: idleGrace, accepted: make(chan accepted), done: make(chan struct{}),
		anonymous: newConnectionPool(named()), callers: newConnectionPool(named()), waiting: list.New(), waits: named(),
	}
	l.resize(int64(most))
	l.close = sync.OnceValue(func() error {
		close(l.done)
		return l.Listener.Close()
	})
	return l
}

// resize changes the maximum of connections. Open ones stay. Where they are too many, idle ones are closed for new ones; while none is
// idle, new ones wait or are refused.
func (l *Listener) resize(most int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	anonymous := anonymousOf(most)
	callers := max(1, most-anonymous)
	l.anonymous.shares.Resize(anonymous, 0, max(1, min(16, anonymous/16)))
	l.callers.shares.Resize(callers, max(1, callers/8), max(1, min(16, callers/16)))
	l.waits.Resize(anonymous, 0, max(1, min(16, anonymous/16)))
}

// anonymousOf returns how many of a port's connections anonymous callers may have.
func anonymousOf(most int64) int64 { return max(1, most/5) }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. New connections that still wait for room are closed.
func (l *Listener) Close() error { return l.close() }

// deliver passes a connection or an error to Accept. It returns false, and closes the connection, if the listener is closed.
func (l *Listener) deliver(a accepted) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.done:
		if a.conn != nil {
			_ = a.conn.Close()
		}
		return false
	}
}

// take takes new connections until the listener is closed.
func (l *Listener) take() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if !l.deliver(accepted{err: err}) { // http.Server pauses after a temporary error
				return
			}
			continue
		}
		c := &connection{Conn: conn, listener: l, owner: accountOfAddress(conn.RemoteAddr().String())}
		joined, waits := l.enter(c)
		switch {
		case joined:
			if !l.deliver(accepted{conn: c}) {
				return
			}
		case !waits:
			_ = conn.Close()
		}
	}
}

// enter adds a new connection to the anonymous callers, or queues it to wait for room.
func (l *Listener) enter(c *connection) (joined, waits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waits.Has(c.owner) && l.joinLocked(c, &l.anonymous, c.owner, false, l.idleGrace) == nil {
		return true, false
	}
	if l.waits.Take(c.owner, 1, false) != nil {
		// More than a client opens for itself: among so many, a health check gets in only if a silent connection has no right to stay.
		if l.joinLocked(c, &l.anonymous, c.owner, false, 0) == nil {
			return true, false
		}
		l.refused++
		return false, false
	}
	l.waiting.PushBack(waiter{c, time.Now().Add(l.idleGrace)})
	if !l.joining {
		l.joining = true
		go l.joinWaiting()
	}
	return false, true
}

// waiter is a new connection that waits for room until a deadline.
type waiter struct {
	c     *connection
	until time.Time
}

// joinWaiting adds waiting connections to the anonymous callers as room appears, and closes those that waited until their deadline. It
// ends when none waits.
func (l *Listener) joinWaiting() {
	const steps = 50
	poll := time.NewTicker(l.idleGrace / steps)
	defer poll.Stop()
	for {
		joined, left := l.tryWaiting(time.Now())
		for _, c := range joined {
			l.deliver(accepted{conn: c})
		}
		if left == 0 {
			return
		}
		select {
		case <-poll.C:
		case <-l.done:
		}
	}
}

// tryWaiting tries all waiting connections once. It closes those past their deadline without room, and all of them if the listener is
// closed.
func (l *Listener) tryWaiting(now time.Time) (joined []*connection, left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next *list.Element
	for e := l.waiting.Front(); e != nil; e = next {
		next = e.Next()
		w, ok := e.Value.(waiter)
		if !ok {
			continue
		}
		switch {
		case l.closed():
			_ = w.c.Conn.Close()
		case l.joinLocked(w.c, &l.anonymous, w.c.owner, false, l.idleGrace) == nil:
			joined = append(joined, w.c)
		case now.Before(w.until):
			continue
		default:
			l.refused++
			_ = w.c.Conn.Close()
		}
		l.waiting.Remove(e)
		l.waits.Give(w.c.owner, 1)
	}
	l.joining = l.waiting.Len() > 0
	return joined, l.waiting.Len()
}

func (l *Listener) closed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// connection is a connection of a Listener.
type connection struct {
	net.Conn
	listener *Listener

	// The listener's lock guards all fields below. pool is nil before the connection joins one and after it ends.
	pool  *connectionPool
	owner string
	// admitted is set once a caller has been admitted.
	admitted bool
	// serving counts the requests being served, except the refusals: those that wait only to be refused. While serving is 0 the connection
	// is in two lists.
	serving, refusals int
	inIdle, inIdleOf  *list.Element
	idleSince         time.Time
}

// joinLocked moves a connection to a pool. It makes room by closing connections that have been idle for at least idleFor.
func (l *Listener) joinLocked(c *connection, to *connectionPool, owner string, operator bool, idleFor time.Duration) *budget.FullError {
	refused := to.shares.Take(owner, 1, operator)
	for refused != nil {
		from := to.idle
		if refused.Own {
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
		refused = to.shares.Take(owner, 1, operator)
	}
	c.leaveLocked()
	c.pool, c.owner = to, owner
	c.markIdleLocked()
	return nil
}

func (l *Listener) evictLocked(c *connection) {
	l.evicted++
	c.leaveLocked()
	_ = c.Conn.Close()
}

// leaveLocked removes a connection from its pool.
func (c *connection) leaveLocked() {
	if c.pool == nil {
		return
	}
	c.markBusyLocked()
	c.pool.shares.Give(c.owner, 1)
	c.pool = nil
}

// markIdleLocked adds a connection to the lists of idle ones if no request on it is being served.
func (c *connection) markIdleLocked() {
	if c.pool == nil || c.serving > 0 || c.inIdle != nil {
		return
	}
	of := c.pool.idleOf[c.owner]
	if of == nil {
		of = list.New()
		c.pool.idleOf[c.owner] = of
	}
	if c.refusals > 0 { // the first to be closed, without the grace of a new connection
		c.inIdle, c.inIdleOf, c.idleSince = c.pool.idle.PushFront(c), of.PushFront(c), time.Time{}
		return
	}
	c.inIdle, c.inIdleOf, c.idleSince = c.pool.idle.PushBack(c), of.PushBack(c), time.Now()
}

// markBusyLocked removes a connection from the lists of idle ones.
func (c *connection) markBusyLocked() {
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

// serve records that a request is being served, until done is called.
func (c *connection) serve() (done func()) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	c.serving++
	c.markBusyLocked()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.serving--
		c.markIdleLocked()
	}
}

// yield records that a request waits only for its refusal, until resume is called. A connection with only such requests is the first to
// be closed: otherwise refused requests would occupy all connections while they wait.
func (c *connection) yield() (resume func()) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	c.serving--
	c.refusals++
	c.markIdleLocked()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.serving++
		c.refusals--
		c.markBusyLocked()
	}
}

// isAdmitted reports whether a caller has been admitted on the connection.
func (c *connection) isAdmitted() bool {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	return c.admitted
}

// admit moves a connection to the pool of callers, under the first caller admitted on it, or the member whose calls it carries.
func (c *connection) admit(key string, operator bool) *budget.FullError {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.admitted || c.pool == nil {
		return nil
	}
	refused := c.listener.joinLocked(c, &c.listener.callers, key, operator, 0)
	c.admitted = refused == nil
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

// withConnection is http.Server's ConnContext: connectionOf finds the connection of a request.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	if ours, ok := c.(*connection); ok {
		return context.WithValue(ctx, connectionKey{}, ours)
	}
	return ctx
}

// connectionOf returns the connection of a request, nil if it is not of a Listener.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}

var (
	connectionsDesc = prometheus.NewDesc("quotad_api_connections",
		"Open connections: of callers, and of strangers (no call has been admitted on them yet).", []string{"of"}, nil)
	connectionsEndedDesc = prometheus.NewDesc("quotad_api_connections_ended_total",
		"Connections closed to keep the budget: idle ones, and new ones that were not accepted.", []string{"which"}, nil)
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
	anonymous, _ := l.anonymous.shares.InUse()
	callers, _ := l.callers.shares.InUse()
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(anonymous), "strangers")
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(callers), "callers")
	to <- prometheus.MustNewConstMetric(connectionsEndedDesc, prometheus.CounterValue, evicted, "idle")
	to <- prometheus.MustNewConstMetric(connectionsEndedDesc, prometheus.CounterValue, refused, "new")
}
