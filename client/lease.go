package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Lease is a reservation of amounts until a deadline. Each command about it carries its fence. Once the lease has ended, for any
// reason, Done is closed and Err returns the cause. It is safe for concurrent use.
type Lease struct {
	client *Client
	id     uint64
	fence  uint64
	class  Class
	ttl    time.Duration
	items  []Item
	// instead has the items granted of another quota, or of a pool's member, by the requested name.
	instead map[string]Item
	// member is the granted member of the requested pools.
	member   string
	forecast *Forecast
	first    *Operation
	// pressure is the state of the holder's workflow at the grant.
	pressure *BackPressure

	// Lock order: the keeper's lock, then mu.
	mu       sync.Mutex
	deadline moment
	renewed  time.Time
	nextOp   uint64
	// doneBelow is the low-water mark of operations; settled holds the finished ones above it.
	doneBelow uint64
	settled   map[uint64]struct{}
	dead      chan struct{}
	cause     error
	watch     *time.Timer
	// itemClosed is closed at the first closed item; closed names them; itemEnds has the ends that the grant named.
	itemClosed chan struct{}
	anyClosed  bool
	closed     []string
	itemEnds   []itemEnd
	itemTimer  *time.Timer
	deaths     map[int]func(error)
	nextDeath  int
}

func newLease(c *Client, granted *quotav1.Lease, at stamp) *Lease {
	left := durationOf(granted.GetExpiresIn(), 0)
	l := &Lease{
		client: c, id: granted.GetId(), fence: granted.GetFence(), class: Class(granted.GetClass()), items: grantedOf(granted.GetItems()),
		instead: standIns(granted.GetItems()), forecast: forecastOf(granted.GetForecast()),
		ttl:      max(durationOf(granted.GetAskedTtl(), 0), left),
		pressure: backPressureOf(granted.GetBackPressure()), nextOp: 1, doneBelow: 1, settled: map[uint64]struct{}{}, dead: make(chan struct{}),
		itemClosed: make(chan struct{}), deaths: map[int]func(error){},
	}
	for _, item := range granted.GetItems() {
		l.member = cmp.Or(l.member, item.GetMember())
	}
	l.renewed = at.sent
	l.deadline = l.moment(at.deadline(left))
	if op := granted.GetOperation(); op != nil {
		l.nextOp = 2
		l.first = newOperation(l, op, at)
	} else {
		for _, item := range granted.GetItems() {
			if end := durationOf(item.GetExpiresIn(), left); end < left {
				l.itemEnds = append(l.itemEnds, itemEnd{quota: item.GetQuota(), at: l.moment(at.deadline(end))})
			}
		}
	}
	return l
}

func (l *Lease) moment(mono time.Time) moment { return at(mono, time.Now(), l.client.wall()) }

// ID returns the lease's id.
func (l *Lease) ID() uint64 { return l.id }

// Fence returns the lease's fencing token. Fences only grow: a resource that remembers the largest one that it saw can reject a smaller
// one.
func (l *Lease) Fence() uint64 { return l.fence }

// Class returns the class of the grant.
func (l *Lease) Class() Class { return l.class }

// Items returns the granted items.
func (l *Lease) Items() []Item { return slices.Clone(l.items) }

// Member returns the name of the pool member that the lease draws on, such as the key to use; empty: no pool was requested.
func (l *Lease) Member() string { return l.member }

// For returns the item granted for a requested quota or pool: an item of that quota, of the pool's member, or of the stand-in that the
// Reserve allowed. To find the stand-in for a member that the Reserve named, pass that member's quota.
func (l *Lease) For(quota string) (Item, bool) {
	if item, ok := l.instead[quota]; ok {
		return item, true
	}
	for _, item := range l.items {
		if item.Quota == quota {
			return item, true
		}
	}
	return Item{}, false
}

// Forecast returns the prediction for the requested quotas at the grant; nil: none.
func (l *Lease) Forecast() *Forecast { return l.forecast }

// Operation returns the operation of a Reserve with Consume; nil without it.
func (l *Lease) Operation() *Operation { return l.first }

// BackPressure returns the state of the holder's workflow at the grant; nil: it has none, or nothing in it was limited.
func (l *Lease) BackPressure() *BackPressure { return l.pressure }

// Deadline returns the moment by which the lease has ended, on this machine's clock and a little early.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline.mono
}

// Left returns the time until the deadline, 0 if it has passed. It reads the wall clock as well, so that a machine that slept does not
// trust an expired lease.
func (l *Lease) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftLocked()
}

func (l *Lease) leftLocked() time.Duration {
	if l.cause != nil {
		return 0
	}
	return max(0, l.deadline.left(time.Now(), l.client.wall()))
}

// Done returns a channel that is closed when the lease has ended.
func (l *Lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchLocked()
	return l.dead
}

// Err returns why the lease has ended; nil while it lives. The causes are ErrLeaseExpired, ErrLeaseReleased, and an error with
// ReasonStaleFence or ReasonNeverIssued.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil && l.leftLocked() == 0 {
		return ErrLeaseExpired
	}
	return l.cause
}

