// Package history is the record of a run: requests and answers, the provider's view, and the faults with their times. (Package record has
// the entries that each node applied.) It consists of files of JSON lines, one kind each, so that a run can be judged long after it, and by
// other tools. All times are nanoseconds of the machine's monotonic clock, which all processes of a run share.
package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Now is the machine's monotonic clock in nanoseconds. Unlike that of package time, it can be compared between processes.
func Now() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("history: the monotonic clock cannot be read: %v", err)) // Linux never refuses it
	}
	return now.Nano()
}

// Call is one attempt of a client at one node.
type Call struct {
	// Client is the caller. One client may have several calls in flight.
	Client string `json:"client"`
	// Target is the called address, host:port.
	Target string `json:"target"`
	// Procedure is the API's: Reserve, Consume, ...
	Procedure string `json:"procedure"`
	// Sent and Returned are when the attempt began and ended.
	Sent     int64 `json:"sent"`
	Returned int64 `json:"returned"`
	// Request is the encoded request.
	Request []byte `json:"request"`
	// Response is the encoded answer; nil after an error.
	Response []byte `json:"response,omitempty"`
	// Error is set when there is no answer.
	Error *Error `json:"error,omitempty"`
}

// Error is the reason why a call has no answer.
type Error struct {
	// Code is Connect's.
	Code string `json:"code,omitempty"`
	// Reason is quotad's, by number; 0 if the error does not come from quotad, such as a broken connection or a timeout: then the outcome is
	// unknown.
	Reason int32 `json:"reason,omitempty"`
	// Budget is the exhausted shared budget, if that is the reason.
	Budget string `json:"budget,omitempty"`
	// NotAccepted is quotad's promise that the command was not and will not be applied.
	NotAccepted bool `json:"not_accepted,omitempty"`
	// NotSent says that no connection was made.
	NotSent bool `json:"not_sent,omitempty"`
	// Canceled says that the caller itself ended the call, such as the slower one of two attempts. A timeout is no such end.
	Canceled bool `json:"canceled,omitempty"`
	// Text is for people.
	Text string `json:"text"`
}

// Spend is one call that the provider served.
type Spend struct {
	// Quota is the charged quota.
	Quota string `json:"quota"`
	// Amount is how much.
	Amount int64 `json:"amount"`
	// Lease and Fence are the grant that the caller names.
	Lease uint64 `json:"lease,omitempty"`
	Fence uint64 `json:"fence,omitempty"`
	// By is the caller.
	By string `json:"by"`
	// Of calls through a gateway, ID is the request, Status the provider's answer; Whole says that the answer was written to its end.
	ID     string `json:"id,omitempty"`
	Status int    `json:"status,omitempty"`
	Whole  bool   `json:"whole,omitempty"`
	// Began and Ended bound the time at the provider.
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
}

// Asked is one call of an agent to a model, through a gateway.
type Asked struct {
	// By is the agent, ID the request.
	By string `json:"by"`
	ID string `json:"id"`
	// Sent and Returned bound the call.
	Sent     int64 `json:"sent"`
	Returned int64 `json:"returned"`
	// Status is the answer's; 0: there was none. Whole says that it was complete, Left that the agent left before that on purpose.
	Status int  `json:"status"`
	Whole  bool `json:"whole"`
	Left   bool `json:"left"`
	// Text is the body of a refusal, or the error.
	Text string `json:"text,omitempty"`
}

// Seen is one event, or the end, of a watch stream.
type Seen struct {
	// Watcher owns the stream, Stream counts its streams.
	Watcher string `json:"watcher"`
	Stream  int    `json:"stream"`
	// From is the requested first index.
	From uint64 `json:"from,omitempty"`
	// Message is the encoded WatchResponse.
	Message []byte `json:"message,omitempty"`
	// End is set on the last line of a stream that ended.
	End *Error `json:"end,omitempty"`
	At  int64  `json:"at"`
}

