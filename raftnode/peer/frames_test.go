package peer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// framedStream is raft's stream layer on loopback, framed in both directions.
type framedStream struct {
	net.Listener
	chop func(io.Reader) io.Reader
}

// Accept implements net.Listener.
func (s framedStream) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newFramedConn(conn, s.chop(conn), false, 1<<20), nil
}

// Dial implements raft.StreamLayer.
func (s framedStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", string(address), timeout)
	if err != nil {
		return nil, err
	}
	return newFramedConn(conn, s.chop(conn), true, 1<<20), nil
}

// framedTransport is raft's own transport on framedStream. It answers each message by its kind.
func framedTransport(t *testing.T, chop func(io.Reader) io.Reader) *raft.NetworkTransport {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: framedStream{listener, chop}, MaxPool: 3, MaxRPCsInFlight: 1, Timeout: 20 * time.Second, MsgpackUseNewTimeFormat: true,
	})
	t.Cleanup(func() {
		_ = transport.Close()
		transport.CloseStreams() // Close leaves idle connections open
	})
	return transport
}

// TestFrames_FollowRaftsOwnMessages: every message of raft passes unchanged, in pieces of any size, many times on one connection.
func TestFrames_FollowRaftsOwnMessages(t *testing.T) {
	for name, chop := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader,
	} {
		t.Run(name, func(t *testing.T) {
			server, client := framedTransport(t, chop), framedTransport(t, func(r io.Reader) io.Reader { return r })
			got := make(chan any, 1)
			done := make(chan struct{})
			defer close(done)
			go serveFramed(server, got, done)
			size := 1 << 20
			switch {
			case name == "bytes":
				size = 10_000
			case testing.Short():
				size = 1 << 18
			}
			header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1"), Addr: []byte("127.0.0.1:1")}
			to := server.LocalAddr()
			for round := range 3 {
				logs := make([]*raft.Log, MaxAppendEntries)
				for i := range logs {
					data := make([]byte, size/(1+i*round))
					data[0], data[len(data)-1] = byte(i), byte(round)
					logs[i] = &raft.Log{
						Index: 1<<40 + uint64(i), Term: 7, Data: data, AppendedAt: time.Now(), Extensions: []byte{1}, //nolint:gosec // small
					}
				}
				entries := &raft.AppendEntriesRequest{RPCHeader: header, Term: 1 << 33, Entries: logs}
				if err := client.AppendEntries("n1", to, entries, new(raft.AppendEntriesResponse)); err != nil {
					t.Fatal(err)
				}
				if have, ok := (<-got).(*raft.AppendEntriesRequest); !ok || len(have.Entries) != len(logs) ||
					!bytes.Equal(have.Entries[1].Data, logs[1].Data) {
					t.Fatal("other entries came")
				}
				vote := new(raft.RequestVoteResponse)
				if err := client.RequestVote("n1", to, &raft.RequestVoteRequest{RPCHeader: header, Term: 9}, vote); err != nil || !vote.Granted {
					t.Fatal(err)
				}
				<-got
				if err := client.RequestPreVote("n1", to, &raft.RequestPreVoteRequest{RPCHeader: header},
					new(raft.RequestPreVoteResponse)); err != nil {
					t.Fatal(err)
				}
				<-got
				data := bytes.Repeat([]byte{byte(round)}, []int{0, 1, size}[round])
				snapshot := &raft.InstallSnapshotRequest{
					RPCHeader: header, SnapshotVersion: 1, Configuration: bytes.Repeat([]byte("Size"), 1000), Size: int64(len(data)),
				}
				if err := client.InstallSnapshot("n1", to, snapshot, new(raft.InstallSnapshotResponse), bytes.NewReader(data)); err != nil {
					t.Fatal(err)
				}
				if have, ok := (<-got).([]byte); !ok || !bytes.Equal(have, data) {
					t.Fatal("another snapshot came")
				}
				if err := client.TimeoutNow("n1", to, &raft.TimeoutNowRequest{RPCHeader: header}, new(raft.TimeoutNowResponse)); err != nil {
					t.Fatal(err)
				}
				<-got
			}
		})
	}
}

// serveFramed answers messages and forwards them to got.
func serveFramed(server *raft.NetworkTransport, got chan<- any, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case rpc := <-server.Consumer():
			switch command := rpc.Command.(type) {
			case *raft.AppendEntriesRequest:
				got <- command
				rpc.Respond(&raft.AppendEntriesResponse{Success: true, Term: 1 << 50}, nil)
			case *raft.RequestVoteRequest:
				got <- command
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			case *raft.RequestPreVoteRequest:
				got <- command
				rpc.Respond(&raft.RequestPreVoteResponse{}, nil)
			case *raft.InstallSnapshotRequest:
				data, err := io.ReadAll(rpc.Reader)
				got <- data
				rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, err)
			case *raft.TimeoutNowRequest:
				got <- command
				rpc.Respond(&raft.TimeoutNowResponse{}, nil)
			}
		}
	}
}

// pipeStream is raft's stream layer with one connection, the end of a pipe.
type pipeStream struct {
	net.Conn
	closed chan struct{}
}

// Accept implements net.Listener.
func (s pipeStream) Accept() (net.Conn, error) {
	<-s.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (s pipeStream) Close() error {
	close(s.closed)
	return nil
}

// Addr implements net.Listener.
func (s pipeStream) Addr() net.Addr { return s.LocalAddr() }

// Dial implements raft.StreamLayer.
func (s pipeStream) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) { return s.Conn, nil }

