package rpc

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestEventStream_KeepsNoLargeBuffer: the buffer of one large message is not kept while the stream is open.
func TestEventStream_KeepsNoLargeBuffer(t *testing.T) {
	to := httptest.NewRecorder()
	e := &eventStream{to: to, flusher: http.NewResponseController(to)}
	send := func(events int) {
		t.Helper()
		res := &quotav1.WatchResponse{Meta: &quotav1.Meta{Index: 7}}
		for range events {
			res.Events = append(res.Events, &quotav1.Event{Holder: strings.Repeat("h", 1000)})
		}
		if err := e.send(res); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	if e.next.Cap() == 0 {
		t.Error("a small buffer is allocated again for each event")
	}
	send(1000)
	if kept := e.next.Cap(); kept > keptEvents {
		t.Errorf("%d bytes are kept", kept)
	}
	if got := strings.Count(to.Body.String(), "event: "); got != 1001 {
		t.Errorf("%d events were written", got)
	}
}
