package hostile

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// budgeted refuses all sessions for a budget.
type budgeted struct {
	quotav1connect.UnimplementedQuotaServiceHandler
}

// OpenSession implements QuotaService.
func (budgeted) OpenSession(context.Context, *quotav1.OpenSessionRequest) (*quotav1.OpenSessionResponse, error) {
	err := connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("full"))
	detail, _ := connect.NewErrorDetail(&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CALLER_BUDGET})
	err.AddDetail(detail)
	return nil, err
}

func TestDebug(t *testing.T) {
	path, handler := quotav1connect.NewQuotaServiceHandler(budgeted{})
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	var h2, h1 atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			h2.Add(1)
		} else {
			h1.Add(1)
		}
		mux.ServeHTTP(w, r)
	}))
	var conns atomic.Int64
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c := &Caller{Name: "n", Address: server.Listener.Addr().String(), Bundle: bundle, Dial: (&net.Dialer{}).DialContext, Only: "fill"}
	calls, refused := c.Attack(ctx)
	_, err := quotav1connect.NewQuotaServiceClient(c.api, c.url()).OpenSession(t.Context(), &quotav1.OpenSessionRequest{})
	t.Logf("%d calls, %d refused, %d conns, h2 %d, h1 %d; %v", calls, refused, conns.Load(), h2.Load(), h1.Load(), err)
	var _ sync.Mutex
}
