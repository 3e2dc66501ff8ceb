package taskrun

import (
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/quotad/quotad/rpc/signals"
)

// lastLines is the maximum number of lines on the same stream after a message about a limit that ended a run. If more
// follow, the agent has continued to work, and something else ended the run.
const lastLines = 20

// listener reads a child's output on both streams.
type listener struct {
	texts *signals.Texts
	// done matches a line of standard output of a finished task; nil: the exit code decides.
	done *regexp.Regexp
	now  func() time.Time

	// mu: two goroutines read the streams.
	mu       sync.Mutex
	finished bool
	out, err stream
}

// stream is the state of one stream.
type stream struct {
	last    string
	message signals.Message
	line    string
	// at is when the message was printed; since is the number of lines after it.
	at    time.Time
	since int
}

// hearOut processes a line of standard output, hearErr one of standard error.
func (l *listener) hearOut(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = l.finished || l.done != nil && l.done.Match(line)
	l.hear(&l.out, string(line))
}

func (l *listener) hearErr(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hear(&l.err, string(line))
}

func (l *listener) hear(s *stream, line string) {
	s.last = line
	s.since++
	now := l.now()
	if message, ok := l.texts.Match(line, now); ok && isLimit(message) {
		s.message, s.line, s.at, s.since = message, line, now, 0
	}
}

func isLimit(m signals.Message) bool { return m.Class.Limited() || m.Class == signals.Overloaded }

// heard returns the findings about a run that has ended.
func (l *listener) heard() heard {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := heard{wanted: l.done != nil, finished: l.finished, limit: l.limitLocked(), last: tidy(l.err.last)}
	if h.last == "" {
		h.last = tidy(l.out.last)
	}
	return h
}

// limitLocked returns the last message about a limit that is close enough to the end of its stream; nil: none. The wait
// that it returns counts from now.
func (l *listener) limitLocked() *limit {
	var last *stream
	for _, s := range []*stream{&l.out, &l.err} {
		if s.message.Class != 0 && s.since <= lastLines && (last == nil || s.at.After(last.at)) {
			last = s
		}
	}
	if last == nil {
		return nil
	}
	found := &limit{message: last.message, line: tidy(last.line)}
	if wait := last.message.Wait; wait.Known {
		left := max(wait.D-l.now().Sub(last.at), 0)
		found.wait = &left
	}
	return found
}

// limit is a child's message about a limit.
type limit struct {
	message signals.Message
	line    string
	wait    *time.Duration
}

// maxReported is the part of a line that is reported to the cluster, in bytes.
const maxReported = 200

// colours matches a terminal's escape sequences.
var colours = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)

// tidy makes a line fit for a table: it drops control characters, and all beyond maxReported bytes.
func tidy(line string) string {
	line = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(colours.ReplaceAllString(line, ""), ""))
	line = strings.TrimSpace(line)
	return strings.ToValidUTF8(line[:min(len(line), maxReported)], "")
}
