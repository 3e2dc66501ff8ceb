package provider

import (
	"math"
	"time"
)

// Rule is one limit.
type Rule struct {
	Quota string
	Kind  Kind
	Limit int64
	// Period is the period of a rate, or the length of a window; Month: calendar months instead.
	Period time.Duration
	Month  bool
	// Burst: no interval d sees more than Burst + d * Limit/Period. 0: no burst limit.
	Burst int64
	// Tells: answers report the remaining amount of a rate.
	Tells bool
}

// Entry is an amount that was admitted at a time.
type Entry struct {
	At, N int64
	// Others: another user of the same key used it.
	Others bool
}

// Window is a window of the provider that saw calls.
type Window struct {
	From, To int64
	Admitted int64
}

// Meter counts against one limit.
type Meter struct {
	rule   Rule
	begins int64 // Unix time of moment 0

	// admitted are all admitted amounts. Those from index first on count in a sliding period; sum is their sum.
	admitted []Entry
	first    int
	sum      int64
	// inFlight is the amount in service.
	inFlight int64
	// full is when the burst bucket will be full again.
	full float64
	// windows are the windows that saw calls.
	windows []Window

	// arrivals are the attempts, admitted or not, of the present period. since are those since the end of an outage, while
	// calm.
	arrivals, since        recent
	calm                   bool
	peak, wave             int64
	total, refused, outage int64
	bucket                 int64
	bucketPeaks            []int64
}

// NewMeter returns a meter. begins is the Unix time (nanoseconds) of moment 0. length is the length of the run in
// nanoseconds; the meter records the peak of each of parts equal parts.
func NewMeter(rule Rule, begins, length int64, parts int) *Meter {
	return &Meter{
		rule: rule, begins: begins, bucket: max(length/int64(parts), 1),
		bucketPeaks: make([]int64, parts),
	}
}

// Rule returns the limit.
func (m *Meter) Rule() Rule { return m.rule }

// Refused returns the number of calls that the limit refused.
func (m *Meter) Refused() int64 { return m.refused }

// Outage returns the number of calls that an outage refused.
func (m *Meter) Outage() int64 { return m.outage }

// Peak returns the largest amount of attempts, admitted or not, in any period of the provider. For slots it is the largest
// amount in service at once.
func (m *Meter) Peak() int64 { return m.peak }

// Calm records that all outages are over for now, or that one begins.
func (m *Meter) Calm(calm bool) { m.calm, m.since = calm, recent{} }

// Wave returns the largest amount of attempts in any period that begins after the end of an outage and ends before the next
// outage.
func (m *Meter) Wave() int64 { return m.wave }

// Peaks returns the peak of each part of the run.
func (m *Meter) Peaks() []int64 { return m.bucketPeaks }

// Admitted returns the admitted amounts in order, including others' use.
func (m *Meter) Admitted() []Entry { return m.admitted }

// Total returns the sum of the admitted amounts, without others' use.
func (m *Meter) Total() int64 { return m.total }

// Windows returns the windows that saw calls.
func (m *Meter) Windows() []Window { return m.windows }

// Observe records the present count, so that parts of a run without arrivals have a peak too.
func (m *Meter) Observe(now int64) {
	if m.rule.Kind == Slots {
		m.notePeak(now, m.inFlight)
		return
	}
	m.forget(now)
	m.notePeak(now, m.arrivals.sum)
}

// arrived records an attempt.
func (m *Meter) arrived(now, n int64) {
	if m.rule.Kind == Slots {
		return
	}
	m.forget(now)
	m.arrivals.add(now, n)
	if m.calm {
		m.since.add(now, n)
		m.wave = max(m.wave, m.since.sum)
	}
	m.notePeak(now, m.arrivals.sum)
}

// forget drops the attempts before the present period or window.
func (m *Meter) forget(now int64) {
	from := now - int64(m.rule.Period)
	if m.rule.Kind.window() {
		from = m.windowAt(now).From - 1
	}
	m.arrivals.forget(from)
	m.since.forget(from)
}

func (m *Meter) notePeak(now, count int64) {
	m.peak = max(m.peak, count)
	part := min(int(now/m.bucket), len(m.bucketPeaks)-1)
	m.bucketPeaks[part] = max(m.bucketPeaks[part], count)
}

