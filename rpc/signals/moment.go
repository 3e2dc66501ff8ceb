package signals

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// momentForm matches a time of day, with or without a weekday or a date before it and a zone after it.
var momentForm = regexp.MustCompile(`(?i)^(?:on\s+)?` +
	`(?:(?P<weekday>mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+(?:at\s+)?)?` +
	`(?:(?:(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s+(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?` +
	`(?:,?\s+(?P<year>[0-9]{4}))?` +
	`|(?P<iso>[0-9]{4}-[0-9]{2}-[0-9]{2}))(?:\s+at\s+|,\s*|\s+|T))?` +
	`(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?)?(?:\s*(?P<half>am|pm)\b)?` +
	`(?:\s*\((?P<zone>[A-Za-z0-9_+/-]+)\)|\s*(?P<letters>(?-i:[A-Z]{1,5}))\b|(?P<offset>[+-][0-9]{2}:[0-9]{2}))?`)

// momentGoesOn matches a continuation of the moment, or an invalid zone: the moment was then misread.
var momentGoesOn = regexp.MustCompile(`^(?:[A-Za-z0-9:]|\s*\()`)

// moment reads a point in time at the beginning of text and returns the time until then: 3:45pm, 10:10pm (Europe/Moscow), Mon 12:00am,
// Aug 29 at 11am, Jul 22nd, 2026 10:42 AM, 2026-01-02 00:00 UTC. Missing parts are those of its next occurrence; without a zone it is in
// that of now. The past is 0. An unknown zone, or an abbreviation other than UTC, GMT and Z, makes it unreadable: the result would be
// hours off.
func moment(text string, now time.Time) (time.Duration, bool) {
	found := momentForm.FindStringSubmatch(text)
	if found == nil || momentGoesOn.MatchString(text[len(found[0]):]) {
		return 0, false
	}
	part := func(name string) string { return found[momentForm.SubexpIndex(name)] }
	hour, minute, second, ok := timeOfDay(part("hour"), part("minute"), part("second"), strings.ToLower(part("half")))
	if !ok {
		return 0, false
	}
	zone, ok := zoneOf(part("zone"), part("letters"), part("offset"), now)
	if !ok {
		return 0, false
	}
	local := now.In(zone)
	on := func(year int, month time.Month, day int) (time.Time, bool) {
		t := time.Date(year, month, day, hour, minute, second, 0, zone)
		return t, t.Month() == month && t.Day() == day
	}
	// Tools print whole minutes, so the present minute is not over yet.
	past := func(t time.Time) bool { return t.Before(local.Truncate(time.Minute)) }
	var at time.Time
	switch {
	case part("iso") != "":
		date, err := time.Parse(time.DateOnly, part("iso"))
		if err != nil {
			return 0, false
		}
		at, ok = on(date.Date())
	case part("month") != "":
		at, ok = dated(part("month"), part("day"), part("year"), local, on, past)
	default:
		at, ok = nextDay(strings.ToLower(part("weekday")), local, on, past)
	}
	left := at.Sub(now)
	if !ok || left > maxSpan {
		return 0, false
	}
	return max(left, 0), true
}

// timeOfDay reads hours of a 12-hour or 24-hour clock. An hour alone is not a time: it needs minutes, or am or pm.
func timeOfDay(hours, minutes, seconds, half string) (hour, minute, second int, ok bool) {
	hour, _ = strconv.Atoi(hours)
	minute, _ = strconv.Atoi(minutes)
	second, _ = strconv.Atoi(seconds)
	switch {
	case minute > 59 || second > 59 || (minutes == "" && half == ""):
		return 0, 0, 0, false
	case half == "":
		return hour, minute, second, hour <= 23
	case hour < 1 || hour > 12:
		return 0, 0, 0, false
	}
	hour %= 12
	if half == "pm" {
		hour += 12
	}
	return hour, minute, second, true
}

// zoneOf returns the named zone, or that of now if none is named.
func zoneOf(name, letters, offset string, now time.Time) (*time.Location, bool) {
	switch {
	case name != "":
		zone, err := time.LoadLocation(name)
		return zone, err == nil
	case offset != "":
		t, err := time.Parse("-07:00", offset)
		return t.Location(), err == nil
	case letters == "UTC" || letters == "GMT" || letters == "Z":
		return time.UTC, true
	}
	return now.Location(), letters == ""
}

// dated finds a day of a month: in the named year, or else the next one that exists.
func dated(
	month, day, year string, local time.Time, on func(int, time.Month, int) (time.Time, bool), past func(time.Time) bool,
) (time.Time, bool) {
	name, err := time.Parse("Jan", strings.ToUpper(month[:1])+strings.ToLower(month[1:]))
	if err != nil {
		return time.Time{}, false
	}
	number, _ := strconv.Atoi(day)
	if year != "" {
		y, _ := strconv.Atoi(year)
		return on(y, name.Month(), number)
	}
	// Eight years contain a 29th of February, whatever the first one is.
	for y := local.Year(); y <= local.Year()+8; y++ {
		if t, ok := on(y, name.Month(), number); ok && !past(t) {
			return t, true
		}
	}
	return time.Time{}, false
}

// nextDay finds the next day on which the time of day is not past: any day, or one weekday.
func nextDay(
	weekday string, local time.Time, on func(int, time.Month, int) (time.Time, bool), past func(time.Time) bool,
) (time.Time, bool) {
	for ahead := range 8 {
		day := local.AddDate(0, 0, ahead)
		if weekday != "" && !strings.HasPrefix(strings.ToLower(day.Weekday().String()), weekday) {
			continue
		}
		if t, _ := on(day.Date()); !past(t) {
			return t, true
		}
	}
	return time.Time{}, false
}