// Fault is something that the suite did to the cluster.
type Fault struct {
	// Kind names it, such as kill-leader.
	Kind string `json:"kind"`
	// Targets are the nodes, links or hosts that it hit.
	Targets []string `json:"targets,omitempty"`
	// Began and Ended bound it; for an instantaneous fault they are equal.
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
	// Confirmed is the effect seen from outside: a process that is gone, packets that were dropped.
	Confirmed string `json:"confirmed,omitempty"`
	// Broken is a promise seen broken while the fault lasted, of those that only the fault itself can see.
	Broken string `json:"broken,omitempty"`
	// Refused counts the refusals to a caller that was the fault, by the budget that they name.
	Refused map[string]int64 `json:"refused,omitempty"`
	// Full says that it asked for more of each kind than a caller can have, connections and streams included.
	Full bool `json:"full,omitempty"`
	// Damaged is the kind of the damaged file, one of FileKinds.
	Damaged string `json:"damaged,omitempty"`
	// Failed says why it could not be injected.
	Failed string `json:"failed,omitempty"`
	// Unavailable says that service cannot be expected while it lasts.
	Unavailable bool `json:"unavailable,omitempty"`
	// Ends says that it makes processes end by themselves.
	Ends bool `json:"ends,omitempty"`
	// Restores are the restored backups: several if attempts without an answer took effect.
	Restores []*Restore `json:"restores,omitempty"`
}

// Kinds of files in a data directory: the log with the terms and votes, snapshots, the witness, and the small files with the disk's
// identity and state.
const (
	FileLog      = "log"
	FileSnapshot = "snapshot"
	FileWitness  = "witness"
	FileSmall    = "small file"
)

// FileKinds are all of them.
var FileKinds = []string{FileLog, FileSnapshot, FileWitness, FileSmall}

// Restore is the restore of a backup. It loses the log entries after Backup and before Index. If its leader was lost with it, the successor
// gave Index to an entry, and nothing was restored.
type Restore struct {
	// Backup is the index of the backup, File its path in the run's folder; empty: it was not kept.
	Backup uint64 `json:"backup"`
	File   string `json:"file,omitempty"`
	// Index is the restore's place in the log, Epoch that of later fences; 0: unknown.
	Index uint64 `json:"index"`
	Epoch uint32 `json:"epoch,omitempty"`
	// Began and Ended bound the restore.
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
}

// Machine begins the names of machines with a gateway. A gateway's own calls to the cluster are not recorded: the provider's log judges
// them.
const Machine = "machine-"

// Unrecorded begins the idempotency keys and names of callers whose calls are not recorded: those that are faults.
const Unrecorded = "hostile-"

// Writer writes lines of one kind. It is safe for concurrent use.
type Writer[T any] struct {
	mu   sync.Mutex
	file *os.File
	err  error
}

// Create creates a file for lines of one kind. It must not exist yet.
func Create[T any](path string) (*Writer[T], error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer[T]{file: file}, nil
}

// Write writes a line, in one write to the file: a killed process loses no line that it has written. Close returns the first error.
func (w *Writer[T]) Write(line *T) {
	data, err := json.Marshal(line)
	if err != nil {
		panic(fmt.Sprintf("history: %T cannot be a line: %v", line, err)) // its fields are fixed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.file.Write(append(data, '\n')); err != nil && w.err == nil {
		w.err = err
	}
}

// Close closes the file and returns the first error of all writes.
func (w *Writer[T]) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.err, w.file.Close())
}

// Read calls fn with each line of the files that match a pattern, file by file. It ignores an incomplete last line, which a killed process
// may leave; any other invalid line is an error.
func Read[T any](pattern string, fn func(*T) error) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := readFile(path, fn); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func readFile[T any](path string, fn func(*T) error) error {
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
		line := new(T)
		if err := json.Unmarshal(data, line); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if err := fn(line); err != nil {
			return err
		}
	}
}

// All returns the lines of the files that match a pattern.
func All[T any](pattern string) ([]*T, error) {
	var lines []*T
	err := Read(pattern, func(line *T) error {
		lines = append(lines, line)
		return nil
	})
	return lines, err
}
