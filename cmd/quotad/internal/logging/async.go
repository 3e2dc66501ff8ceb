package logging

import (
	"io"
	"sync"
	"sync/atomic"
)

// queueLines is the maximum number of lines that wait for a slow terminal, pipe or disk.
const queueLines = 4096

// maxLine bounds one line, in bytes. A longer line is cut, so that the queue is bounded in bytes as well.
const maxLine = 16 << 10

// AsyncWriter writes lines to another writer from a goroutine of its own. The logger writes under its lock: with a plain
// writer one blocked pipe would stop every goroutine that logs, Raft's included. When the queue is full, lines are dropped
// and counted. It is safe for concurrent use.
type AsyncWriter struct {
	to      io.Writer
	lines   chan []byte
	dropped atomic.Uint64
	once    sync.Once
	stop    chan struct{}
	done    chan struct{}
}

// NewAsyncWriter starts the goroutine; Close ends it.
func NewAsyncWriter(to io.Writer) *AsyncWriter {
	w := &AsyncWriter{
		to: to, lines: make(chan []byte, queueLines), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	return w
}

// Write queues one line and never blocks. It always reports success, because a logger has nobody to report an error to.
func (w *AsyncWriter) Write(line []byte) (int, error) {
	kept := line
	if len(kept) > maxLine {
		kept = append(append([]byte{}, kept[:maxLine]...), "...\n"...)
	} else {
		kept = append([]byte{}, kept...)
	}
	select {
	case w.lines <- kept:
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

// Dropped returns the number of lines lost since the start.
func (w *AsyncWriter) Dropped() uint64 { return w.dropped.Load() }

// Close writes the queued lines and ends the goroutine. It returns early if giveUp is closed first: a blocked pipe must not
// keep the process alive.
func (w *AsyncWriter) Close(giveUp <-chan struct{}) {
	w.once.Do(func() { close(w.stop) })
	select {
	case <-w.done:
	case <-giveUp:
	}
}

func (w *AsyncWriter) run() {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.put(line)
		case <-w.stop:
			w.drain()
			return
		}
	}
}

func (w *AsyncWriter) drain() {
	for {
		select {
		case line := <-w.lines:
			w.put(line)
		default:
			return
		}
	}
}

func (w *AsyncWriter) put(line []byte) {
	if _, err := w.to.Write(line); err != nil {
		w.dropped.Add(1)
	}
}
