package demo

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// event is one line that an agent writes to its parent.
type event struct {
	Kind eventKind `json:"kind"`
	// The following fields describe a call.
	API     api           `json:"api,omitempty"`
	Outcome outcome       `json:"outcome,omitempty"`
	Wait    time.Duration `json:"wait,omitempty"` // from the wish to call to the sending of the last attempt
	Tries   int           `json:"tries,omitempty"`
	Detail  string        `json:"detail,omitempty"`
}

type eventKind string

// The kinds of events.
const (
	callEnded  eventKind = "call"
	taskEnded  eventKind = "task"
	taskMissed eventKind = "missed" // a tick passed while the last task still ran
	agentReady eventKind = "ready"
)

// api is one of the provider's two APIs.
type api string

// The APIs.
const (
	github api = "github"
	openai api = "openai"
)

type outcome string

// The outcomes of a call.
const (
	done    outcome = "ok"
	gaveUp  outcome = "gave up" // the provider refused every attempt
	refused outcome = "refused" // the cluster refused it
	failed  outcome = "failed"  // anything else
	cutOff  outcome = "cut off" // the demo ended first
)

// eventWriter writes events, one to a line.
type eventWriter struct {
	mu  sync.Mutex
	out io.Writer
}

// write writes an event. It ignores errors: if the parent is gone, the agent's input ends and so does the agent.
func (w *eventWriter) write(e event) {
	line, err := json.Marshal(e)
	if err != nil {
		return // plain values always have a JSON form
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(append(line, '\n'))
}
