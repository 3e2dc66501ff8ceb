package signals

import (
	"net/http"
	"testing"
	"time"
)

// TestObserve_CountsFromTheAnswersOwnDate: an agent whose clock is 20 minutes ahead, or behind, finds the same reset as all
// others; without a Date a reset that is a moment is not told.
func TestObserve_CountsFromTheAnswersOwnDate(t *testing.T) {
	sent := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	dated := func(pairs ...string) http.Header {
		h := headers(pairs...)
		h.Set("Date", sent.Format(http.TimeFormat))
		return h
	}
	reset := "1767265200" // 11:00
	for name, c := range map[string]struct {
		dialect Dialect
		header  http.Header
		status  int
		want    time.Duration // 0: not told
	}{
		"GitHub":                 {GitHub, dated("X-Ratelimit-Limit", "5000", "X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", reset), 200, time.Hour},
		"GitHub, used up":        {GitHub, dated("X-Ratelimit-Limit", "5000", "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", reset), 403, time.Hour},
		"any provider":           {Generic, dated("X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", reset), 200, time.Hour},
		"no Date":                {GitHub, headers("X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", reset), 200, 0},
		"a Date that is none":    {GitHub, headers("X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", reset, "Date", "yesterday"), 200, 0},
		"a duration has no Date": {Generic, headers("X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", "3600"), 200, time.Hour},
	} {
		for _, off := range []time.Duration{0, 20 * time.Minute, -20 * time.Minute, 300 * 24 * time.Hour} {
			said := c.dialect.ObserveAnswer(sent.Add(off), c.status, c.header, nil)
			if len(said) == 0 {
				t.Fatalf("%s: nothing is said", name)
			}
			got := said[0].ResetIn
			if got.Known != (c.want > 0) || got.D != c.want {
				t.Errorf("%s, a clock that is %v off: the reset is in %v (known: %t), want %v", name, off, got.D, got.Known, c.want)
			}
			if precise := said[0].ResetResolution; got.Known && c.header.Get("Date") != "" && precise < 2*time.Second {
				t.Errorf("%s: two moments in whole seconds give a reset within %v", name, precise)
			}
		}
	}
}
