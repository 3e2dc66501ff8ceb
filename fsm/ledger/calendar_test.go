package ledger

import (
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestCalendarSpan: hours and days of Unix time, months of the Gregorian calendar in UTC, from 1970 to 2200.
func TestCalendarSpan(t *testing.T) {
	for moment := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC); moment.Year() <= 2200; moment = moment.AddDate(0, 0, 1).Add(7 * time.Hour) {
		month := time.Date(moment.Year(), moment.Month(), 1, 0, 0, 0, 0, time.UTC)
		today := time.Date(moment.Year(), moment.Month(), moment.Day(), 0, 0, 0, 0, time.UTC)
		at := func(m time.Time) int64 { return m.Unix() * fixed.Second }
		for name, c := range map[string]struct{ got, want Span }{
			"month": {calendarSpan(logpb.Every_EVERY_MONTH, 0, at(moment)), Span{at(month), at(month.AddDate(0, 1, 0))}},
			"day":   {calendarSpan(logpb.Every_EVERY_DAY, fixed.Day, at(moment)), Span{at(today), at(today.AddDate(0, 0, 1))}},
			"hour": {
				calendarSpan(logpb.Every_EVERY_HOUR, fixed.Hour, at(moment)),
				Span{at(moment.Truncate(time.Hour)), at(moment.Truncate(time.Hour).Add(time.Hour))},
			},
		} {
			if c.got != c.want && c.want.End < 1<<63-1 && c.want.End > 0 {
				t.Fatalf("%s of %v: %v, want %v", name, moment, c.got, c.want)
			}
		}
	}
}
