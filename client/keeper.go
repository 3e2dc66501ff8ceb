package client

import (
	"sync"
	"time"
)

const (
	// renewAt is the share of a lease, in percent, after which to renew it: a lease of 5 min every 2 min.
	renewAt = 40
	// renewWith is the share, in percent, by which other leases are renewed early, together with a due one.
	renewWith = 25
)

// keeper renews leases that are kept alive. It renews all that are nearly due in one batch.
type keeper struct {
	client *Client
	wake   chan struct{}

	mu   sync.Mutex
	kept map[*Lease]*keeping
	// next is when the keeper checks its leases again; only an earlier due time has to wake it.
	next    time.Time
	running bool
	stopped bool
}

// keeping is the state of one lease that is kept alive.
type keeping struct {
	due time.Time
	// over reports whether the lease is no longer needed; nil: it is kept until it ends.
	over func(now time.Time) bool
	// renewing: a renewal is in flight.
	renewing bool
}

func newKeeper(c *Client) *keeper {
	return &keeper{client: c, wake: make(chan struct{}, 1), kept: map[*Lease]*keeping{}}
}

// keep renews a lease until over returns true or the lease ends. over is called under the keeper's lock.
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

// dueLocked returns when to renew the lease.
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

// run renews due leases until no lease is kept.
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

// collect returns renewals of all leases that are due or nearly due, if at least one is due, and when the next one will be. more is
// false when no lease is kept: the keeper has ended.
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

// renewal returns a command that renews a lease and informs the keeper of its outcome.
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

// renewed sets when a lease is due again: soon after a failure. A lease that cannot be renewed ends at its deadline.
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
