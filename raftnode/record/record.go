// Package record writes what a node applied to a file, for checkers outside the process: each entry with its payload and a digest of its
// outcome. A dump of the log at the end lacks entries that were applied and then lost.
package record

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
)

// hashEvery: the ledger's hash is recorded at indices that are multiples of it, since each hash walks the whole state.
const hashEvery = 256

// Line is one entry that a node applied, as a line of JSON.
type Line struct {
	Index uint64 `json:"i"`
	Term  uint64 `json:"t"`
	// Payload is the encoded entry.
	Payload []byte `json:"p"`
	// Outcome is the Digest of the entry.
	Outcome string `json:"o"`
	// Ledger is the ledger's hash after the entry, hexadecimal. It is set at the same indices on every node, "" at others.
	Ledger string `json:"h,omitempty"`
}

// File holds the entries that one process applied during its life.
type File struct{ file *os.File }

// Create makes a new file in a directory, and the directory if needed.
func Create(dir string) (*File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("applied-%d-%d.jsonl", time.Now().UnixNano(), os.Getpid())
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &File{file: file}, nil
}

// Applied writes one entry with one write call, so that a killed process loses no entry already written. It panics if the write fails: a
// record with a hole proves nothing. Its signature is that of raftnode.Config.Applied.
func (f *File) Applied(applied *fsm.Applied, payload []byte, ledger func() [32]byte) {
	line := Line{Index: applied.Index, Term: applied.Term, Payload: payload, Outcome: Digest(applied)}
	if applied.Index%hashEvery == 0 {
		sum := ledger()
		line.Ledger = hex.EncodeToString(sum[:])
	}
	data, err := json.Marshal(&line)
	if err == nil {
		_, err = f.file.Write(append(data, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("record: %v", err))
	}
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Digest identifies the results and events of an entry, hexadecimal.
func Digest(applied *fsm.Applied) string {
	sum := sha256.New()
	out := bufio.NewWriter(sum)
	for _, result := range applied.Results {
		writeMessage(out, result)
	}
	for i := range applied.Events {
		event := applied.Events[i]
		result := event.Result
		event.Result = nil // a pointer, which differs between processes
		_, _ = fmt.Fprintf(out, "%+v", event)
		if result != nil {
			writeMessage(out, result)
		}
	}
	_ = out.Flush() // a hash accepts every write
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

func writeMessage(out *bufio.Writer, message proto.Message) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		panic(fmt.Sprintf("record: %v", err)) // the state machine makes only messages that can be encoded
	}
	_, _ = fmt.Fprintf(out, "%d:", len(data))
	_, _ = out.Write(data)
}

// Read calls fn with each line of a node's files, in the order in which they were written. It skips an incomplete last line, as a killed
// process can leave; any other unreadable line is an error.
func Read(dir string, fn func(*Line) error) error {
	paths, err := filepath.Glob(filepath.Join(dir, "applied-*.jsonl"))
	if err != nil {
		return err
	}
	for _, path := range paths { // Glob sorts, and names begin with the time
		if err := readFile(path, fn); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func readFile(path string, fn func(*Line) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	reader := bufio.NewReaderSize(file, 1<<20)
	for number := 1; ; number++ {
		data, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		line := new(Line)
		if err := json.Unmarshal(data, line); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if err := fn(line); err != nil {
			return err
		}
	}
}