// Context returns a context that ends with the lease, with the same cause. While the lease is not kept alive, the context has its
// deadline.
func (l *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	kept := l.client.keeper.keeps(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		cancel(l.cause)
		return ctx, func() { cancel(nil) }
	}
	if l.leftLocked() == 0 {
		cancel(ErrLeaseExpired) // at once: the keeper would notice it a moment later
	}
	key := l.tellLocked(cancel)
	stop := func() {
		l.mu.Lock()
		delete(l.deaths, key)
		l.mu.Unlock()
		cancel(nil)
	}
	if kept {
		return ctx, stop
	}
	bounded, cancelBounded := context.WithDeadlineCause(ctx, l.deadline.mono, ErrLeaseExpired)
	return bounded, func() { cancelBounded(); stop() }
}

// tellLocked registers f to be called with the cause when the lease ends.
func (l *Lease) tellLocked(f func(error)) (key int) {
	l.watchLocked()
	key = l.nextDeath
	l.nextDeath++
	l.deaths[key] = f
	return key
}

// tell registers f to be called with the cause when the lease ends; at once if it has ended.
func (l *Lease) tell(f func(error)) {
	l.mu.Lock()
	cause := l.cause
	if cause == nil {
		l.tellLocked(f)
	}
	l.mu.Unlock()
	if cause != nil {
		f(cause)
	}
}

// holds reports whether the lease holds items that its first operation did not consume: slots, which are in use as long as they are
// held.
func (l *Lease) holds() bool {
	return slices.ContainsFunc(l.items, func(item Item) bool {
		return l.first == nil || !slices.ContainsFunc(l.first.items, func(spent Item) bool { return spent.Quota == item.Quota })
	})
}

// longestNap bounds the interval between checks of a watched lease against the wall clock.
const longestNap = time.Second

// watchLocked starts the timer that notices the end of the lease.
func (l *Lease) watchLocked() {
	if l.watch == nil && l.cause == nil {
		l.watch = time.AfterFunc(min(l.leftLocked(), longestNap), l.poll)
	}
}

// poll ends the lease if its deadline has passed, and otherwise reschedules itself.
func (l *Lease) poll() {
	l.mu.Lock()
	left := l.leftLocked()
	if left > 0 {
		l.watch.Reset(min(left, longestNap))
	}
	l.mu.Unlock()
	if left == 0 {
		l.die(ErrLeaseExpired)
	}
}

// die ends the lease locally. Only the first cause counts.
func (l *Lease) die(cause error) {
	l.client.keeper.forget(l)
	l.mu.Lock()
	if l.cause != nil {
		l.mu.Unlock()
		return
	}
	l.cause = cause
	if l.watch != nil {
		l.watch.Stop()
	}
	if l.itemTimer != nil {
		l.itemTimer.Stop()
	}
	l.tellClosedLocked()
	deaths := l.deaths
	l.deaths = nil
	close(l.dead)
	l.mu.Unlock()
	for _, tell := range deaths {
		tell(cause)
	}
}

