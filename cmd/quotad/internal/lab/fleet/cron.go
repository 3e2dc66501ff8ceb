package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/netresearch/go-cron"
)

// Cron is when tasks begin, by the minute, in UTC: the five fields of crontab. The zero Cron never comes.
type Cron struct {
	schedule cron.Schedule
	text     string
}

// String returns the text that it was read from.
func (c Cron) String() string { return c.text }

// parseCron reads the five fields, or a word such as @hourly.
func parseCron(text string) (Cron, error) {
	// Time zones and @every would make something else of it, and some such texts end the parser.
	if strings.Contains(text, "=") || strings.HasPrefix(text, "@every") {
		return Cron{}, fmt.Errorf("%q must have five fields", text)
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return Cron{}, err
	}
	return Cron{schedule: schedule, text: text}, nil
}

// Next returns the first moment after one, and whether there is one.
func (c Cron) Next(after time.Time) (time.Time, bool) {
	if c.schedule == nil {
		return time.Time{}, false
	}
	next := c.schedule.Next(after.UTC())
	return next, !next.IsZero()
}

// Within returns the moments from one on, as lengths of time since then, that lie within a length of time: the first ones
// up to a bound. It returns as well how far it looked.
func (c Cron) Within(from time.Time, length time.Duration, most int) (moments []time.Duration, looked time.Duration) {
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
