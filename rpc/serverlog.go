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

// serverLog is the log of an HTTP server. Anonymous callers that connect can make the server log lines, such as that a handshake failed,
// and could fill the disk. So each kind of line is logged once in an interval for each address; the rest is debug.
type serverLog struct {
	logger hclog.Logger
	said   raftnode.LoggedLines
}

func newServerLog(logger hclog.Logger) *log.Logger { return log.New(&serverLog{logger: logger}, "", 0) }

// lineKind is how many bytes of a line, and of its part after the address, tell its kind. net/http and crypto/tls begin each kind with
// words of their own, and callers do not control so early a part.
const lineKind = 24

// lineAddress finds the address of the connection that a line is about.
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
