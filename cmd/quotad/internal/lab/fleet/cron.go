package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/netresearch/go-cron"
)

// Cron is a schedule of tasks, by the minute, in UTC: the five fields of crontab. The zero Cron never fires.
type Cron struct {
	schedule cron.Schedule
	text     string
}

// String returns the text from which it was parsed.
func (c Cron) String() string { return c.text }

// parseCron parses the five fields, or a word such as @hourly.
func parseCron(text string) (Cron, error) {
	// Time zones and @every would change the meaning, and some texts with them panic in the parser.
	if strings.Contains(text, "=") || strings.HasPrefix(text, "@every") {
		return Cron{}, fmt.Errorf("%q must have five fields", text)
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return Cron{}, err
	}
	return Cron{schedule: schedule, text: text}, nil
}

// Next returns the first moment after a given one, and whether there is one.
func (c Cron) Next(after time.Time) (time.Time, bool) {
	if c.schedule == nil {
		return time.Time{}, false
	}
	next := c.schedule.Next(after.UTC())
	return next, !next.IsZero()
}

// Within returns up to most moments in [from, from+length), as durations since from. looked is the part of length that it
// covers.
func (c Cron) Within(from time.Time, length time.Duration, most int) (moments []time.Duration, searched time.Duration) {
	for at := from.Add(-time.Nanosecond); ; {
		next, ok := c.Next(at)
		after := next.Sub(from)
		switch {
		case !ok || after >= length:
			return moments, length
		case len(moments) == most:
			return moments, after
		}
		at, moments = next, append(moments, after)
	}
}
