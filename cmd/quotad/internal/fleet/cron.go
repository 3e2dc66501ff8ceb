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

// parseCron reads the five fields, or a word such as @hourly.
func parseCron(text string) (Cron, error) {
	// Time zones and @every would make something else of it, and some such texts end the parser.
	if strings.Contains(text, "=") || strings.HasPrefix(text, "@every") {
		return Cron{}, fmt.Errorf("%q has no five fields", text)
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

// Within counts the moments from one to another, the first included, up to a bound.
func (c Cron) Within(from time.Time, length time.Duration, most int) int {
	count, at := 0, from.Add(-time.Nanosecond)
	for count < most {
		next, ok := c.Next(at)
		if !ok || !next.Before(from.Add(length)) {
			break
		}
		at = next
		count++
	}
	return count
}
