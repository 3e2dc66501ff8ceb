package client

import (
	"errors"
	"slices"
	"time"
)

// Amounts of a window that a lease holds end with the window, while the lease lives on (docs/consistency.md, 6). The
// holder learns of it from the time in the grant, from each renewal, and from the answer to a Consume. So it can take a
// new lease before it needs the amount.

// ItemClosed returns a channel that is closed once an item of the lease is void because its window has closed, or the lease has ended.
// From then on a Consume without items fails with [ReasonItemClosed]; reserve again, or name the remaining items.
func (l *Lease) ItemClosed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closedByTimeLocked()
	if l.cause == nil && !l.anyClosed && l.itemTimer == nil {
		if next, ok := l.nextItemEndLocked(); ok {
			l.itemTimer = time.AfterFunc(next, l.itemsEnd)
		}
	}
	return l.itemClosed
}

// ClosedItems returns the quotas whose items of the lease are void because their windows have closed.
func (l *Lease) ClosedItems() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closedByTimeLocked()
	return slices.Clone(l.closed)
}

// itemEnd is the end of an item that ends before its lease.
type itemEnd struct {
	quota string
	at    moment
}

// closeItems records that items have closed. Amounts that the first operation consumed are no longer held.
func (l *Lease) closeItems(quotas ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, quota := range quotas {
		l.closeItemLocked(quota)
	}
}

func (l *Lease) closeItemLocked(quota string) {
	if quota != "" && !slices.Contains(l.closed, quota) {
		l.closed = append(l.closed, quota)
	}
	l.tellClosedLocked()
}

// tellClosedLocked closes the channel, once.
func (l *Lease) tellClosedLocked() {
	if !l.anyClosed {
		l.anyClosed = true
		close(l.itemClosed)
	}
}

// closedByTimeLocked records the items whose end has passed.
func (l *Lease) closedByTimeLocked() {
	now := time.Now()
	for _, end := range l.itemEnds {
		if end.at.left(now, l.client.wall()) <= 0 {
			l.closeItemLocked(end.quota)
		}
	}
}

// nextItemEndLocked returns the time until the next item ends, among the ends that the grant named.
func (l *Lease) nextItemEndLocked() (next time.Duration, ok bool) {
	now := time.Now()
	for _, end := range l.itemEnds {
		if left := end.at.left(now, l.client.wall()); !slices.Contains(l.closed, end.quota) && (!ok || left < next) {
			next, ok = left, true
		}
	}
	return min(max(next, time.Millisecond), longestNap), ok
}

// itemsEnd checks whether an item has ended, and reschedules itself if none has.
func (l *Lease) itemsEnd() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return
	}
	l.closedByTimeLocked()
	if next, ok := l.nextItemEndLocked(); ok && !l.anyClosed {
		l.itemTimer.Reset(next)
	}
}

// closedItemOf returns the quota whose item has closed, according to the cluster's error.
func closedItemOf(err error) (quota string, ok bool) {
	failed, isRequest := errors.AsType[*RequestError](err)
	if !isRequest || failed.Reason != ReasonItemClosed {
		return "", false
	}
	return failed.Quota, true
}
