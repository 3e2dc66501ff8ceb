package peer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// dialed is a network whose connections take a while to establish; serve handles them.
type dialed struct {
	after time.Duration
	serve func(net.Conn)
	count int
}

// Listen implements Network.
func (d *dialed) Listen(string) (net.Listener, error) { return nil, errors.ErrUnsupported }

// Dial implements Network.
func (d *dialed) Dial(_ string, timeout time.Duration) (net.Conn, error) {
	d.count++
	time.Sleep(min(d.after, timeout)) //nolint:forbidigo // virtual time
	if d.after >= timeout {
		return nil, context.DeadlineExceeded
	}
	here, there := net.Pipe()
	go d.serve(there)
	return here, nil
}

// answering answers questions as a node does.
func answering(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	for into := any(new(Preface)); readLine(reader, maxMessage, into) == nil; into = new(Request) {
		if _, asked := into.(*Request); asked && writeLine(conn, Reply{Node: "n1"}) != nil {
			return
		}
	}
}

func askingPort(network Network) *Port {
	return newPort(Config{Network: network, Logger: hclog.NewNullLogger(), Local: Local{
		Greet: func(string) Preface { return Preface{} }, Met: func(string, Build) error { return nil },
	}})
}

// TestAsk_OneTimeoutInAll: one timeout covers both connecting and asking, also when an idle connection swallows the question first.
func TestAsk_OneTimeoutInAll(t *testing.T) {
	swallow := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	for name, idle := range map[string]bool{"a new connection": false, "an idle one before": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := askingPort(&dialed{after: Timeout * 3 / 4, serve: swallow})
				if idle {
					here, there := net.Pipe()
					go swallow(there)
					p.putIdle("n1@a", &askConn{conn: here, reader: bufio.NewReader(here)})
				}
				began := time.Now()
				_, err := p.Ask(t.Context(), "n1", "a", Request{Kind: "probe"})
				if took := time.Since(began); err == nil || took != Timeout {
					t.Errorf("it took %v, want %v: %v", took, Timeout, err)
				}
			})
		})
	}
}

// TestAsk_DeadConnectionsDoNotStayIdle: after a peer restarts, its idle connections are dead. The first failure closes the others too, and
// one new connection replaces them. Otherwise each would cost a question a round trip, or its whole timeout.
func TestAsk_DeadConnectionsDoNotStayIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &dialed{serve: answering}
		p := askingPort(network)
		for range 3 {
			here, there := net.Pipe()
			_ = there.Close()
			p.putIdle("n1@a", &askConn{conn: here, reader: bufio.NewReader(here)})
		}
		for range 3 {
			if reply, err := p.Ask(t.Context(), "n1", "a", Request{Kind: "probe"}); err != nil || reply.Node != "n1" {
				t.Fatalf("%+v, %v", reply, err)
			}
			if open := len(p.idle["n1@a"]); open != 1 || network.count != 1 {
				t.Fatalf("%d idle connections, %d new ones; want one new one instead of all", open, network.count)
			}
		}
		if err := p.idle["n1@a"][0].conn.Close(); err != nil {
			t.Error(err)
		}
	})
}