// wait returns the time in nanoseconds until an amount fits; 0: now.
func (m *Meter) wait(now, n int64) int64 {
	switch m.rule.Kind {
	case Slots:
		if m.inFlight+n > m.rule.Limit {
			return int64(time.Second)
		}
		return 0
	case Calendar, Anchored:
		w := m.windowAt(now)
		if w.Admitted+n > m.rule.Limit {
			return w.To - now
		}
		return 0
	case Sliding:
		return max(m.slidingWait(now, n), m.burstWait(now, n))
	}
	return 0
}

func (m *Meter) slidingWait(now, n int64) int64 {
	m.slide(now)
	over := m.sum + n - m.rule.Limit
	for i := m.first; over > 0 && i < len(m.admitted); i++ {
		if over -= m.admitted[i].N; over <= 0 {
			return m.admitted[i].At + int64(m.rule.Period) - now
		}
	}
	if over > 0 {
		return int64(m.rule.Period)
	}
	return 0
}

// slide drops the amounts before the period that ends now: an amount of time t counts in [t, t + period).
func (m *Meter) slide(now int64) {
	for m.first < len(m.admitted) && m.admitted[m.first].At+int64(m.rule.Period) <= now {
		m.sum -= m.admitted[m.first].N
		m.first++
	}
}

// flow returns how long an amount takes to flow into the burst bucket.
func (m *Meter) flow(n int64) float64 {
	return float64(n) * float64(m.rule.Period) / float64(max(m.rule.Limit, 1))
}

// burstWait returns the time until the burst bucket has enough. It errs by less than a microsecond, in favour of the call.
func (m *Meter) burstWait(now, n int64) int64 {
	if m.rule.Burst == 0 {
		return 0
	}
	missing := math.Max(m.full-float64(now), 0) + m.flow(n) - m.flow(m.rule.Burst)
	if missing < float64(time.Microsecond) {
		return 0
	}
	return int64(missing)
}

// admit counts an amount that fits.
func (m *Meter) admit(now, n int64) {
	m.total += n
	m.enter(now, n, false)
	switch m.rule.Kind {
	case Slots:
		m.inFlight += n
		if m.calm {
			m.wave = max(m.wave, m.inFlight)
		}
		m.notePeak(now, m.inFlight)
	case Calendar, Anchored:
		w := m.windowAt(now)
		if len(m.windows) == 0 || m.windows[len(m.windows)-1].From != w.From {
			m.windows = append(m.windows, w)
		}
		m.windows[len(m.windows)-1].Admitted += n
	case Sliding:
		if m.rule.Burst > 0 {
			m.full = math.Max(m.full, float64(now)) + m.flow(n)
		}
	}
}

// enter records an admitted amount.
func (m *Meter) enter(now, n int64, others bool) {
	m.admitted = append(m.admitted, Entry{At: now, N: n, Others: others})
	if m.rule.Kind == Sliding {
		m.slide(now)
		m.sum += n
	}
}

// Others counts another user's use of a sliding limit, unless it does not fit.
func (m *Meter) Others(now, n int64) {
	if m.slidingWait(now, n) == 0 {
		m.enter(now, n, true)
	}
}

// left returns the remaining amount of a sliding limit.
func (m *Meter) left(now int64) int64 {
	m.slide(now)
	return max(m.rule.Limit-m.sum, 0)
}

// done ends a call that was admitted.
func (m *Meter) done(_, n int64) {
	if m.rule.Kind == Slots {
		m.inFlight -= n
	}
}

// windowAt returns the window that contains a time; a window without calls has admitted nothing.
func (m *Meter) windowAt(now int64) Window {
	if len(m.windows) > 0 {
		if last := m.windows[len(m.windows)-1]; now < last.To {
			return last
		}
	}
	unix := m.begins + now
	if m.rule.Kind == Anchored {
		return Window{From: now, To: unix - floorMod(unix, int64(time.Second)) + int64(m.rule.Period) - m.begins}
	}
	if m.rule.Month {
		t := time.Unix(0, unix).UTC()
		start := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
		return Window{From: start.UnixNano() - m.begins, To: start.AddDate(0, 1, 0).UnixNano() - m.begins}
	}
	from := now - floorMod(unix, int64(m.rule.Period))
	return Window{From: from, To: from + int64(m.rule.Period)}
}

func floorMod(a, b int64) int64 { return ((a % b) + b) % b }
