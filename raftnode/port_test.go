package raftnode_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
)

// TestPeerPort_AnonymousCallersDoNotStopElections: any number of silent connections to the port for peers takes no member's slot.
// With TLS they never begin their handshake.
func TestPeerPort_AnonymousCallersDoNotStopElections(t *testing.T) {
	t.Parallel() // mostly waiting
	t.Run("without TLS", func(t *testing.T) {
		t.Parallel()
		anonymousCallersDoNotStopElections(t, newCluster(t, 3))
	})
	t.Run("with TLS", func(t *testing.T) {
		t.Parallel()
		ca := newAuthority(t)
		anonymousCallersDoNotStopElections(t, newCluster(t, 3, func(conf *raftnode.Config) { conf.PeerTLS = ca.settings(conf.ID) }))
	})
}

func anonymousCallersDoNotStopElections(t *testing.T, c *cluster) {
	c.propose(rate("q", 1000))
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	filled := make(chan struct{}, 3)
	for i := range c.configs {
		address := c.configs[i].RaftAddress
		flood.Go(func() {
			var held []net.Conn
			var full sync.Once
			defer func() {
				for _, conn := range held {
					_ = conn.Close()
				}
			}()
			for ctx.Err() == nil {
				conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
				if err == nil {
					held = append(held, conn)
				}
				if len(held) < 200 {
					continue
				}
				full.Do(func() { filled <- struct{}{} })
				if len(held) > 400 {
					_ = held[0].Close()
					held = held[1:]
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	for range c.configs {
		<-filled
	}
	for range 3 {
		leader := c.leader()
		c.nodes[leader].Kill()
		c.nodes[leader] = nil
		if c.propose(reserve("q", 1)).GetGranted() == nil {
			t.Error("not granted")
		}
		c.start(leader)
		c.hashesAgree()
	}
}

// TestPeerPort_MemoryOfAMessage: a claimed size takes no memory before it is checked against the bound of the message's kind.
func TestPeerPort_MemoryOfAMessage(t *testing.T) {
	const mega, bound = 1 << 20, 100 << 20 // 150 MiB on one connection took 1.1 GB
	c := newCluster(t, 1)
	c.propose(rate("q", 1000))
	hello, err := json.Marshal(map[string]any{
		"magic": "quotad-peer/2", "protocol": "raft", "node": "n9", "cluster": c.id(0),
		"oldest": fsm.OldestEntryVersion, "newest": fsm.EntryVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	claim := func(head string, kind byte, size uint32) []byte {
		return append(binary.BigEndian.AppendUint32(append([]byte(head), kind), size), bytes.Repeat([]byte{0}, mega)...)
	}
	for name, message := range map[string][]byte{
		"an entry of 150 MiB":     claim("\x00\x81\xa7Entries\x91\x81\xa4Data", 0xdb, 150*mega),
		"150 M entries":           claim("\x00\x81\xa7Entries", 0xdd, 150*mega),
		"a vote of 150 MiB":       claim("\x01\x81\xa9Candidate", 0xdb, 150*mega),
		"a snapshot's header":     claim("\x02\x81\xa5Peers", 0xdb, 150*mega),
		"an unknown field":        claim("\x03\x81\xa5Other", 0xdb, 150*mega),
		"150 M keys":              claim("\x04", 0xdf, 150*mega),
		"a snapshot, then a vote": append([]byte("\x02\x82\xa4Size\x00\xa4Term\x01"), claim("\x01\x81\xa9Candidate", 0xdb, 150*mega)...),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", c.configs[0].RaftAddress)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			_, err = conn.Write(append(hello, '\n'))
			for sent := 0; err == nil && sent < 150*mega; sent += len(message) {
				_, err = conn.Write(message)
				message = message[len(message)-mega:]
			}
			_, _ = io.Copy(io.Discard, conn) // until the node closes the connection
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > bound {
				t.Errorf("%d MiB were taken for it", took>>20)
			}
		})
	}
	if c.propose(reserve("q", 1)).GetGranted() == nil {
		t.Error("not granted")
	}
}
