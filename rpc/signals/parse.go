package signals

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// count reads a header with a whole number. Of several lines the smallest counts. -1 is a common form of unknown and is not malformed.
func (r *response) count(name string) Count {
	var least Count
	for _, value := range r.header.Values(name) {
		value = strings.TrimSpace(value)
		if value == "-1" {
			continue
		}
		n, ok := parseCount(value)
		if !ok {
			r.malformed++
			continue
		}
		if !least.Known || n < least.N {
			least = Count{N: n, Known: true}
		}
	}
	return least
}

// longest reads a header with parse, which returns an unknown span for a moment that cannot be determined. Of several lines the longest
// counts.
func (r *response) longest(name string, parse func(string) (Span, bool)) Span {
	var most Span
	for _, value := range r.header.Values(name) {
		span, ok := parse(strings.TrimSpace(value))
		if !ok || span.D < 0 || span.D > maxSpan {
			r.malformed++
			continue
		}
		if span.Known && (!most.Known || span.D > most.D) {
			most = span
		}
	}
	return most
}

// lengths reads values that are lengths of time, which need no clock.
func lengths(parse func(string) (time.Duration, bool)) func(string) (Span, bool) {
	return func(value string) (Span, bool) {
		d, ok := parse(value)
		return Span{D: d, Known: ok}, ok
	}
}

// sinceEpoch reads seconds since 1970 as a time from now; the past is 0.
func (r *response) sinceEpoch(value string) (Span, bool) {
	n, ok := parseCount(value)
	if !ok {
		return Span{}, false
	}
	return r.until(n, time.Second)
}

// guessed reads a number whose unit has to be guessed from its size: milliseconds or seconds since 1970, or seconds
// from now.
func (r *response) guessed(value string) (Span, bool) {
	n, ok := parseCount(value)
	switch {
	case !ok:
		return Span{}, false
	case n > 1e12:
		return r.until(n, time.Millisecond)
	case n > 1e9:
		return r.until(n, time.Second)
	}
	return lengths(seconds)(value)
}

// left returns the time until a moment; the past is 0. Every moment of a response is converted here: an undated answer's is unknown.
func (r *response) left(at time.Time) Span {
	if r.undated {
		return Span{}
	}
	return Span{D: max(0, at.Sub(r.now)), Known: true}
}

// until converts a moment, counted in units since 1970, to a time from now.
func (r *response) until(n int64, unit time.Duration) (Span, bool) {
	r.moments = true
	perSecond := int64(time.Second / unit)
	whole, rest := n/perSecond, n%perSecond
	// Outside these bounds neither the subtraction nor the result makes sense.
	if apart := whole - r.now.Unix(); apart > int64(maxSpan/time.Second) || whole > 1<<40 {
		return Span{}, false
	}
	return r.left(time.Unix(whole, rest*int64(unit))), true
}

// retryAfter reads the Retry-After family: milliseconds win over seconds or a date.
func (r *response) retryAfter() wait {
	for _, value := range r.header.Values("Retry-After-Ms") {
		if d, ok := decimal(strings.TrimSpace(value), time.Millisecond); ok {
			return waitFor(d)
		}
		r.malformed++
	}
	var most wait
	for _, value := range r.header.Values("Retry-After") {
		span, ok := r.secondsOrDate(strings.TrimSpace(value))
		if !ok {
			r.malformed++
			continue
		}
		most.said = true
		if span.Known && (!most.known || span.D > most.d) {
			most = waitFor(span.D)
		}
	}
	return most
}

// asks matches the words before the wait in a message.
var asks = regexp.MustCompile(`(?i)\b(?:(?:try again|retry) in|retry after|please wait) `)

// messageWait reads the wait in a message.
func messageWait(message string) wait {
	for _, at := range asks.FindAllStringIndex(message, 8) {
		if d, ok := spoken(message[at[1]:]); ok {
			return waitFor(d)
		}
	}
	return wait{}
}

// rfc3339 reads a moment as a time from now; the past is 0.
func (r *response) rfc3339(value string) (Span, bool) {
	r.moments = true
	at, err := time.Parse(time.RFC3339, value)
	return r.left(at), err == nil
}

