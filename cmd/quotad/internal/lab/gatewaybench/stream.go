package gatewaybench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
)

// streamID is the query parameter with the id of a stream.
const streamID = "stream"

// event is one event of a chat's stream.
const event = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word word\"}}]}\n\n"

// asking returns the body of a request to a model for a stream.
func asking(model string) []byte {
	return []byte(`{"model":"` + model + `","max_tokens":100,"stream":true,"messages":[]}`)
}

// events are the provider's streams. The provider sends an event on each request for one.
type events struct {
	ctx  context.Context
	stop context.CancelFunc
	next atomic.Int64

	mu   sync.Mutex
	asks map[string]chan struct{}
}

func newEvents() *events {
	ctx, stop := context.WithCancel(context.Background())
	return &events{ctx: ctx, stop: stop, asks: map[string]chan struct{}{}}
}

// add returns a new stream's id, and the channel that requests its events.
func (e *events) add() (id string, ask chan struct{}) {
	id, ask = strconv.FormatInt(e.next.Add(1), 10), make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asks[id] = ask
	return id, ask
}

// serve sends events until the client leaves.
func (e *events) serve(w http.ResponseWriter, r *http.Request, id string) {
	e.mu.Lock()
	ask := e.asks[id]
	e.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	for control.Flush() == nil {
		select {
		case <-ask:
			_, _ = io.WriteString(w, event)
		case <-r.Context().Done():
			return
		case <-e.ctx.Done():
			return
		}
	}
}

// streams are the streams of one path. Each carries one event at a time.
type streams struct {
	events  *events
	through *http.Client
	at      string
	body    []byte
	// idle has the streams without an event in flight; nil: one to open.
	idle chan *stream
}

type stream struct {
	ask chan struct{}
	in  *bufio.Reader
}

func newStreams(e *events, through *http.Client, at string, body []byte) *streams {
	s := &streams{events: e, through: through, at: at, body: body, idle: make(chan *stream, callers)}
	for range callers {
		s.idle <- nil
	}
	return s
}

// event makes the provider send an event on an idle stream, and reads it.
func (s *streams) event(ctx context.Context) error {
	var on *stream
	select {
	case on = <-s.idle:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { s.idle <- on }()
	if on == nil {
		opened, err := s.open()
		if err != nil {
			return err
		}
		on = opened
	}
	select {
	case on.ask <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for range 2 { // the event's line and an empty one
		if _, err := on.in.ReadSlice('\n'); err != nil {
			return fmt.Errorf("%s: a stream broke off: %w", s.at, err)
		}
	}
	return nil
}

// open opens a stream, which outlives the call that opened it.
func (s *streams) open() (*stream, error) {
	id, ask := s.events.add()
	r, err := newCall(s.events.ctx, http.MethodPost, s.at+"?"+streamID+"="+id, s.body)
	if err != nil {
		return nil, err
	}
	response, err := s.through.Do(r) //nolint:bodyclose // it ends with the provider's streams
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", s.at, response.Status)
	}
	return &stream{ask, bufio.NewReader(response.Body)}, nil
}