// Consume makes held amounts spendable as one operation; without items, all held amounts. Consume before you spend. A refusal is a
// *RefusalError. Once the window of an item has closed, a Consume without items consumes nothing and fails with [ReasonItemClosed]: the
// amount held of that window is void. Take a new lease then.
func (l *Lease) Consume(ctx context.Context, items ...Item) (*Operation, error) {
	ctx, done, err := l.client.begin(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer done()
	l.mu.Lock()
	op := l.nextOp
	l.nextOp++
	below := l.doneBelow
	l.mu.Unlock()
	cmd := newCommand(&quotav1.Command{Kind: &quotav1.Command_Consume{Consume: &quotav1.ConsumeRequest{
		Lease: l.id, Fence: l.fence, Op: op, Items: askItems(items), DoneBelow: below,
	}}})
	if err := l.run(ctx, cmd); err != nil {
		if errors.As(err, new(*UnknownOutcomeError)) {
			l.abandon(op)
		} else {
			l.finish(op)
		}
		return nil, err
	}
	response := cmd.result.GetConsume()
	if refusal := response.GetRefusal(); refusal != nil {
		l.finish(op)
		return nil, l.client.refused(refusal)
	}
	l.extend(response.GetOperation(), cmd.stamp)
	return newOperation(l, response.GetOperation(), cmd.stamp), nil
}

// abandon finishes an operation that nobody will spend and that may have been carried out. Until it is finished, the cluster keeps the
// records of all later operations.
func (l *Lease) abandon(op uint64) {
	settle := (&Operation{lease: l, number: op}).settlement(Settlement{Final: true})
	settle.then = func(settle *command) {
		l.learn(settle.err)
		if settle.err == nil || errors.Is(settle.err, ReasonStaleOperation) {
			l.finish(op)
		}
	}
	l.client.send(settleLife, settle)
}

// extend moves the deadline if a Consume moved it: an item never ends later than its lease.
func (l *Lease) extend(op *quotav1.Operation, at stamp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, item := range op.GetItems() {
		if end := at.deadline(durationOf(item.GetExpiresIn(), 0)); end.After(l.deadline.mono) {
			l.deadline = l.moment(end)
		}
	}
}

// Renew moves the deadline to ttl from now; 0: the ttl that the Reserve asked for.
func (l *Lease) Renew(ctx context.Context, ttl time.Duration) error {
	ctx, done, err := l.client.begin(ctx, 0)
	if err != nil {
		return err
	}
	defer done()
	cmd := l.renewal(ttl)
	if err := l.run(ctx, cmd); err != nil {
		return err
	}
	l.prolong(cmd)
	return nil
}

func (l *Lease) renewal(ttl time.Duration) *command {
	return newCommand(&quotav1.Command{Kind: &quotav1.Command_Renew{Renew: &quotav1.RenewRequest{
		Lease: l.id, Fence: l.fence, Ttl: durationOrNil(ttl),
	}}})
}

// prolong adopts the deadline of a renewal, even an earlier one than before: the caller asked for it.
func (l *Lease) prolong(cmd *command) {
	left := durationOf(cmd.result.GetRenew().GetExpiresIn(), 0)
	if closed := cmd.result.GetRenew().GetClosed(); len(closed) > 0 {
		l.closeItems(closed...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if cmd.stamp.sent.Before(l.renewed) {
		return
	}
	l.renewed, l.ttl = cmd.stamp.sent, left
	l.deadline = l.moment(cmd.stamp.deadline(left))
}

// KeepAlive renews the lease in the background until it is released or the client is closed. One batch renews all leases of a client
// that are kept alive.
func (l *Lease) KeepAlive() { l.client.keeper.keep(l, nil) }

// Release returns held amounts to their quotas; without items, all of them, and the lease ends. It returns the released items.
func (l *Lease) Release(ctx context.Context, items ...Item) ([]Item, error) {
	ctx, done, err := l.client.begin(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer done()
	if len(items) == 0 {
		l.die(ErrLeaseReleased)
	}
	cmd := newCommand(&quotav1.Command{Kind: &quotav1.Command_Release{Release: &quotav1.ReleaseRequest{
		Lease: l.id, Fence: l.fence, Items: askItems(items),
	}}})
	if err := l.run(ctx, cmd); err != nil {
		return nil, err
	}
	return itemsOf(cmd.result.GetRelease().GetReturned()), nil
}

// Report is Operation.Report for a lease of slots, which has no operations.
func (l *Lease) Report(ctx context.Context, signals ...Signal) ([]Reported, error) {
	reported, err := l.client.report(ctx, l, 1, &quotav1.ReportRequest{Signals: signalsOf(signals)})
	l.learn(err)
	return reported, err
}

// release returns the command that ends the lease.
func (l *Lease) release() *command {
	return newCommand(&quotav1.Command{Kind: &quotav1.Command_Release{Release: &quotav1.ReleaseRequest{Lease: l.id, Fence: l.fence}}})
}

// run sends a command about the lease, and learns from its error whether the lease still lives.
func (l *Lease) run(ctx context.Context, cmd *command) error {
	err := l.client.do(ctx, cmd)
	l.learn(err)
	return err
}

// learn ends the lease if the cluster reports its fence as dead, and records an item that has closed.
func (l *Lease) learn(err error) {
	if quota, ok := closedItemOf(err); ok {
		l.closeItems(quota)
	}
	if errors.Is(err, ReasonStaleFence) || errors.Is(err, ReasonNeverIssued) {
		l.die(err)
	}
}

// finish records that an operation is over, so that the cluster may forget it.
func (l *Lease) finish(op uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled[op] = struct{}{}
	for {
		if _, ok := l.settled[l.doneBelow]; !ok {
			return
		}
		delete(l.settled, l.doneBelow)
		l.doneBelow++
	}
}

func (l *Lease) lowWater() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doneBelow
}

// Do reserves, keeps the lease alive while f runs, and releases it. The context of f ends with the lease. f settles its own operations.
// If a lease arrives after its end, because a leader was lost on the way, Do asks again; after the last attempt it returns [ErrLate]
// without running f.
func Do[T any](ctx context.Context, c *Client, request ReserveRequest, f func(context.Context, *Lease) (T, error)) (T, error) {
	var none T
	lease, err := c.Reserve(ctx, request)
	for asked := 1; err == nil && lease.Left() == 0; asked++ {
		c.send(orphanLife, lease.release())
		if err = ErrLate; asked < maxAsked {
			lease, err = c.Reserve(ctx, request)
		}
	}
	if err != nil {
		return none, err
	}
	lease.KeepAlive()
	defer func() {
		// Release also after a panic in f, and when ctx has ended.
		lease.die(ErrLeaseReleased)
		c.send(orphanLife, lease.release())
	}()
	running, stop := lease.Context(ctx)
	defer stop()
	return f(running, lease)
}
