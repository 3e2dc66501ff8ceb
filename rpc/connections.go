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

// DefaultMaxConnections is how many connections the API port takes at once unless limits say something else.
const DefaultMaxConnections = accounts.DefaultMaxConnections

// Listener takes so many connections at once. One on which nobody was let in yet, by a token where there are tokens, is a stranger.
// Strangers have a fifth of the room, shared by address; the others have the rest, shared by caller. Where there is no room, the
// connection that has been idle for longest ends: of the same address or caller where that has its part, of all otherwise. A connection is
// idle while no request on it is being served, however much of one has come; those whose requests wait to be refused end first.
//
// A new connection that finds no room waits for some, behind those of its address that came before it. So the many connections that a
// client opens at once, of which it will use one, do not end that one, and nobody of another address waits for them.
type Listener struct {
	net.Listener
	// settleIn is how long a connection may take for its first or next request before it makes room for others, and how long a new one
	// waits for room.
	settleIn time.Duration
	// accepted hands over what has joined; done is closed when the listener is.
	accepted chan accepted
	done     chan struct{}
	close    func() error

	mu                 sync.Mutex
	strangers, callers connectionPool
	// waiting are the new ones that found no room, the first one first; waits is their part for each address. ushering is set while a
	// goroutine looks after them.
	waiting          *list.List
	waits            *budget.Budget
	ushering         bool
	evicted, refused float64
}

// accepted is what Accept returns.
type accepted struct {
	conn net.Conn
	err  error
}

// connectionPool is a part of a listener's connections.
type connectionPool struct {
	shares *budget.Budget
	// idle are the idle ones, those that have been so for longest first; idleOf are the same by owner.
	idle   *list.List
	idleOf map[string]*list.List
}

func newConnectionPool(shares *budget.Budget) connectionPool {
	return connectionPool{shares: shares, idle: list.New(), idleOf: map[string]*list.List{}}
}

// Listen listens for at most so many connections at once, and takes them until it is closed.
func Listen(address string, most int) (*Listener, error) {
	listener, err := (&net.ListenConfig{KeepAlive: keepAlive}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	l := newListener(listener, most, settleIn)
	go l.take()
	return l, nil
}

// settleIn is long beside what a client needs for a first request, so that each of many that connect at once gets to it, and short beside
// the patience of a health check.
const settleIn = time.Second

func newListener(listener net.Listener, most int, settleIn time.Duration) *Listener {
	named := func() *budget.Budget { return budget.New("connections", 0, 0, 0) }
	l := &Listener{
		Listener: listener, settleIn: settleIn, accepted: make(chan accepted), done: make(chan struct{}),
		strangers: newConnectionPool(named()), callers: newConnectionPool(named()), waiting: list.New(), waits: named(),
	}
	l.resize(int64(most))
	l.close = sync.OnceValue(func() error {
		close(l.done)
		return l.Listener.Close()
	})
	return l
}

// resize changes how many connections it takes at once. Those that there are stay. Where they are too many, idle ones end for new ones, and
// while none is idle new ones wait or are refused.
func (l *Listener) resize(most int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	strangers := strangersOf(most)
	callers := max(1, most-strangers)
	l.strangers.shares.Resize(strangers, 0, max(1, min(16, strangers/16)))
	l.callers.shares.Resize(callers, max(1, callers/8), max(1, min(16, callers/16)))
	l.waits.Resize(strangers, 0, max(1, min(16, strangers/16)))
}

// strangersOf is the part of a port's connections that strangers have.
func strangersOf(most int64) int64 { return max(1, most/5) }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. New connections that still wait for room end.
func (l *Listener) Close() error { return l.close() }

// hand gives a connection or an error to Accept, and tells whether it was still open for that.
func (l *Listener) hand(a accepted) bool {
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
			if !l.hand(accepted{err: err}) { // of an error that passes http.Server makes a pause
				return
			}
			continue
		}
		c := &connection{Conn: conn, listener: l, owner: accountOfAddress(conn.RemoteAddr().String())}
		joined, waits := l.enter(c)
		switch {
		case joined:
			if !l.hand(accepted{conn: c}) {
				return
			}
		case !waits:
			_ = conn.Close()
		}
	}
}

