package providertest

import (
	"math"
	"time"
)

// meter counts amounts against a limit per period. It refuses nothing: callers check wait before they take.
type meter interface {
	// used returns the amount that counts now.
	used(now time.Time) int64
	// take counts n from now on; a bucket does not fall below empty.
	take(now time.Time, n int64)
	// wait returns how long until n more fit, 0 if they fit now. n must be at most the limit.
	wait(now time.Time, n int64) time.Duration
	// fullIn returns how long until nothing counts any more.
	fullIn(now time.Time) time.Duration
}

// newMeter returns a meter of that kind.
func newMeter(kind Algorithm, limit int64, period time.Duration) meter {
	if kind == Bucket {
		return &bucket{limit: limit, period: period}
	}
	return &slidingLog{limit: limit, period: period}
}

// slidingLog has all amounts of the last period. An amount at the moment t counts in [t, t+period).
type slidingLog struct {
	limit   int64
	period  time.Duration
	entries []entry
	sum     int64
}

type entry struct {
	at time.Time
	n  int64
}

func (l *slidingLog) used(now time.Time) int64 {
	gone := 0
	for gone < len(l.entries) && now.Sub(l.entries[gone].at) >= l.period {
		l.sum -= l.entries[gone].n
		gone++
	}
	l.entries = l.entries[gone:]
	return l.sum
}

func (l *slidingLog) take(now time.Time, n int64) {
	if l.limit < 0 {
		return
	}
	l.entries = append(l.entries, entry{now, n})
	l.sum += n
}

func (l *slidingLog) wait(now time.Time, n int64) time.Duration {
	over := l.used(now) + n - l.limit
	for _, e := range l.entries {
		if over <= 0 {
			break
		}
		if over -= e.n; over <= 0 {
			return e.at.Add(l.period).Sub(now)
		}
	}
	return 0
}

func (l *slidingLog) fullIn(now time.Time) time.Duration {
	if l.used(now) == 0 || len(l.entries) == 0 {
		return 0
	}
	return l.entries[len(l.entries)-1].at.Add(l.period).Sub(now)
}

// bucket is a token bucket, represented by the moment at which it will be full.
type bucket struct {
	limit  int64
	period time.Duration
	full   time.Time
}

// refill returns how long n tokens take to refill.
func (b *bucket) refill(n int64) time.Duration {
	return time.Duration(math.Ceil(float64(n) * float64(b.period) / float64(b.limit)))
}

func (b *bucket) used(now time.Time) int64 {
	return int64(math.Ceil(float64(b.fullIn(now)) / float64(b.period) * float64(b.limit)))
}

func (b *bucket) take(now time.Time, n int64) {
	if b.limit > 0 {
		b.full = now.Add(min(b.fullIn(now)+b.refill(n), b.period))
	}
}

func (b *bucket) wait(now time.Time, n int64) time.Duration {
	return max(b.fullIn(now)+b.refill(n)-b.period, 0)
}

func (b *bucket) fullIn(now time.Time) time.Duration { return max(b.full.Sub(now), 0) }

// fixedWindow is GitHub's primary limit: it begins with the first request after the previous window's end, and ends at the whole second
// of its reset.
type fixedWindow struct {
	limit  int64
	length time.Duration
	ends   time.Time
	used   int64
}

// roll begins a new window if the previous one has ended. The end is on the wall clock, like its reset.
func (w *fixedWindow) roll(now time.Time) {
	if now = now.Round(0); now.Before(w.ends) {
		return
	}
	w.used = 0
	w.ends = now.Truncate(time.Second).Add(w.length)
}

func (w *fixedWindow) remaining() int64 { return max(w.limit-w.used, 0) }
