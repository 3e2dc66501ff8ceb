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

// dedupLogger is a logger for raft and the port for peers, which say the same of a member that does not answer, or of a stranger that
// calls, some times a second, for as long as it lasts. It says each thing once in a while, and how often it was kept to itself; the
// rest is debug. Once the node stops, errors are of no interest: raft's transport calls its closed connections errors.
type dedupLogger struct {
	hclog.Logger
	stopping *atomic.Bool
	lines    *LoggedLines
}

// repeatAfter is how long the same is not said again.
const repeatAfter = 30 * time.Second

// maxSayings bounds how many different things are remembered. Beyond it, lines that differ in whom they are about only are the same:
// a stranger chooses its name.
const maxSayings = 256

// LoggedLines are the lines that were logged lately. The zero value is none.
type LoggedLines struct {
	mu  sync.Mutex
	all map[string]*loggedLine
}

// loggedLine is one line, when it was logged last, and how often it was suppressed since.
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

// whom is whom a line is about, if it says so: lines about different members are different.
func whom(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "target", "server-id", "from", "node":
			return fmt.Sprint(args[i+1])
		}
	}
	return ""
}

// Due tells whether something may be said again of somebody, and how often it was kept back. There must be few messages; those that it
// is said of may be strangers.
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
