package raftnode

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
)

// bookmarkEvery is how often a watcher without events gets a bookmark with the log's position. If the log does not advance either, it gets
// only every quietBookmarks-th one, as a sign that the stream is alive.
const (
	bookmarkEvery  = time.Second
	quietBookmarks = 10
)

// maxPacked bounds the bytes of all kept events except those of the last entry, in addition to the bound on entries: a full batch has
// thousands of events, of 30 to 100 bytes each if names are short.
const maxPacked = 32 << 20

// maxSpare bounds the packing buffer that is kept for the next entry; usual entries need less.
const maxSpare = 1 << 20

// happened has the events of one entry.
type happened struct {
	at Position
	// count is the number of packed events.
	count  int
	packed packed
}

// hub keeps the events of recent entries in a ring, from which watchers read at their own pace.
type hub struct {
	mu   sync.Mutex
	ring []happened
	// first is the sequence number of the oldest kept entry, next that of the next one. A subscription at a sequence below replaced would miss
	// what the last snapshot covers.
	first, next, replaced uint64
	// bytes is the size of all events in the ring, mostBytes its bound, which excludes the last entry.
	bytes, mostBytes int
	// packing is a buffer for events being packed. Only publish uses it, without the lock.
	packing packed
	// from is the lowest index whose events are kept or still to come; last is the newest index seen.
	from, last uint64
	at         Position
	changed    chan struct{}
	closed     bool
	// latest is the last unpacked entry: most watchers read the same one.
	latest atomic.Pointer[unpacked]
}

// unpacked has an entry's events, shared by its watchers.
type unpacked struct {
	sequence uint64
	events   []effect.Event
}

func newHub(entries int) *hub {
	return &hub{ring: make([]happened, max(entries, 16)), mostBytes: maxPacked, changed: make(chan struct{})}
}

// publish adds an entry's events. Calls must not overlap.
func (h *hub) publish(applied *fsm.Applied) {
	if h.packing = h.packing[:0]; cap(h.packing) > maxSpare {
		h.packing = nil
	}
	for i := range applied.Events {
		h.packing = h.packing.add(&applied.Events[i])
	}
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
	h.bytes += len(h.packing)
	for h.next-h.first == uint64(len(h.ring)) || h.bytes > h.mostBytes && h.first < h.next {
		h.dropOldest()
	}
	h.ring[h.next%uint64(len(h.ring))] = happened{at: at, count: len(applied.Events), packed: bytes.Clone(h.packing)}
	h.next++
	h.wakeLocked()
}

// dropOldest drops the oldest entry's events.
func (h *hub) dropOldest() {
	oldest := &h.ring[h.first%uint64(len(h.ring))]
	h.from = oldest.at.Index + 1
	h.bytes -= len(oldest.packed)
	oldest.packed = nil
	h.first++
}

func (h *hub) wakeLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// reset drops all events: a snapshot at a position replaced the state. All subscriptions end: the events between their position and the
// snapshot's are not known here.
func (h *hub) reset(at Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.first < h.next {
		h.dropOldest()
	}
	h.next++
	h.first, h.replaced, h.from, h.last, h.at = h.next, h.next, at.Index+1, at.Index, at
	h.wakeLocked()
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.wakeLocked()
}

// Watch subscribes to events from an index on (0: from the next entry). *CompactedError: those events are no longer kept.
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

// Subscription is a stream of events, entry by entry, without gaps.
type Subscription struct {
	h         *hub
	sequence  uint64
	sent      uint64
	notBefore uint64
	closed    bool
}

// Next returns the next entry's events, without final results. An empty list is a bookmark: all events up to its position were sent.
// Watchers share the list, so the caller must not change it. ErrSlowWatcher: the reader is too far behind. *CompactedError: a snapshot
// replaced the next events. ErrWatchEnded: the node stops, or Close was called.
func (s *Subscription) Next(ctx context.Context) (Position, []effect.Event, error) {
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
		if s.sequence < s.h.first {
			s.h.mu.Unlock()
			return Position{}, nil, ErrSlowWatcher
		}
		for s.sequence < s.h.next {
			entry, sequence := s.h.ring[s.sequence%uint64(len(s.h.ring))], s.sequence
			s.sequence++
			if entry.at.Index < s.notBefore {
				continue
			}
			s.sent = entry.at.Index
			s.h.mu.Unlock()
			return entry.at, s.h.unpack(sequence, &entry), nil
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

// More tells whether the next entry's events are available now.
func (s *Subscription) More() bool {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return s.sequence < s.h.next
}

// unpack returns an entry's events.
func (h *hub) unpack(sequence uint64, entry *happened) []effect.Event {
	latest := h.latest.Load()
	if latest == nil || latest.sequence != sequence {
		latest = &unpacked{sequence: sequence, events: entry.packed.unpack(entry.count)}
		h.latest.Store(latest)
	}
	return latest.events
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.closed = true
}
