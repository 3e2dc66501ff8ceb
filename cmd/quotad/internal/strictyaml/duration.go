package strictyaml

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// maxDays bounds days to the range of a time.Duration.
const maxDays = int64(1<<63-1) / int64(day)

// ParseDuration parses the syntax of time.ParseDuration ("1h30m", "250ms"), optionally after a number of days ("31d",
// "1d12h").
func ParseDuration(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	count, err := strconv.ParseInt(days, 10, 64)
	if err != nil || count < 0 || count >= maxDays {
		return 0, fmt.Errorf("invalid number of days in %q", text)
	}
	sum := time.Duration(count) * day
	if rest == "" {
		return sum, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil {
		return 0, err
	}
	if more < 0 || more >= day || sum+more < sum {
		return 0, fmt.Errorf("after days, %q must be 0 to less than a day", rest)
	}
	return sum + more, nil
}

// FormatDuration formats a duration for ParseDuration, without empty units: 1h, not 1h0m0s; 7d, not 168h.
func FormatDuration(d time.Duration) string {
	if d >= day && d%time.Second == 0 {
		rest := ""
		if d%day != 0 {
			rest = FormatDuration(d % day)
		}
		return strconv.FormatInt(int64(d/day), 10) + "d" + rest
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
