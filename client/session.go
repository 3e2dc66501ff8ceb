package client

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	// sessionSpan is how far a session's numbers may run ahead of its oldest unfinished request. The cluster keeps at most 16,384
	// results of a session; half of that leaves room for requests in flight.
	sessionSpan = 8_192
	// maxSessions bounds the sessions of one client. It needs more than one only if requests wait for long while thousands of later
	// ones finish.
	maxSessions = 16
)

// session numbers requests, so that the cluster carries each out once however often it is sent.
type session struct {
	id uint64
	// next is the next number, low the lowest unfinished one.
	next, low uint64
	// finished has the finished numbers above low.
	finished map[uint64]struct{}
}

// finish records that a number will never be sent again.
func (s *session) finish(seq uint64) {
	if seq != s.low {
		s.finished[seq] = struct{}{}
		return
	}
	for s.low++; ; s.low++ {
		if _, ok := s.finished[s.low]; !ok {
			return
		}
		delete(s.finished, s.low)
	}
}

// sessions are a client's sessions. The first is opened with the first request.
type sessions struct {
	// opening is held by the goroutine that opens a session.
	opening chan struct{}

	mu   sync.Mutex
	open []*session
}

func newSessions() *sessions { return &sessions{opening: make(chan struct{}, 1)} }

// number gives every command of a batch its request id, and opens a session if none has room.
func (s *sessions) number(ctx context.Context, batch []*command, open func(context.Context) (uint64, error)) error {
	for {
		if s.numberOpen(batch) {
			return nil
		}
		if err := s.add(ctx, open); err != nil {
			return err
		}
	}
}

// numberOpen numbers as many commands as have room, and reports whether those were all.
func (s *sessions) numberOpen(batch []*command) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range batch {
		if cmd.session != nil {
			continue
		}
		room := s.withRoomLocked()
		if room == nil {
			return false
		}
		cmd.session, cmd.seq = room, room.next
		room.next++
		cmd.identify(&quotav1.RequestId{Session: room.id, Seq: cmd.seq, AckedBelow: room.low})
	}
	return true
}

func (s *sessions) withRoomLocked() *session {
	for _, open := range s.open {
		if open.next-open.low < sessionSpan {
			return open
		}
	}
	return nil
}

// add opens a session, unless another goroutine just did.
func (s *sessions) add(ctx context.Context, open func(context.Context) (uint64, error)) error {
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return &NotAcceptedError{Err: context.Cause(ctx)}
	}
	s.mu.Lock()
	room, count := s.withRoomLocked(), len(s.open)
	s.mu.Unlock()
	if room != nil {
		return nil
	}
	if count >= maxSessions {
		return &NotAcceptedError{Reason: ReasonTooManyInFlight, Err: ReasonTooManyInFlight}
	}
	id, err := open(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.open = append(s.open, &session{id: id, next: 1, low: 1, finished: map[uint64]struct{}{}})
	s.mu.Unlock()
	return nil
}

// finish records that a command will never be sent again.
func (s *sessions) finish(cmd *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cmd.session != nil {
		cmd.session.finish(cmd.seq)
	}
}

// forget drops a session that the cluster no longer knows.
func (s *sessions) forget(gone *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, open := range s.open {
		if open == gone {
			s.open = append(s.open[:i], s.open[i+1:]...)
			return
		}
	}
}

// drain removes all sessions and returns their ids.
func (s *sessions) drain() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uint64
	for _, open := range s.open {
		ids = append(ids, open.id)
	}
	s.open = nil
	return ids
}

// identify sets the command's request id. It copies a numbered message first: an abandoned attempt may still be encoding the old one.
func (cmd *command) identify(id *quotav1.RequestId) {
	if cmd.numbered {
		cmd.pb = proto.CloneOf(cmd.pb)
	}
	cmd.numbered, cmd.id = true, id
	switch kind := cmd.pb.GetKind().(type) {
	case *quotav1.Command_Reserve:
		kind.Reserve.RequestId = id
	case *quotav1.Command_Consume:
		kind.Consume.RequestId = id
	case *quotav1.Command_Settle:
		kind.Settle.RequestId = id
	case *quotav1.Command_Release:
		kind.Release.RequestId = id
	case *quotav1.Command_Renew:
		kind.Renew.RequestId = id
	case *quotav1.Command_Withdraw:
		kind.Withdraw.RequestId = id
	case *quotav1.Command_Report:
		kind.Report.RequestId = id
	}
}
