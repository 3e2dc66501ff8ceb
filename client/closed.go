package client

import (
	"errors"
	"slices"
	"time"
)

// What a lease holds of a window ends with the window, while the lease lives on (docs/consistency.md, 6). The holder is
// told, so that it takes a new lease before it needs what is gone: by the time that the grant named, by each renewal, and by
// the cluster's answer to a Consume.

// ItemClosed returns a channel that is closed when something that the lease held is void, because its window has closed,
// or when the lease has ended. A Consume without items fails from then on with [ReasonItemClosed]; reserve again, or name the items
// that are left.
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

// ClosedItems returns the quotas of which the lease held something that is void now, because its window has closed.
func (l *Lease) ClosedItems() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closedByTimeLocked()
	return slices.Clone(l.closed)
}

// itemEnd is when an item ends that does not last as long as its lease.
type itemEnd struct {
	quota string
	at    moment
}

// closeItems notes that items have closed. What the first operation consumed is held no more.
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

// closedByTimeLocked notes the items whose time is up.
func (l *Lease) closedByTimeLocked() {
	now := time.Now()
	for _, end := range l.itemEnds {
		if end.at.left(now, l.client.wall()) <= 0 {
			l.closeItemLocked(end.quota)
		}
	}
}

// nextItemEndLocked returns in how long the next item ends, as far as the grant said.
func (l *Lease) nextItemEndLocked() (next time.Duration, ok bool) {
	now := time.Now()
	for _, end := range l.itemEnds {
		if left := end.at.left(now, l.client.wall()); !slices.Contains(l.closed, end.quota) && (!ok || left < next) {
			next, ok = left, true
		}
	}
	return min(max(next, time.Millisecond), longestNap), ok
}

// itemsEnd looks whether an item's time is up, and looks again later where it is not.
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

// closedItemOf returns the quota of which the cluster says that its item has closed.
func closedItemOf(err error) (quota string, ok bool) {
	failed, isRequest := errors.AsType[*RequestError](err)
	if !isRequest || failed.Reason != ReasonItemClosed {
		return "", false
	}
	return failed.Quota, true
}
