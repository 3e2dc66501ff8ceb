package rpc

import (
	"testing"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/quotav1"
)

// sending is a stream that only counts what is sent.
type sending struct {
	connect.StreamingHandlerConn
	kind connect.StreamType
	sent int
}

func (s *sending) Spec() connect.Spec { return connect.Spec{StreamType: s.kind} }

func (s *sending) Send(any) error {
	s.sent++
	return nil
}

// TestSend_WhereThereIsNoRoom: without room, a message of a server stream is refused. The answer to a client stream, such as a Restore
// that took effect, is sent all the same. Nothing stays taken.
func TestSend_WhereThereIsNoRoom(t *testing.T) {
	for _, kind := range []connect.StreamType{connect.StreamTypeServer, connect.StreamTypeClient} {
		want := 0
		if kind == connect.StreamTypeClient {
			want = 1
		}
		from := budget.New("request_bytes", 1, 0, 1)
		stream := &sending{kind: kind}
		room := &requestBytes{from: from, account: "a", refused: func(e *budget.FullError) error { return e }}
		err := decodingConn{stream, room}.Send(&quotav1.RestoreResponse{Epoch: 1 << 20})
		if stream.sent != want || (err == nil) != (want == 1) {
			t.Errorf("stream type %d: %d sent, %v", kind, stream.sent, err)
		}
		if used, callers := from.InUse(); used != 0 || callers != 0 {
			t.Errorf("stream type %d: %d stay taken by %d", kind, used, callers)
		}
	}
}