// readJSON reads the fields of value from JSON. A field of an unexpected type is left out and does not affect the others. It returns
// false if body is not a complete JSON value.
func readJSON(body []byte, value any) bool {
	err := json.Unmarshal(body, value)
	_, odd := errors.AsType[*json.UnmarshalTypeError](err)
	return err == nil || odd
}

// events yields the data of a stream's events.
func events(body []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(body) {
			if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && !yield(data) {
				return
			}
		}
	}
}

// secondsOrDate reads both forms of Retry-After. A date is compared with the response's own Date where it has one, so
// that the two machines' clocks need not agree.
func (r *response) secondsOrDate(value string) (Span, bool) {
	if d, ok := seconds(value); ok {
		return Span{D: d, Known: true}, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return Span{}, false
	}
	return r.left(at), true
}

// noRetry reports whether the provider asked not to try again.
func (r *response) noRetry() bool {
	return strings.EqualFold(strings.TrimSpace(r.header.Get("X-Should-Retry")), "false")
}

// parseCount reads a whole number, with or without commas between groups of thousands.
func parseCount(value string) (int64, bool) {
	if value == "" || len(value) > 24 {
		return 0, false
	}
	groups := strings.Split(value, ",")
	n := int64(0)
	for i, group := range groups {
		if group == "" || (i > 0 && len(group) != 3) || (i == 0 && len(groups) > 1 && len(group) > 3) {
			return 0, false
		}
		for _, c := range []byte(group) {
			if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
				return 0, false
			}
			n = n*10 + int64(c-'0')
		}
	}
	return n, true
}

// seconds reads a plain decimal number of seconds.
func seconds(value string) (time.Duration, bool) { return decimal(value, time.Second) }

// decimal reads digits with at most one point, counted in units. Signs, exponents, NaN and infinities are invalid. A value too large for
// a Duration becomes the largest one, for the caller to bound.
func decimal(value string, unit time.Duration) (time.Duration, bool) {
	whole, fraction, pointed := strings.Cut(value, ".")
	if len(value) > 40 || !digits(whole) || (pointed && !digits(fraction)) {
		return 0, false
	}
	most := int64(math.MaxInt64 / unit)
	n := int64(0)
	for _, c := range []byte(whole) {
		if n > (most-9)/10 {
			return math.MaxInt64, true
		}
		n = n*10 + int64(c-'0')
	}
	d := time.Duration(n) * unit
	for _, c := range []byte(fraction) {
		unit /= 10
		d += time.Duration(c-'0') * unit
	}
	return d, true
}

func digits(s string) bool {
	if s == "" {
		return false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// goDuration reads a duration as Go writes it (6m0s, 12ms, 2m59.56s), or a plain number of seconds.
func goDuration(value string) (time.Duration, bool) {
	if d, ok := seconds(value); ok {
		return d, true
	}
	if len(value) > 40 || strings.ContainsAny(value, "+-") {
		return 0, false
	}
	d, err := time.ParseDuration(value)
	return d, err == nil && d >= 0
}

// Units of shares: a share is counted in millionths of the whole.
const (
	// millionth reads shares that are written as parts of 1.
	millionth = time.Duration(1_000_000)
	// tenThousandth reads shares that are written in percent.
	tenThousandth = time.Duration(10_000)
)

// share reads the used part of a limit. More than a hundred times the whole is invalid.
func share(value string, unit time.Duration) Count {
	d, ok := decimal(strings.TrimSpace(value), unit)
	if !ok || d > 100*millionth {
		return Count{}
	}
	return Count{N: int64(d), Known: true}
}

// share reads a header that holds the used part of a limit. Of several lines the largest counts.
func (r *response) share(name string, unit time.Duration) Count {
	var most Count
	for _, value := range r.header.Values(name) {
		part := share(value, unit)
		if !part.Known {
			r.malformed++
		}
		if part.Known && (!most.Known || part.N > most.N) {
			most = part
		}
	}
	return most
}

// word returns a name that can be a provider's name of a limit, and "" for others.
func word(name string) string {
	name = strings.TrimSpace(name)
	if len(name) > 64 {
		return ""
	}
	for _, c := range []byte(name) {
		if !isLetter(c) && (c < '0' || c > '9') && strings.IndexByte("._-/ ", c) < 0 {
			return ""
		}
	}
	return name
}
