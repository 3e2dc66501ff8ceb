package rpc

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestPortBudgets_ResizedAsMade: resized budgets have the sizes of new ones, and each has room.
func TestPortBudgets_ResizedAsMade(t *testing.T) {
	b := newPortBudgets(DefaultMaxConnections, DefaultMaxInFlight, accounts.DefaultMaxStreams)
	for _, to := range []nodeLimits{
		{accounts.MinCalls, accounts.MinStreams, accounts.MinConnections},
		{100_000, 5000, 20_000},
		{accounts.MaxOfNode, accounts.MaxOfNode, accounts.MaxOfNode},
	} {
		b.resize(to.connections, to.calls, to.streams)
		made := newPortBudgets(to.connections, to.calls, to.streams)
		all := func(b *portBudgets) []*budget.Budget { return append(b.all(), b.holding, b.refusals) }
		for i, want := range all(made) {
			got, want := all(b)[i].View(), want.View()
			if got.Name != want.Name || got.Capacity != want.Capacity || got.Kept != want.Kept || got.Minimum != want.Minimum {
				t.Errorf("%+v: %+v, and made so %+v", to, got, want)
			}
			if got.Capacity < 1 || got.Minimum < 1 {
				t.Errorf("%+v: no room in %+v", to, got)
			}
		}
		if calls := b.calls.View().Capacity + b.holding.View().Capacity; calls != to.calls || b.streams.View().Capacity != to.streams {
			t.Errorf("%+v: %d calls, %+v", to, calls, b.streams.View())
		}
	}
}

// TestListener_Resized: open connections stay when the maximum drops. New ones find no room until the number fits, and find some as soon
// as the maximum rises again.
func TestListener_Resized(t *testing.T) {
	l := listenFor(t, time.Minute) // silence makes no room meanwhile; waiting connections are tried each fiftieth of it
	var first []net.Conn
	for _, from := range []string{"127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2"} {
		dialFrom(t, from, l)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, c)
	}
	l.resize(10) // two of them anonymous callers'
	dialFrom(t, "127.0.0.3", l)
	joined := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		joined <- c
	}()
	for l.waiters() == 0 {
		<-time.After(time.Millisecond)
	}
	if _, left := l.tryWaiting(time.Now()); left != 1 {
		t.Errorf("a new one finds room among four of two")
	}
	for _, c := range first {
		if err := c.SetReadDeadline(time.Now()); err != nil {
			t.Errorf("one that was there ended: %v", err)
		}
	}
	l.resize(50)
	c := <-joined
	if c == nil {
		t.Fatal("the new one did not join")
	}
	if host, _, _ := net.SplitHostPort(c.RemoteAddr().String()); host != "127.0.0.3" {
		t.Errorf("%s joined", host)
	}
	if v := l.callers.shares.View(); v.Capacity != 40 || v.Kept != 5 || v.Minimum != 2 {
		t.Errorf("callers' part is %+v", v)
	}
}

// TestServer_ResizesWithinOpenFiles: a node that may open too few files takes fewer connections than the limits allow, and warns.
func TestServer_ResizesWithinOpenFiles(t *testing.T) {
	for name, c := range map[string]struct {
		files, limit, want int64
		warns              bool
	}{
		"any files":      {0, 100_000, 100_000, false},
		"enough":         {20_512, 20_000, 20_000, false},
		"too few":        {4096, 10_000, 3584, true},
		"next to none":   {100, 10_000, 64, true},
		"few, and lower": {1024, 200, 200, false},
	} {
		var log bytes.Buffer
		l := listenFor(t, time.Hour)
		s := &Server{
			budgets: newPortBudgets(DefaultMaxConnections, DefaultMaxInFlight, accounts.DefaultMaxStreams),
			config:  Config{OpenFiles: c.files, Listener: l}, logger: hclog.New(&hclog.LoggerOptions{Output: &log}),
		}
		for range 2 { // it warns once
			s.resize(nodeLimits{calls: 1000, streams: 100, connections: c.limit})
		}
		callers, anonymous := l.callers.shares.View().Capacity, l.anonymous.shares.View().Capacity
		if got := callers + anonymous; got != c.want || s.budgets.visits.View().Capacity != max(1, anonymous/8) {
			t.Errorf("%s: %d connections, %d of anonymous callers, who have %+v", name, got, anonymous, s.budgets.visits.View())
		}
		if warned := strings.Count(log.String(), "[WARN]"); warned > 1 || (warned == 1) != c.warns {
			t.Errorf("%s: %d warnings: %s", name, warned, log.String())
		}
	}
}

// TestValidate_LimitsOfEachNode: limits of a node are valid within their bounds, both ends included.
func TestValidate_LimitsOfEachNode(t *testing.T) {
	for field, c := range map[string]struct {
		set   func(*quotav1.Limits, *int64)
		least int64
	}{
		"limits.max_calls":       {func(l *quotav1.Limits, to *int64) { l.MaxCalls = to }, 64},
		"limits.max_streams":     {func(l *quotav1.Limits, to *int64) { l.MaxStreams = to }, 16},
		"limits.max_connections": {func(l *quotav1.Limits, to *int64) { l.MaxConnections = to }, 64},
	} {
		for limit, within := range map[int64]bool{
			-1: false, 0: false, c.least - 1: false, c.least: true, 24_000: true, 1_000_000: true, 1_000_001: false,
		} {
			request := &quotav1.SetLimitsRequest{Limits: &quotav1.Limits{}}
			c.set(request.Limits, &limit)
			err := validate(request)
			if (err == nil) != within {
				t.Errorf("%s of %d: %v", field, limit, err)
			}
			if got := logLimits(request.Limits); got.GetMaxCalls()+got.GetMaxStreams()+got.GetMaxConnections() != limit {
				t.Errorf("%s of %d is written as %v", field, limit, got)
			}
		}
	}
}
