package raftnode

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestDedupLogger_DeadMemberIsLoggedRarely: raft reports an unresponsive member four times a second. One line per member in half a minute
// is enough.
func TestDedupLogger_DeadMemberIsLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var stopping atomic.Bool
		q := newDedupLogger(hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Info, DisableTime: true}), &stopping)
		for range 4 * 60 {
			for _, peer := range []string{"n2", "n3"} {
				q.Error("failed to heartbeat to", "peer", peer, "error", errors.New("refused"))
			}
			time.Sleep(250 * time.Millisecond) //nolint:forbidigo // virtual time
		}
		q.Warn("something else")
		stopping.Store(true)
		q.Error("failed to decode", "error", errors.New("closed"))
		for line, want := range map[string]int{"peer=n2": 2, "peer=n3": 2, "repeated=119": 2, "something else": 1, "failed to decode": 0} {
			if got := strings.Count(out.String(), line); got != want {
				t.Errorf("%d lines with %q, want %d:\n%s", got, line, want, out.String())
			}
		}
	})
}

// TestLoggedLines_AreBounded: ever new names neither occupy unbounded memory nor fill the log.
func TestLoggedLines_AreBounded(t *testing.T) {
	s := new(LoggedLines)
	said := 0
	for i := range 10 * maxSayings {
		if _, due := s.Due("an anonymous caller", fmt.Sprint(i), time.Unix(0, 0)); due {
			said++
		}
	}
	if len(s.all) > maxSayings+1 || said != maxSayings+1 {
		t.Errorf("%d are remembered, %d said", len(s.all), said)
	}
	if _, due := s.Due("something else", "n2", time.Unix(0, 0)); !due {
		t.Error("anonymous callers' names hide something else")
	}
	later := time.Unix(0, 0).Add(repeatAfter)
	if kept, due := s.Due("an anonymous caller", "0", later); !due || kept != 0 {
		t.Errorf("kept back %d times, said %v", kept, due)
	}
	if _, due := s.Due("an anonymous caller", "new", later); !due {
		t.Error("what was said long ago takes the room of a new name")
	}
}
