package hostile

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestAttack_AtOps: the parts that the port for operators serves attack it, and have a report of their own.
func TestAttack_AtOps(t *testing.T) {
	served := func(to *atomic.Int64) string {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { to.Add(1) }))
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(true)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		t.Cleanup(server.Close)
		return strings.TrimPrefix(server.URL, "http://")
	}
	var api, ops atomic.Int64
	caller := &Caller{
		Name: "n1", Address: served(&api), Ops: served(&ops), Token: "secret", Dial: new(net.Dialer).DialContext, Only: []string{"read"},
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	go func() {
		for ops.Load() < 20 && ctx.Err() == nil {
			pause(ctx, time.Millisecond)
		}
		stop()
	}()
	caller.Attack(ctx)
	sum := newReport()
	sum.add(caller.report())
	sum.add(caller.report())
	if api.Load() != 0 || ops.Load() < 20 || sum.Calls != 0 || sum.Ops == nil || sum.Ops.Calls < 2*15 {
		t.Errorf("%d requests at the API's port, %d at the operators': %+v", api.Load(), ops.Load(), sum)
	}
	for _, name := range []string{"fill", "wait", "raft"} {
		if caller.ops.served(name) || !caller.served(name) {
			t.Errorf("%s: the operators' port serves no takes", name)
		}
	}
}
