package rpc

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// watchPath serves Watch as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), for tools that know HTTP
// only. An event's name is its kind, its data the Event as JSON. The last event of an index has the index as its id, so that
// Last-Event-ID resumes after it. A bookmark is only an id, which readers store and do not show.
const watchPath = "/watch"

// reconnectAfter is how long a reader waits before it connects again.
const reconnectAfter = time.Second

// Names of events that do not come from the log. Their data is an ErrorInfo.
const (
	// eventCompacted says that events before the following ones are missing: the reader must read the state.
	eventCompacted = "compacted"
	// eventEnded is the last event: why the stream ends.
	eventEnded = "ended"
)

// serveWatch is Watch for GET.
func (s *Server) serveWatch(w http.ResponseWriter, r *http.Request) {
	started, known := time.Now(), requestOf(r.Context())
	known.room.giveBack() // the whole request has been read
	err := s.watchEvents(w, r, known)
	s.metrics.call(quotav1connect.QuotaServiceWatchProcedure, err, time.Since(started))
}

func (s *Server) watchEvents(w http.ResponseWriter, r *http.Request, known *request) error {
	req, err := watchRequest(r)
	if err == nil {
		err = known.who.may(VerbRead)
	}
	if err == nil {
		if wrong := validate(req); wrong != nil {
			err = wrong
		}
	}
	if err != nil {
		_ = s.errors.Write(w, r, err)
		return err
	}
	events := &eventStream{to: w, flusher: http.NewResponseController(w)}
	subscription, err := s.node.Watch(req.FromIndex)
	compacted := infoOf(apiError(err))
	if compacted.GetReason() == quotav1.Reason_REASON_COMPACTED {
		// A refused reader retries the same index, again and again. So it gets an event about it, and continues from now.
		subscription, err = s.node.Watch(0)
	}
	if err != nil {
		err = apiError(err)
		_ = s.errors.Write(w, r, err)
		return err
	}
	defer subscription.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	fmt.Fprintf(&events.next, "retry: %d\n\n", reconnectAfter.Milliseconds())
	if compacted != nil {
		events.add("", eventCompacted, compacted)
	}
	if err := events.flush(); err != nil {
		return err
	}
	err = s.tell(r.Context(), &watching{r: known, send: events.send, sent: time.Now()}, req, subscription)
	if info := infoOf(err); info != nil {
		events.add("", eventEnded, info)
		_ = events.flush() // the caller may be gone
	}
	return err
}

// watchRequest reads the request from a query, and the index where a reconnecting reader resumes.
func watchRequest(r *http.Request) (*quotav1.WatchRequest, error) {
	query, err := queryOf(r, "quota_prefix", "holder", "from_index")
	if err != nil {
		return nil, err
	}
	req := &quotav1.WatchRequest{QuotaPrefix: query.Get("quota_prefix"), Holder: query.Get("holder")}
	if from := query.Get("from_index"); from != "" {
		if req.FromIndex, err = strconv.ParseUint(from, 10, 64); err != nil {
			return nil, invalid("from_index", "must be an index", "use the index of your last event, plus 1")
		}
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		index, err := strconv.ParseUint(last, 10, 63)
		if err != nil {
			return nil, invalid("Last-Event-ID", "must be an index", "send the id of your last event unchanged")
		}
		req.FromIndex = index + 1
	}
	return req, nil
}

// keptEvents bounds the memory that a stream keeps between two writes, in bytes.
const keptEvents = 64 << 10

// eventStream writes server-sent events.
type eventStream struct {
	to      http.ResponseWriter
	flusher *http.ResponseController
	// next is what the next flush writes.
	next bytes.Buffer
}

// send writes the events of an index, or a bookmark.
func (e *eventStream) send(res *quotav1.WatchResponse) error {
	id := strconv.FormatUint(res.GetMeta().GetIndex(), 10)
	for i, event := range res.GetEvents() {
		last := ""
		if i == len(res.Events)-1 && !res.More {
			last = id
		}
		e.add(last, eventName(event.Kind), event)
	}
	if len(res.GetEvents()) == 0 {
		fmt.Fprintf(&e.next, "id: %s\n\n", id)
	}
	return e.flush()
}

// eventName returns a kind's name without its prefix, in lower case.
func eventName(kind quotav1.EventKind) string {
	return strings.ToLower(strings.TrimPrefix(kind.String(), "EVENT_KIND_"))
}

// add appends an event, without an id if that is empty.
func (e *eventStream) add(id, name string, message proto.Message) {
	data, err := protojson.Marshal(message)
	if err != nil {
		return // cannot happen: names and numbers are quotad's own
	}
	if id != "" {
		fmt.Fprintf(&e.next, "id: %s\n", id)
	}
	fmt.Fprintf(&e.next, "event: %s\ndata: %s\n\n", name, data) // JSON on one line
}

func (e *eventStream) flush() error {
	_, err := e.next.WriteTo(e.to)
	if e.next.Cap() > keptEvents {
		e.next = bytes.Buffer{}
	}
	if err != nil {
		return err
	}
	return e.flusher.Flush()
}
