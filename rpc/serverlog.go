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

// lineKind is how much of a line, and of what follows the address, tells its kind: net/http and crypto/tls begin each with words of their
// own, and no caller chooses so few of them.
const lineKind = 24

// lineAddress finds whose connection a line is about.
var lineAddress = regexp.MustCompile(` (?:from|client|serving) (\S+:\d+): `)

// Write implements io.Writer, of one line.
func (l *serverLog) Write(line []byte) (int, error) {
	n, host := len(line), ""
	line = bytes.TrimSpace(line)
	kind := beginning(string(line), lineKind)
	if at := lineAddress.FindSubmatchIndex(line); at != nil {
		host, _, _ = net.SplitHostPort(string(line[at[2]:at[3]]))
		kind += beginning(string(line[at[1]:]), lineKind)
	}
	switch kept, due := l.said.Due(kind, host, time.Now()); {
	case !due:
		l.logger.Debug(string(line))
	case kept > 0:
		l.logger.Info(string(line), "repeated", kept)
	default:
		l.logger.Info(string(line))
	}
	return n, nil
}
