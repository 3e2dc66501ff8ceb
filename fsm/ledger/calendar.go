package ledger

import (
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Span is a window of Unix time: [start, end), nanoseconds.
type Span struct{ start, End int64 }

// calendarSpan returns the calendar window that contains t. Days are 86,400 s of Unix time; months are those of the
// Gregorian calendar in UTC.
func calendarSpan(every logpb.Every, length, t int64) Span {
	if every == logpb.Every_EVERY_MONTH {
		year, month := civilMonth(fixed.FloorDiv(t, fixed.Day))
		next := Span{start: daysFromCivil(year, month) * fixed.Day}
		if month == 12 {
			year, month = year+1, 0
		}
		next.End = daysFromCivil(year, month+1) * fixed.Day
		return next
	}
	start := fixed.FloorDiv(t, length) * length
	return Span{start: start, End: start + length}
}

// daysFromCivil returns the days from 1970-01-01 to the first of a month. It counts years from March, so that the leap
// day is the last of a year: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
func daysFromCivil(year, month int64) int64 {
	if month <= 2 {
		year--
	}
	era := fixed.FloorDiv(year, 400)
	yearOfEra := year - era*400
	dayOfYear := (153*((month+9)%12) + 2) / 5
	dayOfEra := yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear
	return era*146097 + dayOfEra - 719468
}

// civilMonth returns the year and month (1-12) of a day counted from 1970-01-01.
func civilMonth(days int64) (year, month int64) {
	days += 719468
	era := fixed.FloorDiv(days, 146097)
	dayOfEra := days - era*146097
	yearOfEra := (dayOfEra - dayOfEra/1460 + dayOfEra/36524 - dayOfEra/146096) / 365
	dayOfYear := dayOfEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	shifted := (5*dayOfYear + 2) / 153
	month = shifted + 3
	if month > 12 {
		month -= 12
	}
	year = yearOfEra + era*400
	if month <= 2 {
		year++
	}
	return year, month
}
