// Package logging makes the server's logger: levelled lines as text or JSON. A goroutine of its own writes them, so that a
// stuck reader of the log never stops the server.
package logging

import (
	"io"

	"github.com/hashicorp/go-hclog"
)

// New returns a logger that writes to w. Level is trace, debug, info, warn or error; format is text or json.
func New(w io.Writer, level, format string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name:       "quotad",
		Level:      hclog.LevelFromString(level),
		Output:     w,
		JSONFormat: format == "json",
		TimeFormat: "2006-01-02T15:04:05.000Z07:00",
	})
}
