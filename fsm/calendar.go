package fsm

import "github.com/quotad/quotad/fsm/logpb"

// span is a window of Unix time: [start, end), nanoseconds.
type span struct{ start, end int64 }

// calendarSpan returns the calendar window that contains t. Days are 86,400 s of Unix time; months are those of the
// Gregorian calendar in UTC.
func calendarSpan(every logpb.Every, length, t int64) span {
	if every == logpb.Every_EVERY_MONTH {
		year, month := civilMonth(floorDiv(t, day))
		next := span{start: daysFromCivil(year, month) * day}
		if month == 12 {
			year, month = year+1, 0
		}
		next.end = daysFromCivil(year, month+1) * day
		return next
	}
	start := floorDiv(t, length) * length
	return span{start: start, end: start + length}
}

// daysFromCivil returns the days from 1970-01-01 to the first of a month. Years are counted from March, so that the
// leap day is a year's last: the era arithmetic of H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
func daysFromCivil(year, month int64) int64 {
	if month <= 2 {
		year--
	}
	era := floorDiv(year, 400)
	yearOfEra := year - era*400
	dayOfYear := (153*((month+9)%12) + 2) / 5
	dayOfEra := yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear
	return era*146097 + dayOfEra - 719468
}

// civilMonth returns the year and month (1-12) of a day counted from 1970-01-01.
func civilMonth(days int64) (year, month int64) {
	days += 719468
	era := floorDiv(days, 146097)
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
