package rpc

import (
	"bytes"
	"log"
	"net"
	"regexp"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/raftnode"
)

// serverLog is the log of an HTTP server. Anybody who connects has the server say something, such as that a handshake failed, so each kind
// of line is logged once in a while of each address, and the rest is debug: strangers could fill the disk with it.
type serverLog struct {
	logger hclog.Logger
	said   raftnode.LoggedLines
}

func newServerLog(logger hclog.Logger) *log.Logger { return log.New(&serverLog{logger: logger}, "", 0) }

// lineKind is how much of a line tells its kind: net/http begins each with words of its own, and no caller chooses so few of them.
const lineKind = 24

// lineAddress finds whose connection a line is about.
var lineAddress = regexp.MustCompile(` (?:from|client|serving) (\S+:\d+): `)

// Write implements io.Writer, of one line.
func (l *serverLog) Write(line []byte) (int, error) {
	n, host := len(line), ""
	line = bytes.TrimSpace(line)
	if found := lineAddress.FindSubmatch(line); found != nil {
		host, _, _ = net.SplitHostPort(string(found[1]))
	}
	switch kept, due := l.said.Due(string(line[:min(len(line), lineKind)]), host, time.Now()); {
	case !due:
		l.logger.Debug(string(line))
	case kept > 0:
		l.logger.Info(string(line), "repeated", kept)
	default:
		l.logger.Info(string(line))
	}
	return n, nil
}
