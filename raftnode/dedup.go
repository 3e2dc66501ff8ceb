package raftnode

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

// dedupLogger is a logger for raft and the port for peers. They repeat the same line several times a second while a member does not answer
// or an anonymous caller calls. dedupLogger logs each line once in a while, with the number of repetitions; the rest goes to debug. Once
// the node stops, errors go to debug too: raft's transport reports its closed connections as errors.
type dedupLogger struct {
	hclog.Logger
	stopping *atomic.Bool
	lines    *LoggedLines
}

// repeatAfter is how long to suppress repetitions of a line.
const repeatAfter = 30 * time.Second

// maxSayings bounds the number of different lines remembered. Beyond it, lines that differ only in their subject count as the same: a
// anonymous caller chooses its own name.
const maxSayings = 256

// LoggedLines remembers recently logged lines. The zero value is ready to use.
type LoggedLines struct {
	mu  sync.Mutex
	all map[string]*loggedLine
}

// loggedLine is one line: when it was last logged, and how often it was suppressed since.
type loggedLine struct {
	at   time.Time
	kept int
}

func newDedupLogger(logger hclog.Logger, stopping *atomic.Bool) dedupLogger {
	return dedupLogger{logger, stopping, new(LoggedLines)}
}

// Error implements hclog.Logger.
func (q dedupLogger) Error(message string, args ...any) {
	if q.stopping.Load() {
		q.Debug(message, args...)
		return
	}
	q.once(q.Logger.Error, message, args)
}

// Warn implements hclog.Logger.
func (q dedupLogger) Warn(message string, args ...any) { q.once(q.Logger.Warn, message, args) }

func (q dedupLogger) once(say func(string, ...any), message string, args []any) {
	kept, due := q.lines.Due(message, whom(args), time.Now())
	switch {
	case !due:
		q.Debug(message, args...)
	case kept > 0:
		say(message, append(slices.Clip(args), "repeated", kept)...)
	default:
		say(message, args...)
	}
}

// whom returns the subject of a line, "" if it names none: lines about different members count as different.
func whom(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "target", "server-id", "from", "node":
			return fmt.Sprint(args[i+1])
		}
	}
	return ""
}

// Due tells whether a message about a subject may be logged again, and how often it was suppressed before. The messages must be few; the
// subjects may be chosen by anonymous callers.
func (s *LoggedLines) Due(message, of string, now time.Time) (kept int, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*loggedLine{}
	}
	last := s.all[message+" "+of]
	if last == nil && len(s.all) >= maxSayings {
		maps.DeleteFunc(s.all, func(_ string, said *loggedLine) bool { return now.Sub(said.at) >= repeatAfter })
		if len(s.all) >= maxSayings {
			of = ""
			last = s.all[message+" "+of]
		}
	}
	if last != nil && now.Sub(last.at) < repeatAfter {
		last.kept++
		return 0, false
	}
	if last != nil {
		kept = last.kept
	}
	s.all[message+" "+of] = &loggedLine{at: now}
	return kept, true
}
