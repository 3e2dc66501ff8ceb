package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestJudgeHostile_MissesAreErrors: missing a goal by the median of the rounds is an error, and so is a failed operator
// command, whatever the figures are.
func TestJudgeHostile_MissesAreErrors(t *testing.T) {
	fine := phase{PerSecond: 1000, P99: 10, Operator: 50, MemoryPart: 0.5, Commands: 5}
	with := func(change func(*phase)) phase {
		p := fine
		change(&p)
		return p
	}
	slow := with(func(p *phase) { p.PerSecond = 790 })
	for name, c := range map[string]struct {
		rest, attack []phase
		want         string // empty: no error
	}{
		"all is well": {
			[]phase{fine}, []phase{with(func(p *phase) { p.PerSecond, p.P99, p.Operator, p.MemoryPart = 800, 20, 1000, 1 })}, "",
		},
		"slower":           {[]phase{fine}, []phase{slow}, "rate of others"},
		"slower by median": {[]phase{fine, fine, fine}, []phase{slow, fine, slow}, "rate of others"},
		"slower once":      {[]phase{fine, fine, fine}, []phase{fine, slow, fine}, ""},
		"a longer tail":    {[]phase{fine}, []phase{with(func(p *phase) { p.P99 = 21 })}, "p99 of others"},
		"a slow operator":  {[]phase{fine}, []phase{with(func(p *phase) { p.Operator = 1001 })}, "operator command"},
		"above its mark": {
			[]phase{fine, fine, fine}, []phase{fine, with(func(p *phase) { p.MemoryPart = 1.01 }), fine}, "memory of a node",
		},
		"nothing measured": {[]phase{with(func(p *phase) { p.PerSecond, p.P99 = 0, 0 })}, []phase{fine}, "p99 of others"},
		"a failed command": {
			[]phase{fine}, []phase{with(func(p *phase) { p.Failed = []error{errors.New("refused")} })}, "1 of 5 operator commands failed",
		},
		"no command": {[]phase{with(func(p *phase) { p.Commands = 0 })}, []phase{fine}, "no operator command"},
	} {
		err := judgeHostile(io.Discard, map[string][]phase{"rest": c.rest, "attack": c.attack})
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// overrides is a node whose operator commands succeed.
type overrides struct {
	quotav1connect.UnimplementedAdminServiceHandler
}

func (overrides) OverrideQuota(_ context.Context, _ *quotav1.OverrideQuotaRequest) (*quotav1.OverrideQuotaResponse, error) {
	return &quotav1.OverrideQuotaResponse{}, nil
}

// TestOperate_AsksEachNode: operate sends commands to every node, and records the failure at one of them.
func TestOperate_AsksEachNode(t *testing.T) {
	c := &guarded{tokens: map[string]string{"operator": "secret"}}
	for range 2 {
		_, handler := quotav1connect.NewAdminServiceHandler(overrides{})
		node := httptest.NewServer(handler)
		t.Cleanup(node.Close)
		c.addresses = append(c.addresses, strings.TrimPrefix(node.URL, "http://"))
	}
	ends := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(ends.Close)
	c.addresses = append(c.addresses, strings.TrimPrefix(ends.URL, "http://"))
	p := c.operate(t.Context(), time.Millisecond)
	if p.Commands != 3 || len(p.Failed) != 1 || !strings.Contains(p.Failed[0].Error(), "node 3") {
		t.Errorf("%d commands, failed: %v", p.Commands, p.Failed)
	}
}
