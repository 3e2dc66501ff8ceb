// Package record writes down what a node applied, for those who judge a run from outside: every entry with its payload
// and a digest of what it came to. A dump of the log at the end says less: an entry that was applied and then lost is
// not in it.
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

// hashEvery is at which multiples of the index the ledger's hash is recorded: it costs a walk over the whole state.
const hashEvery = 256

// Line is one entry that a node applied, a line of JSON.
type Line struct {
	Index uint64 `json:"i"`
	Term  uint64 `json:"t"`
	// Payload is the encoded entry.
	Payload []byte `json:"p"`
	// Outcome is Digest of what it came to.
	Outcome string `json:"o"`
	// Ledger is the hash of the ledger after the entry, hexadecimal; only at some indices, the same on every node.
	Ledger string `json:"h,omitempty"`
}

// File is what one life of a process applied.
type File struct{ file *os.File }

// Create makes a new file in a directory, which it makes as well.
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

// Applied writes one entry, in one write: a process that is killed loses nothing that it wrote. It panics where it
// cannot write, since a record with a hole proves nothing. It is what raftnode.Config.Applied wants.
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
		event.Result = nil // a pointer, which no two processes share
		_, _ = fmt.Fprintf(out, "%+v", event)
		if result != nil {
			writeMessage(out, result)
		}
	}
	_ = out.Flush() // a hash takes all
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

func writeMessage(out *bufio.Writer, message proto.Message) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		panic(fmt.Sprintf("record: %v", err)) // the state machine makes no message that cannot be encoded
	}
	_, _ = fmt.Fprintf(out, "%d:", len(data))
	_, _ = out.Write(data)
}

// Read calls fn with each line of the files of a node's directory, in the order in which they were written. A last line
// that was cut off, as that of a killed process may be, is left out; any other that cannot be read is an error.
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
