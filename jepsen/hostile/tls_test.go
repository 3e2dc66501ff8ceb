package hostile

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// budgeted refuses all sessions and streams for a budget.
type budgeted struct {
	quotav1connect.UnimplementedQuotaServiceHandler
}

// OpenSession implements QuotaService.
func (budgeted) OpenSession(context.Context, *quotav1.OpenSessionRequest) (*quotav1.OpenSessionResponse, error) {
	return nil, full("sessions")
}

// Watch implements QuotaService.
func (budgeted) Watch(context.Context, *quotav1.WatchRequest, *connect.ServerStream[quotav1.WatchResponse]) error {
	return full("streams")
}

func full(budget string) error {
	err := connect.NewError(connect.CodeResourceExhausted, errors.New("full"))
	detail, _ := connect.NewErrorDetail(&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CALLER_BUDGET, Budget: budget})
	err.AddDetail(detail)
	return err
}

// TestAttack_ReachesBudgetsOverTLS: over TLS the caller's calls share HTTP/2 connections, also concurrent ones, and refusals for a budget
// are counted.
func TestAttack_ReachesBudgetsOverTLS(t *testing.T) {
	path, handler := quotav1connect.NewQuotaServiceHandler(budgeted{})
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	var other, connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			other.Add(1)
		}
		mux.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for only, most := range map[string]int64{"fill": 16, "watch": 2} {
		connections.Store(0)
		c := &Caller{
			Name: "n", Address: server.Listener.Addr().String(), Bundle: bundle, Dial: (&net.Dialer{}).DialContext, Streams: 2 * perConnection,
			Only: []string{only},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		go func() {
			defer cancel()
			for c.refused.Load() == 0 && ctx.Err() == nil {
				pause(ctx, time.Millisecond)
			}
		}()
		c.Attack(ctx)
		if report := c.report(); report.Refused == 0 || report.Reasons["CALLER_BUDGET"] != report.Refused {
			t.Errorf("%s: %+v", only, report)
		}
		if connections.Load() > most || other.Load() > 0 {
			t.Errorf("%s: %d connections, %d calls not of HTTP/2", only, connections.Load(), other.Load())
		}
	}
}
