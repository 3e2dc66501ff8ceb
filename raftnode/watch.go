package raftnode

import (
	"context"
	"sync"
	"time"

	"github.com/quotad/quotad/fsm"
)

// bookmarkEvery is how often a watcher hears how far the log is when nothing happens. Where the log stands still too, it
// hears so every quietBookmarks-th time, and so knows that its stream lives.
const (
	bookmarkEvery  = time.Second
	quietBookmarks = 10
)

// maxBehind is how many entries a watcher may be behind before it is cut off; it is bounded by the ring anyway.
const maxBehind = 16_384

// maxEvents bounds the events that are kept in all, beside the number of their entries: an entry of a full batch has thousands.
// About 50 MB.
const maxEvents = 1 << 18

// happened is what an entry made happen.
type happened struct {
	at     Position
	events []fsm.Event
}

// hub keeps the events of recent entries in a ring, from which watchers read at their own pace.
type hub struct {
	mu   sync.Mutex
	ring []happened
	// first is the sequence number of the oldest entry kept, next that of the next one. Who has not come to replaced
	// would miss what the last snapshot holds.
	first, next, replaced uint64
	// events counts what is in the ring.
	events int
	// from is the lowest index whose events are kept or yet to come; last is the last index seen.
	from, last uint64
	at         Position
	changed    chan struct{}
	closed     bool
}

func newHub(entries int) *hub {
	return &hub{ring: make([]happened, max(entries, 16)), changed: make(chan struct{})}
}

// publish adds an entry's events.
func (h *hub) publish(applied *fsm.Applied) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := Position{Term: applied.Term, Index: applied.Index, ClusterTime: applied.Clock.Now}
	if h.from == 0 {
		h.from = applied.Index
	}
	h.last, h.at = applied.Index, at
	if len(applied.Events) == 0 {
		return
	}
	h.events += len(applied.Events)
	for h.next-h.first == uint64(len(h.ring)) || h.events > maxEvents && h.first < h.next {
		h.dropOldest()
	}
	h.ring[h.next%uint64(len(h.ring))] = happened{at: at, events: applied.Events}
	h.next++
	h.wakeLocked()
}

// dropOldest forgets the oldest entry's events.
func (h *hub) dropOldest() {
	oldest := &h.ring[h.first%uint64(len(h.ring))]
	h.from = oldest.at.Index + 1
	h.events -= len(oldest.events)
	oldest.events = nil
	h.first++
}

func (h *hub) wakeLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// reset forgets everything: the state was replaced by a snapshot up to an index. All who watch end: what happened
// between their place and the snapshot's is not known here.
func (h *hub) reset(index uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.first < h.next {
		h.dropOldest()
	}
	h.next++
	h.first, h.replaced, h.from, h.last = h.next, h.next, index+1, index
	h.wakeLocked()
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.wakeLocked()
}

// Watch subscribes to events from an index on (0: from the next entry). A *CompactedError: they are gone.
func (n *Node) Watch(from uint64) (*Subscription, error) {
	h := n.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &Subscription{h: h, sequence: h.next, sent: h.last}
	switch {
	case from == 0 || from > h.last:
		s.notBefore = from
		return s, nil
	case from < h.from:
		return nil, &CompactedError{Oldest: h.from}
	}
	s.sent = from - 1
	for s.sequence = h.first; s.sequence < h.next && h.ring[s.sequence%uint64(len(h.ring))].at.Index < from; {
		s.sequence++
	}
	return s, nil
}

// Subscription is a stream of events, entry by entry, nothing missing.
type Subscription struct {
	h         *hub
	sequence  uint64
	sent      uint64
	notBefore uint64
	closed    bool
}

// Next returns the next entry's events (possibly none: a bookmark, everything up to its position has been sent).
// ErrSlowWatcher: the reader is too far behind. A *CompactedError: a snapshot took the place of what comes next.
// ErrWatchEnded: the node stops, or Close was called.
func (s *Subscription) Next(ctx context.Context) (Position, []fsm.Event, error) {
	timer := time.NewTimer(bookmarkEvery)
	defer timer.Stop()
	for quiet := 1; ; {
		s.h.mu.Lock()
		if s.h.closed || s.closed {
			s.h.mu.Unlock()
			return Position{}, nil, ErrWatchEnded
		}
		if s.sequence < s.h.replaced {
			oldest := s.h.from
			s.h.mu.Unlock()
			return Position{}, nil, &CompactedError{Oldest: oldest}
		}
		if s.sequence < s.h.first || s.h.next-s.sequence > maxBehind {
			s.h.mu.Unlock()
			return Position{}, nil, ErrSlowWatcher
		}
		for s.sequence < s.h.next {
			entry := s.h.ring[s.sequence%uint64(len(s.h.ring))]
			s.sequence++
			if entry.at.Index < s.notBefore {
				continue
			}
			s.sent = entry.at.Index
			s.h.mu.Unlock()
			return entry.at, entry.events, nil
		}
		changed, at := s.h.changed, s.h.at
		s.h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Position{}, nil, ctx.Err()
		case <-timer.C:
			if (at.Index > s.sent || quiet == quietBookmarks) && at.Index >= s.notBefore {
				s.sent = at.Index
				return at, nil, nil
			}
			quiet++
			timer.Reset(bookmarkEvery)
		}
	}
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.closed = true
}
