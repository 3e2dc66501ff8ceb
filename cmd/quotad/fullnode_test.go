package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// The sizes of a small node, and what is left of them for callers: a fifth of the connections is for anonymous callers, a sixteenth of
// the memory for requests. Operators have an eighth of connections of callers, of streams and of request bytes, and a sixteenth of the
// calls. A sixteenth of the calls is for those about existing leases.
const (
	smallConnections, smallCalls, smallStreams = 320, 1024, 64
	smallMemory                                = "1GiB"
)

func leftForCallers() map[string]int64 {
	const anonymous, requestBytes = smallConnections / 5, 1 << 30 / 16
	return map[string]int64{
		"connections": (smallConnections - anonymous) * 7 / 8, "request_bytes": requestBytes * 7 / 8, "streams": smallStreams * 7 / 8,
		"calls": smallCalls * 14 / 16,
	}
}

// TestOperators_WorkWhileANodeIsFull: one hostile caller takes its half of each budget of a small node, with connections of its own, padded
// bodies, long polls, bodies that never come, and streams. Eight callers take the rest, and unauthenticated clients all connections that
// are left. While the node is full and all of them keep trying, health answers and each operator's command ends soon, at both ports.
func TestOperators_WorkWhileANodeIsFull(t *testing.T) {
	n := startGuardedNodes(t, 1, 9, "--memory-limit", smallMemory)
	ctx := t.Context()
	n.write(t, "few.yaml", "quotas:\n  - {name: none, rate: {limit: 1, per: 1h}}\n  - {name: core, window: {limit: 5000, every: hour}}\n")
	many := "quotas:\n"
	for i := range 500 {
		many += fmt.Sprintf("  - {name: many/%d, note: %q, window: {limit: 5000, every: hour}}\n", i, strings.Repeat("long ", 80))
	}
	n.write(t, "many.yaml", many)
	n.run(t, "quota", "apply", "-f", "few.yaml")
	n.run(t, "limits", "--max-connections", fmt.Sprint(smallConnections), "--max-calls", fmt.Sprint(smallCalls),
		"--max-streams", fmt.Sprint(smallStreams))
	waitFor(t, new(sayings), func() bool { // the node follows its limits
		for _, b := range n.status(t).NodeBudgets {
			if b.Name == "streams" && b.Capacity == smallStreams {
				return true
			}
		}
		return false
	})
	if res, err := n.operator.quota.Reserve(ctx, &quotav1.ReserveRequest{
		Holder: "ops", Items: []*quotav1.Item{{Quota: "none"}}, Consume: true,
	}); err != nil || res.GetLease() == nil { // nobody else gets it
		t.Fatal(res, err)
	}
	full := &hoarders{node: n, sizes: leftForCallers()}
	t.Cleanup(func() { full.stop() })
	full.fill(t)
	full.again(t)
	full.checkReasons(t)

	anonymousEnd, end := context.WithCancel(ctx)
	anonymous := &crowd{ctx: anonymousEnd, port: n.addresses[0]}
	t.Cleanup(func() {
		end()
		anonymous.working.Wait()
	})
	if watching := anonymous.watchesHealth(smallConnections / 4); watching == 0 || watching == smallConnections/4 {
		t.Errorf("%d watch", watching)
	}
	anonymous.keepsSilent(smallConnections / 4)
	full.sizes["strangers"] = smallConnections / 5
	for _, port := range []string{n.addresses[0], n.ops[0]} {
		for _, page := range []string{"/livez", "/readyz"} {
			full.again(t)
			n.answers(t, port+page)
		}
		for _, args := range [][]string{
			{"quota", "override", "core", "--limit", "0", "--for", "1h"},
			{"quota", "override", "core", "--end"},
			{"quota", "list"},
			{"limits"},
			{"limits", "--key-life", "12h"},
			{"status"},
			{"status", "--check"},
			{"quota", "apply", "-f", "many.yaml"},
		} {
			full.again(t)
			n.run(t, append(args, "--server", port)...)
		}
	}
	full.again(t)
}

// write writes a file next to the nodes.
func (n *guardedNodes) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// answers checks that a page is served within operatorsBound.
func (n *guardedNodes) answers(t *testing.T, url string) {
	t.Helper()
	began := time.Now()
	code, body := fetch("http://" + url)
	if code != http.StatusOK {
		t.Errorf("%s: %d %.200s", url, code, body)
	}
	if took := time.Since(began); took > operatorsBound {
		t.Errorf("%s took %v", url, took)
	}
}
