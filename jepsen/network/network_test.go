//go:build linux

package network

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if address := os.Getenv("NETWORK_TEST_DIAL"); address != "" {
		conn, err := net.Dial("tcp4", address)
		if err != nil {
			os.Exit(3)
		}
		_, _ = io.WriteString(conn, "from "+conn.LocalAddr().String()+"\n")
		_ = conn.Close()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// open makes a network with two hosts, of which b serves a port that returns each line.
func open(t *testing.T, o Options) (*Network, *Host, *Host, string) {
	t.Helper()
	n, err := Open(o)
	if err != nil {
		t.Skipf("no network of this kind here: %v", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	a, err := n.AddHost("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := n.AddHost("b", 7000)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := b.Listen(7000)
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		_ = listener.Close()
		stop()
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(serving, func() { _ = conn.Close() }) // its other side may be cut off
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return n, a, b, net.JoinHostPort(b.IP(), "7000")
}

func kinds(t *testing.T, test func(*testing.T, Options)) {
	for name, o := range map[string]Options{
		"namespaces": {Kind: Namespaces}, "namespaces, proxied": {Kind: Namespaces, Proxied: true}, "loopback": {Kind: Loopback},
	} {
		t.Run(name, func(t *testing.T) { test(t, o) })
	}
}

func dial(t *testing.T, h *Host, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := h.DialContext(ctx, "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// The time to wait for a line. A line that must return may take as long as a busy machine needs, including the second after which a lost
// first packet is sent again. A line that must not return would have returned within shortly.
const (
	patience = time.Minute
	shortly  = time.Second
)

// echo sends a line and says whether it returns within a time.
func echo(t *testing.T, conn net.Conn, line string, within time.Duration) bool {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		return false
	}
	for {
		got, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
		if err != nil {
			return false
		}
		if strings.TrimSpace(got) == line {
			return true
		}
	}
}

func TestCut_HoldsOneDirection(t *testing.T) {
	kinds(t, func(t *testing.T, o Options) {
		n, a, _, address := open(t, o)
		conn := dial(t, a, address)
		if !echo(t, conn, "one", patience) {
			t.Fatal("nothing comes back before the cut")
		}
		for _, direction := range [][2]string{{"a", "b"}, {"b", "a"}} {
			if err := n.Cut(direction[0], direction[1]); err != nil {
				t.Fatal(err)
			}
			if echo(t, conn, "two", shortly) {
				t.Errorf("%v: the line came back", direction)
			}
			hits, err := n.Hits()
			if err != nil || hits[Link{direction[0], direction[1]}].Dropped == 0 {
				t.Errorf("%v: nothing was counted: %v, %v", direction, hits, err)
			}
			if err := n.HealLink(direction[0], direction[1]); err != nil {
				t.Fatal(err)
			}
			if after := dial(t, a, address); !echo(t, after, "three", patience) {
				t.Errorf("%v: nothing comes back after the cut", direction)
			}
			conn = dial(t, a, address)
			if !echo(t, conn, "four", patience) {
				t.Fatal("nothing comes back")
			}
		}
	})
}

func TestLoss_DropsSome(t *testing.T) {
	n, a, _, address := open(t, Options{Kind: Namespaces})
	if err := n.Loss("a", "b", 30); err != nil {
		t.Fatal(err)
	}
	came := 0
	for range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if conn, err := a.DialContext(ctx, "tcp4", address); err == nil {
			came++
			_ = conn.Close()
		}
		cancel()
	}
	hits, err := n.Hits()
	if err != nil || came == 0 || hits[Link{"a", "b"}].Dropped == 0 {
		t.Errorf("%d of 12 connections came, %v, %v", came, hits, err)
	}
}

// TestDelay_HoldsUp: data on a delayed link never arrives early. A late arrival on a busy machine proves nothing;
// TestDelay_IsBoundedAndKeepsOrder tests the bounds exactly.
func TestDelay_HoldsUp(t *testing.T) {
	n, a, _, address := open(t, Options{Kind: Namespaces, Proxied: true})
	conn := dial(t, a, address)
	round := func() time.Duration {
		began := time.Now()
		if !echo(t, conn, "x", patience) {
			t.Fatal("nothing comes back")
		}
		return time.Since(began)
	}
	delayed := func() uint64 {
		hits, err := n.Hits()
		if err != nil {
			t.Fatal(err)
		}
		return hits[Link{"a", "b"}].Delayed
	}
	round()
	if held := delayed(); held != 0 {
		t.Errorf("%d pieces were held up without a delay", held)
	}
	if err := n.Delay("a", "b", 100*time.Millisecond, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := round(); took < 80*time.Millisecond {
		t.Errorf("a round takes %v", took)
	}
	if held := delayed(); held != 1 {
		t.Errorf("%d pieces were held up, not the one that was sent", held)
	}
}

// TestDelay_IsBoundedAndKeepsOrder: a delayed link delivers each piece between the shortest and the longest delay after it was sent, and in
// the order of sending, whatever the jitter is. In virtual time, so exactly.
func TestDelay_IsBoundedAndKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mean, jitter, pause, pieces = 100 * time.Millisecond, 90 * time.Millisecond, 10 * time.Millisecond, 40
		l := (&proxies{links: map[Link]*link{}}).link(Link{"a", "b"})
		l.delay(mean, jitter)
		source, sender := net.Pipe()
		receiver, sink := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { l.pump(t.Context(), source, sink) })
		began := time.Now()
		wg.Go(func() {
			defer func() { _ = sender.Close() }()
			for i := range pieces {
				time.Sleep(time.Until(began.Add(time.Duration(i) * pause))) //nolint:forbidigo // virtual time
				_, _ = sender.Write([]byte{byte(i)})
			}
		})
		shortest, longest := time.Hour, time.Duration(0)
		for i := range pieces {
			piece := make([]byte, 1)
			if _, err := io.ReadFull(receiver, piece); err != nil || int(piece[0]) != i {
				t.Fatalf("piece %d is %d, %v", i, piece[0], err)
			}
			took := time.Since(began) - time.Duration(i)*pause
			if took < mean-jitter || took >= mean+jitter {
				t.Errorf("piece %d took %v", i, took)
			}
			shortest, longest = min(shortest, took), max(longest, took)
		}
		if shortest == longest {
			t.Errorf("all pieces took %v", shortest)
		}
		_ = receiver.Close()
		wg.Wait()
		if l.hits.Delayed != pieces {
			t.Errorf("%d pieces were held up", l.hits.Delayed)
		}
	})
}

func TestResetAfter_EndsStreamMidway(t *testing.T) {
	n, a, _, address := open(t, Options{Kind: Namespaces, Proxied: true})
	conn := dial(t, a, address)
	if !echo(t, conn, "x", patience) {
		t.Fatal("nothing comes back")
	}
	if err := n.ResetAfter("b", "a", 5); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "0123456789"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err == nil && len(got) != 5 {
		t.Errorf("got %q, %v", got, err)
	}
	if again := dial(t, a, address); !echo(t, again, "y", patience) {
		t.Error("the next stream does not pass")
	}
}

func TestRate_BoundsTraffic(t *testing.T) {
	n, a, _, address := open(t, Options{Kind: Namespaces})
	send := func() time.Duration {
		conn := dial(t, a, address)
		data := make([]byte, 300_000)
		began := time.Now()
		go func() { _, _ = conn.Write(data) }()
		if _, err := io.ReadFull(conn, make([]byte, len(data))); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	free := send()
	if err := n.Rate("a", 400_000); err != nil {
		t.Fatal(err)
	}
	if bounded := send(); bounded < 3*free {
		t.Errorf("bounded it takes %v, free %v", bounded, free)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
}

func TestStart_RunsProcessOnItsHost(t *testing.T) {
	n, a, b, _ := open(t, Options{Kind: Namespaces})
	_ = n
	listener, err := b.Listen(7001)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "NETWORK_TEST_DIAL="+listener.Addr().String())
	if err := a.Start(cmd); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(conn).ReadString('\n')
	_ = conn.Close()
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(line, "from "+a.IP()+":") {
		t.Errorf("%q, %v", line, err)
	}
}
