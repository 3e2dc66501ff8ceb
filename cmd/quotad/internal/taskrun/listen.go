package taskrun

import (
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/quotad/quotad/rpc/signals"
)

// lastLines is how many lines of the same stream may follow a message about a limit for it to be what ended a run. One that
// the agent got over, and worked on after, is not.
const lastLines = 20

// listener reads along what a child says on both its streams.
type listener struct {
	texts *signals.Texts
	// done is what a finished task prints on standard output; nil: its exit code says so.
	done *regexp.Regexp
	now  func() time.Time

	// mu: the streams are read apart.
	mu       sync.Mutex
	finished bool
	out, err stream
}

// stream is what is remembered of one stream.
type stream struct {
	last    string
	message signals.Message
	line    string
	// at is when the message was said, since how many lines followed.
	at    time.Time
	since int
}

// hearOut takes a line of standard output, hearErr one of standard error.
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

// heard returns what was made out of a run that has ended.
func (l *listener) heard() heard {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := heard{wanted: l.done != nil, finished: l.finished, limit: l.limitLocked(), last: tidy(l.err.last)}
	if h.last == "" {
		h.last = tidy(l.out.last)
	}
	return h
}

// limitLocked returns the last message about a limit that is near enough to the end of its stream, nil: there is none. Its
// wait counts from now on.
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

// limit is what a child said of one.
type limit struct {
	message signals.Message
	line    string
	wait    *time.Duration
}

// maxTold is how much of a line is told to the cluster, in bytes.
const maxTold = 200

// colours are a terminal's escape sequences.
var colours = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)

// tidy makes a line fit for a table: no control characters, no more than is read.
func tidy(line string) string {
	line = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(colours.ReplaceAllString(line, ""), ""))
	line = strings.TrimSpace(line)
	return strings.ToValidUTF8(line[:min(len(line), maxTold)], "")
}