// TestFramedConn_EndsAStalledSnapshot: a snapshot of which no more bytes come fails, so that the node can vote again. One that is slow does
// not fail, and neither does a connection that is silent after it.
func TestFramedConn_EndsAStalledSnapshot(t *testing.T) {
	for name, c := range map[string]struct {
		pause time.Duration
		ends  time.Duration // after the beginning
	}{
		"slow, then silent": {pause: snapshotStall - time.Millisecond, ends: time.Hour}, "stalled": {pause: time.Hour, ends: snapshotStall},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				client := raft.NewNetworkTransport(pipeStream{Conn: here, closed: make(chan struct{})}, 1, 0, io.Discard)
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					slow := &slowReader{pause: c.pause, left: 1 << 20} // raft sends pieces of 256 KiB
					snapshot := &raft.InstallSnapshotRequest{SnapshotVersion: 1, Size: slow.left}
					_ = client.InstallSnapshot("n1", "n1", snapshot, new(raft.InstallSnapshotResponse), slow)
				}()
				conn, began := newFramedConn(there, there, false, 1<<20), time.Now()
				defer time.AfterFunc(time.Hour, func() { _ = there.Close() }).Stop()
				_, err := io.Copy(io.Discard, conn)
				if took := time.Since(began); took != c.ends || (c.ends < time.Hour) != errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("it ended after %v: %v", took, err)
				}
				_ = there.Close()
				_ = here.Close()
				_ = client.Close()
				<-sent
			})
		})
	}
}

// slowReader is a reader that pauses before each read.
type slowReader struct {
	pause time.Duration
	left  int64
}

// Read implements io.Reader.
func (r *slowReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	<-time.After(r.pause)
	n := min(int64(len(p)), r.left)
	r.left -= n
	return int(n), nil
}

// TestFrames_Refuse: each of these would take memory that no message of its kind needs, or hide where the next message begins.
func TestFrames_Refuse(t *testing.T) {
	for name, message := range map[string]string{
		"an unknown kind":         "\x05\x80",
		"a list as a message":     "\x02\x91\xa4Size",
		"no value":                "\x01\x81\xc1",
		"a size as a float":       "\x02\x81\xa4Size\xcb\x40\x00\x00\x00\x00\x00\x00\x00",
		"a negative size":         "\x02\x81\xa4Size\xff",
		"a negative 64-bit size":  "\x02\x81\xa4Size\xd3\xff\xff\xff\xff\xff\xff\xff\xff",
		"a size beyond int64":     "\x02\x81\xa4Size\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
		"no size":                 "\x02\x81\xa4Size\xc0",
		"two sizes":               "\x02\x82\xa4Size\x01\xa4Size\x02",
		"a size as binary key":    "\x02\x82\xc4\x04Size\x01\xa4Size\x02",
		"deep nesting":            "\x00\x81\xa1a\x91\x91\x91\x91\x91\x91\x91",
		"many fields":             "\x00\xde\x00\x41",
		"many entries":            "\x00\x81\xa7Entries\xdc\x00\x41",
		"a large reply's text":    "",
		"many small values":       "\x01\x81\xa1a\x91" + "\xda\xff\xff",
		"an extension of 4 GiB":   "\x03\x81\xa1a\xc9\xff\xff\xff\xff\x01",
		"an entry beyond a batch": "\x00\x81\xa7Entries\x91\x81\xa4Data\xc6\x00\x12\x00\x00",
	} {
		f := frames{maxEntry: 1 << 20}
		switch name {
		case "a large reply's text":
			f.replies, message = true, "\xdb\x7f\xff\xff\xff"
		case "many small values": // each within its bound, but together above that of a vote
			message = "\x01\x81\xa1a\x98"
			for range 5 {
				message += "\xda\xff\xff" + string(make([]byte, 0xffff))
			}
		}
		var err error
		for rest := []byte(message); err == nil && len(rest) > 0; {
			var n int
			n, err = f.feed(rest)
			rest = rest[n:]
		}
		if !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFrames_AnyBytesInAnyPieces: the split into pieces does not change the result, and errFrame is the only error for any bytes.
func TestFrames_AnyBytesInAnyPieces(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	cases := 20_000
	if testing.Short() {
		cases = 5_000
	}
	for range cases {
		message := make([]byte, 1+random.IntN(60))
		for i := range message {
			pieces := []byte{
				0, 1, 2, 3, 4, 0x81, 0x82, 0x91, 0xa4, 'S', 'i', 'z', 'e', 0xc0, 0xc4, 0xcc, 0xda, byte(random.UintN(256)), //nolint:gosec // below 256
			}
			message[i] = pieces[random.IntN(len(pieces))]
		}
		ends := func(piece int) (all []int, failed bool) {
			f := frames{maxEntry: 1 << 10}
			at := 0
			for at < len(message) {
				n, err := f.feed(message[at:min(at+piece, len(message))])
				if err != nil {
					return all, true
				}
				if at += n; !f.inside && f.raw == 0 {
					all = append(all, at)
				}
			}
			return all, false
		}
		whole, failed := ends(len(message))
		single, failedToo := ends(1)
		if failed != failedToo || len(whole) > len(single) {
			t.Fatalf("seed %d: %x ends at %v (%v) as a whole, at %v (%v) byte by byte", seed, message, whole, failed, single, failedToo)
		}
		for i := range whole {
			if whole[i] != single[i] {
				t.Fatalf("seed %d: %x ends at %v as a whole, at %v byte by byte", seed, message, whole, single)
			}
		}
	}
}
