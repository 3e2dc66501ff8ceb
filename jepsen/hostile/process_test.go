package hostile

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// crowded is a node that refuses streams, watchers of health and sessions. It ends the attack at the first session.
type crowded struct {
	budgeted

	streams, watchers atomic.Int64
	// before are the refused streams and watchers before the first session.
	before [2]int64
	end    func()
}

// OpenSession implements QuotaService.
func (c *crowded) OpenSession(ctx context.Context, request *quotav1.OpenSessionRequest) (*quotav1.OpenSessionResponse, error) {
	c.end()
	return c.budgeted.OpenSession(ctx, request)
}

// Watch implements QuotaService.
func (c *crowded) Watch(
	ctx context.Context, request *quotav1.WatchRequest, stream *connect.ServerStream[quotav1.WatchResponse],
) error {
	c.streams.Add(1)
	return c.budgeted.Watch(ctx, request, stream)
}

// TestSpec_CrowdComesFirst: an attack with a First crowd begins with the rest only when the node has refused more streams and watchers, and
// does so before its time for the crowd is over.
func TestSpec_CrowdComesFirst(t *testing.T) {
	ctx, end := context.WithTimeout(t.Context(), Crowding/2)
	defer end()
	var ended atomic.Bool
	node := &crowded{}
	node.end = func() {
		if ended.CompareAndSwap(false, true) {
			node.before = [2]int64{node.streams.Load(), node.watchers.Load()}
			end()
		}
	}
	mux := http.NewServeMux()
	path, handler := quotav1connect.NewQuotaServiceHandler(node)
	mux.Handle(path, handler)
	const watch = "/grpc.health.v1.Health/Watch"
	mux.Handle(watch, connect.NewServerStreamHandler(watch,
		func(context.Context, *connect.Request[emptypb.Empty], *connect.ServerStream[emptypb.Empty]) error {
			node.watchers.Add(1)
			return full("watchers")
		}))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	spec := Spec{
		Nodes: []Node{{Name: "n", API: server.Listener.Addr().String()}}, Crowd: Crowd{Silent: 1, Streams: 1, Watchers: 1},
		First: &Crowd{Silent: 4, Streams: 8, Watchers: 8},
	}
	report := spec.attack(ctx)
	if !ended.Load() || node.before[0] == 0 || node.before[1] == 0 {
		t.Errorf("a session was asked for: %t, after %d refused streams and watchers", ended.Load(), node.before)
	}
	if report.Budgets["streams"] == 0 || report.Budgets["watchers"] == 0 || report.Streams != 8 || report.Watchers != 8 {
		t.Errorf("the report: %+v", report)
	}
}
