package raftnode_test

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
)

// TestStop_DuringManyUnansweredCalls: a new node asks its callers whether it may take part. A sequence of callers that do not answer must
// not keep it from stopping.
func TestStop_DuringManyUnansweredCalls(t *testing.T) {
	conf := raftnode.DefaultConfig()
	conf.ID, conf.RaftAddress, conf.DataDir = "n3", freeAddress(t), t.TempDir()
	n, err := raftnode.Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			if first {
				close(asked)
			}
		}
	}()
	defer func() { _ = silent.Close() }()
	preface, err := json.Marshal(map[string]any{
		"magic": "quotad-peer/2", "protocol": "raft", "node": "n0", "cluster": "c", "address": silent.Addr().String(),
		"oldest": fsm.OldestEntryVersion, "newest": fsm.EntryVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 60 { // two seconds each
		conn, err := net.Dial("tcp", conf.RaftAddress)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write(append(preface, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
