package client

import (
	"sync"
	"time"
)

const (
	// renewAt is the share of a lease, in percent, after which it is renewed: of 5 min, every 2.
	renewAt = 40
	// renewWith is the share within which other leases join a renewal that is on its way anyway.
	renewWith = 25
)

// keeper renews the leases that are kept alive, all that are nearly due in one batch.
type keeper struct {
	client *Client
	wake   chan struct{}

	mu   sync.Mutex
	kept map[*Lease]*keeping
	// next is when the keeper looks at its leases again; only what is due earlier has to wake it.
	next    time.Time
	running bool
	stopped bool
}

// keeping is how one lease is kept.
type keeping struct {
	due time.Time
	// over reports whether nobody needs the lease any more; nil: it is kept as long as it lives.
	over func(now time.Time) bool
	// renewing: a renewal is on its way.
	renewing bool
}

func newKeeper(c *Client) *keeper {
	return &keeper{client: c, wake: make(chan struct{}, 1), kept: map[*Lease]*keeping{}}
}

// keep begins to renew a lease, until over says so or the lease ends. over is called under the keeper's lock.
func (k *keeper) keep(l *Lease, over func(now time.Time) bool) {
	l.mu.Lock()
	dead, due := l.cause != nil, l.dueLocked()
	l.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if dead || k.stopped {
		return
	}
	k.kept[l] = &keeping{due: due, over: over}
	if !k.running {
		k.running = true
		k.next = due
		k.client.tasks.Go(k.run)
		return
	}
	if due.Before(k.next) {
		k.nudge()
	}
}

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// dueLocked returns when the lease should be renewed.
func (l *Lease) dueLocked() time.Time {
	left := l.deadline.mono.Sub(l.renewed)
	return l.renewed.Add(left * renewAt / 100)
}

func (k *keeper) keeps(l *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[l] != nil
}

func (k *keeper) forget(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, l)
}

func (k *keeper) stop() {
	k.mu.Lock()
	k.stopped = true
	clear(k.kept)
	k.mu.Unlock()
	k.nudge()
}

// run renews what is due, until nothing is kept any more.
func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.wake:
		}
		commands, next, more := k.collect(time.Now())
		if !more {
			return
		}
		if len(commands) > 0 {
			k.client.send(k.client.callTimeout, commands...)
		}
		timer.Reset(time.Until(next))
	}
}

// collect returns renewals for all leases that are due or nearly so, if at least one is due, and when the next one will
// be. With nothing kept the keeper has ended.
func (k *keeper) collect(now time.Time) (commands []*command, next time.Time, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	next = now.Add(time.Hour)
	due := false
	for l, kept := range k.kept {
		if kept.over != nil && kept.over(now) {
			delete(k.kept, l)
			continue
		}
		due = due || (!kept.renewing && !kept.due.After(now))
	}
	for l, kept := range k.kept {
		if due && !kept.renewing && !kept.due.Add(-l.span()*renewWith/100).After(now) {
			kept.renewing = true
			commands = append(commands, k.renewal(l))
		}
		if !kept.renewing && kept.due.Before(next) {
			next = kept.due
		}
	}
	k.running = len(k.kept) > 0
	k.next = next
	return commands, next, k.running
}

func (l *Lease) span() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// renewal returns a command that renews a lease and tells the keeper what it came to.
func (k *keeper) renewal(l *Lease) *command {
	cmd := l.renewal(0)
	cmd.then = func(cmd *command) {
		if cmd.err == nil {
			l.prolong(cmd)
		}
		l.learn(cmd.err)
		k.renewed(l)
	}
	return cmd
}

// renewed sets when a lease is due again. After a failure that is soon, and then it ends at its deadline.
func (k *keeper) renewed(l *Lease) {
	l.mu.Lock()
	due := l.dueLocked()
	l.mu.Unlock()
	k.mu.Lock()
	if kept := k.kept[l]; kept != nil {
		kept.renewing = false
		if soon := time.Now().Add(longestBackoff); due.Before(soon) {
			due = soon
		}
		kept.due = due
	}
	k.mu.Unlock()
	k.nudge()
}
