package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// crowd are clients with many source addresses at one port.
type crowd struct {
	ctx     context.Context
	port    string
	working sync.WaitGroup
}

// from returns a dialer with its own source address for each i, 200 in all.
func (c *crowd) from(i int) net.Dialer {
	return net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(1+i%200))}}
}

// keepsSilent holds connections on which it sends nothing, and reopens each that the node ends.
func (c *crowd) keepsSilent(connections int) {
	for i := range connections {
		c.working.Go(func() {
			dialer := c.from(i)
			for c.ctx.Err() == nil {
				conn, err := dialer.DialContext(c.ctx, "tcp", c.port)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(c.ctx, func() { _ = conn.Close() })
				_, _ = conn.Read(make([]byte, 1))
				stop()
				_ = conn.Close()
			}
		})
	}
}

// watchesHealth opens streams of health, and returns how many the node admitted once all were answered.
func (c *crowd) watchesHealth(streams int) (watching int) {
	const each = 25
	answered := make(chan bool, streams)
	for first := 0; first < streams; first += each {
		protocols, dialer := new(http.Protocols), c.from(first/each)
		protocols.SetUnencryptedHTTP2(true)
		client := &http.Client{Transport: &http.Transport{Protocols: protocols, DialContext: dialer.DialContext}}
		for range each {
			c.working.Go(func() {
				url := "http://" + c.port + "/grpc.health.v1.Health/Watch"
				stream, err := connect.NewClient[emptypb.Empty, emptypb.Empty](client, url, connect.WithGRPC()).
					CallServerStream(c.ctx, connect.NewRequest(&emptypb.Empty{}))
				first := err == nil && stream.Receive()
				answered <- first
				for first && stream.Receive() {
				}
			})
		}
	}
	for range streams {
		if <-answered {
			watching++
		}
	}
	return watching
}

// asks requests a page again and again.
func (c *crowd) asks(path string, clients int) {
	for i := range clients {
		c.working.Go(func() {
			dialer := c.from(i)
			client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
			defer client.CloseIdleConnections()
			for c.ctx.Err() == nil {
				request, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "http://"+c.port+path, nil)
				if err != nil {
					return
				}
				if response, err := client.Do(request); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
			}
		})
	}
}

// TestOpsPort_AnswersWhileCallersFloodTheOther: unauthenticated clients with many addresses attack the leader's API port.
// They hold more silent connections than their pool takes, watch health on as many streams as they can get, and request
// readiness as fast as they can. Health answers at both ports; metrics, profiles and operators' commands answer at the
// operators' port. No election results.
func TestOpsPort_AnswersWhileCallersFloodTheOther(t *testing.T) {
	n := startGuarded(t, 1)
	before := n.settled(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{ctx: ctx, port: n.addresses[0]}
	t.Cleanup(func() {
		cancel()
		c.working.Wait()
	})
	const watchers, silent = 2000, 2500 // unauthenticated callers share a pool of 2,000 connections
	if watching := c.watchesHealth(watchers); watching < 100 || watching == watchers {
		t.Errorf("%d of %d watch", watching, watchers)
	}
	c.keepsSilent(silent)
	c.asks("/readyz", 64)
	waitFor(t, new(sayings), func() bool {
		_, metrics := fetch("http://" + n.ops[0] + "/metrics")
		_, evicted, _ := strings.Cut(metrics, "\nquotad_api_connections_ended_total{which=\"idle\"} ")
		return evicted != "" && !strings.HasPrefix(evicted, "0\n")
	})
	for range 3 {
		for _, url := range []string{n.addresses[0] + "/livez", n.ops[0] + "/livez", n.ops[0] + "/readyz", n.ops[0] + "/metrics"} {
			if code, body := fetch("http://" + url); code != http.StatusOK {
				t.Errorf("%s: %d %.200s", url, code, body)
			}
		}
		n.run(t, "quota", "list", "--server", n.ops[0])
		n.run(t, "limits", "--server", n.ops[0], "--key-life", "12h")
	}
	n.run(t, "status", "--check", "--server", n.ops[0])
	n.run(t, "status", "--check", "--cluster")
	for token, want := range map[string]int{ // in any order
		n.operatorToken: http.StatusOK, n.tokens[0]: http.StatusForbidden, "": http.StatusUnauthorized,
	} {
		if code := n.profile(t, n.ops[0], token); code != want {
			t.Errorf("a profile at the operators' port: %d, want %d", code, want)
		}
	}
	if code := n.profile(t, n.addresses[0], n.operatorToken); code == http.StatusOK {
		t.Errorf("a profile at the API port")
	}
	if after := n.terms(t); after != before {
		t.Errorf("an election: %s, before %s", after, before)
	}
}

// terms returns leader and term as the operators' port of each node reports them.
func (n *guardedNodes) terms(t *testing.T) string {
	t.Helper()
	var all []string
	for _, address := range n.ops {
		status, err := apisOf(n.operatorToken, address).admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s in %d", status.Leader, status.Meta.Term))
	}
	return strings.Join(all, ", ")
}

// settled waits until all nodes report the same leader and term.
func (n *guardedNodes) settled(t *testing.T) (terms string) {
	t.Helper()
	waitFor(t, new(sayings), func() bool {
		terms = n.terms(t)
		first, _, _ := strings.Cut(terms, ", ")
		return strings.Count(terms, first) == len(n.ops)
	})
	return terms
}

// profile requests /debug/pprof/cmdline with a token, if any, and returns the status code.
func (n *guardedNodes) profile(t *testing.T, address, token string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/debug/pprof/cmdline", nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}
