package rpc

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errLeaderReplaced ends a forwarded call whose leader has been replaced.
var errLeaderReplaced = errors.New("the leader changed, and the old leader did not answer the call")

const (
	// pollLeader is how often to check for a new leader, while calls are forwarded.
	pollLeader = 50 * time.Millisecond
	// replacedGrace is how long a replaced leader may take to answer the calls that it has. After a transfer of leadership it is about to
	// answer; a stopped one never does.
	replacedGrace = 250 * time.Millisecond
)

// followers are forwarded calls, by the leader that has them. They end when that leader is replaced: the deadline of a call can be
// minutes away, and nothing else shows that a leader is stopped or cut off.
type followers struct {
	// leader returns the node that leads, "" if none is known.
	leader func() string

	mu sync.Mutex
	of map[string]*followed
	// looking is set while a goroutine checks for a new leader.
	looking bool
}

// followed are the calls that one leader has.
type followed struct {
	calls map[*context.CancelCauseFunc]struct{}
	// since is when another leader was first seen; zero while this one leads, or none is known.
	since time.Time
}

func newFollowers(leader func() string) *followers {
	return &followers{leader: leader, of: map[string]*followed{}}
}

// follow returns a context for a call that is forwarded to a leader; release ends it. Its cause is errLeaderReplaced if another node
// leads and the call was not answered.
func (f *followers) follow(ctx context.Context, leader string) (followed context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f.add(leader, &cancel)
	return ctx, func() {
		f.remove(leader, &cancel)
		cancel(nil)
	}
}

func (f *followers) add(leader string, call *context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of[leader] == nil {
		f.of[leader] = &followed{calls: map[*context.CancelCauseFunc]struct{}{}}
	}
	f.of[leader].calls[call] = struct{}{}
	if !f.looking {
		f.looking = true
		go f.poll()
	}
}

func (f *followers) remove(leader string, call *context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.of[leader]; of != nil {
		if delete(of.calls, call); len(of.calls) == 0 {
			delete(f.of, leader)
		}
	}
}

// poll checks for a new leader for as long as there are calls.
func (f *followers) poll() {
	ticker := time.NewTicker(pollLeader)
	defer ticker.Stop()
	for range ticker.C {
		if !f.endReplaced(f.leader(), time.Now()) {
			return
		}
	}
}

// endReplaced ends the calls of replaced leaders. It returns false once no calls are left, which ends look.
func (f *followers) endReplaced(leader string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, of := range f.of {
		switch {
		case leader == id, leader == "":
			of.since = time.Time{}
		case of.since.IsZero():
			of.since = now
		case now.Sub(of.since) >= replacedGrace:
			for call := range of.calls {
				(*call)(errLeaderReplaced)
			}
			delete(f.of, id)
		}
	}
	f.looking = len(f.of) > 0
	return f.looking
}