// enter finds room for a new connection, or lets it wait for some.
func (l *Listener) enter(c *connection) (joined, waits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waits.Has(c.owner) && l.joinLocked(c, &l.strangers, c.owner, false, l.settleIn) == nil {
		return true, false
	}
	if l.waits.Take(c.owner, 1, false) != nil {
		// More than a client opens for itself: among so many a health check gets in only if silence gives no right to stay.
		if l.joinLocked(c, &l.strangers, c.owner, false, 0) == nil {
			return true, false
		}
		l.refused++
		return false, false
	}
	l.waiting.PushBack(waiter{c, time.Now().Add(l.settleIn)})
	if !l.ushering {
		l.ushering = true
		go l.usher()
	}
	return false, true
}

// waiter is a new connection that waits for room until a time.
type waiter struct {
	c     *connection
	until time.Time
}

// usher finds room for those that wait, or sends them away when they have waited long enough, until nobody waits.
func (l *Listener) usher() {
	const steps = 50
	look := time.NewTicker(l.settleIn / steps)
	defer look.Stop()
	for {
		joined, left := l.seat(time.Now())
		for _, c := range joined {
			l.hand(accepted{conn: c})
		}
		if left == 0 {
			return
		}
		select {
		case <-look.C:
		case <-l.done:
		}
	}
}

// seat looks once through those that wait. Those that have waited until now and found no room end, all of them where the listener is
// closed.
func (l *Listener) seat(now time.Time) (joined []*connection, left int) {
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
		case l.joinLocked(w.c, &l.strangers, w.c.owner, false, l.settleIn) == nil:
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
	l.ushering = l.waiting.Len() > 0
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

// connection is one of a listener's.
type connection struct {
	net.Conn
	listener *Listener

	// All below is the listener's, under its lock. pool is nil before it has joined one and after it has ended.
	pool  *connectionPool
	owner string
	// let is set when a caller was let in.
	let bool
	// serving is how many requests are being served; while there are none it is in two lists. yielding is set where all that there are wait
	// to be refused.
	serving          int
	yielding         bool
	inIdle, inIdleOf *list.Element
	idleSince        time.Time
}

// joinLocked puts a connection into a pool, out of the one that it was in. It makes room by ending one that has been idle for so long at least.
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
	c.pool.shares.Give(c.owner, 1)
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
	if c.yielding { // before all others, without the time that a new one has for its first request
		c.inIdle, c.inIdleOf, c.idleSince = c.pool.idle.PushFront(c), of.PushFront(c), time.Time{}
		return
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
		c.yielding = false
		c.restLocked()
	}
}

// yield notes that a request waits for nothing but its refusal, until resume is called. Where all requests of a connection do, it is the
// first to make room: otherwise those that are refused would hold all connections for as long as they wait.
func (c *connection) yield() (resume func()) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	c.serving--
	c.yielding = c.serving == 0
	c.restLocked()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.serving++
		c.stirLocked()
	}
}

// letIn makes a connection one of a caller's: of the first one that was let in on it.
func (c *connection) letIn(key string, operator bool) *budget.FullError {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.let || c.pool == nil {
		return nil
	}
	refused := c.listener.joinLocked(c, &c.listener.callers, key, operator, 0)
	c.let = refused == nil
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
	strangers, _ := l.strangers.shares.InUse()
	callers, _ := l.callers.shares.InUse()
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(strangers), "strangers")
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(callers), "callers")
	to <- prometheus.MustNewConstMetric(connectionsEndedDesc, prometheus.CounterValue, evicted, "idle")
	to <- prometheus.MustNewConstMetric(connectionsEndedDesc, prometheus.CounterValue, refused, "new")
}
