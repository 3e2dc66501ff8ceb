package rpc

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/raftnode/loopback/deadpeer"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestForward_EndsWhereTheLeaderVanishes: a call was forwarded to a node that sends nothing any more, not even the end of its
// connections. It ends by a ping, long before its deadline. A call at a node that answers pings waits until its deadline.
func TestForward_EndsWhereTheLeaderVanishes(t *testing.T) {
	for name, vanishes := range map[string]bool{"it vanishes": true, "it is slow": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, received := deadpeer.New(), make(chan struct{})
				server := NewHTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					close(received)
					<-r.Context().Done()
				}), nil, hclog.NewNullLogger())
				go func() { _ = server.Serve(network) }()
				defer func() { _ = server.Close() }()
				transport := peerTransport(&apiDialer{})
				transport.DialContext = network.Dial
				defer transport.CloseIdleConnections()
				there := (&leaders{http: &http.Client{Transport: transport}, of: map[string]leader{}}).at("leader")
				ctx, cancel := context.WithTimeout(t.Context(), maxCall)
				defer cancel()
				ended := make(chan error)
				go func() {
					_, err := there.Reserve(ctx, &quotav1.ReserveRequest{})
					ended <- err
				}()
				<-received
				began := time.Now()
				if vanishes {
					network.Vanish()
				}
				err := <-ended
				switch took := time.Since(began); {
				case err == nil:
					t.Error("it was answered")
				case vanishes && (ctx.Err() != nil || took > pingAfter+pingWithin):
					t.Errorf("it ended after %v: %v", took, err)
				case !vanishes && !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("it ended after %v, before it had to: %v", took, err)
				}
			})
		})
	}
}
