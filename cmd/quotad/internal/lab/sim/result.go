package sim

import (
	"slices"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/fsm/logpb"
)

// Result is the result of a run. Durations are nanoseconds in JSON. Refused and Quotas are the provider's counts, not the
// callers' view.
type Result struct {
	Side Side   `json:"side"`
	Seed uint64 `json:"seed"`
	// Length is the length of the run. Finish is when the last task of limited number was finished; 0: not all were.
	Length time.Duration `json:"length"`
	Finish time.Duration `json:"finish"`
	// Attempts is the number of sent attempts. A limit refused Refused of them, an unannounced outage Outage of them.
	Attempts int64 `json:"attempts"`
	Refused  int64 `json:"refused"`
	Outage   int64 `json:"outage"`
	// Retries is the number of attempts that repeat an earlier one.
	Retries int64 `json:"retries"`
	// Served is the number of served calls, GivenUp that of cancelled ones; Missed is the number of tasks beyond an agent's
	// overlap.
	Served  int64 `json:"served"`
	GivenUp int64 `json:"givenUp"`
	Missed  int64 `json:"missed"`
	// GaveUps counts how often a call used up its retries and started again.
	GaveUps int64 `json:"gaveUps,omitempty"`
	// Late is the number of calls that arrived after their deadline; TooLate is the number of grants that arrived too late
	// to be used.
	Late    int64 `json:"late"`
	TooLate int64 `json:"tooLate"`
	// StaleFences is the number of commands refused for a stale fence.
	StaleFences int64 `json:"staleFences"`
	// Commands is the number of commands to the cluster, Entries that of entries in its log; some entries carry only the
	// time.
	Commands int64 `json:"commands,omitempty"`
	Entries  int64 `json:"entries,omitempty"`
	// Reclaimed is the longest time for which a lease outlived its dead agent.
	Reclaimed time.Duration `json:"reclaimed,omitempty"`
	// Unclaimed is the number of dead agents' leases that were still held at the end.
	Unclaimed int `json:"unclaimed,omitempty"`
	// Latency is the median latency of served calls.
	Latency time.Duration `json:"latency"`
	// Refusals and Failures are quotad's refusals and errors, by reason.
	Refusals map[string]int64 `json:"refusals,omitempty"`
	Failures map[string]int64 `json:"failures,omitempty"`

	Quotas  []QuotaResult `json:"quotas"`
	Classes []ClassResult `json:"classes"`
	Holders []Holder      `json:"holders"`
	// Tasks are the tasks with retry budgets, Workflows the workflows in quotad.
	Tasks     []TaskResult     `json:"tasks,omitempty"`
	Workflows []WorkflowResult `json:"workflows,omitempty"`
}

// QuotaResult is the provider's count of one quota.
type QuotaResult struct {
	Quota  string        `json:"quota"`
	Kind   string        `json:"kind"`
	Limit  int64         `json:"limit"`
	Period time.Duration `json:"period"`
	// Total is the admitted amount; Peak is the largest amount in any period, refused attempts included.
	Total   int64 `json:"total"`
	Peak    int64 `json:"peak"`
	Refused int64 `json:"refused"`
	// Wave is the largest amount in any period that began after an outage and ended before the next; 0: no outages.
	Wave int64 `json:"wave,omitempty"`
	// Utilisation is the use while demand exceeded the limit, as a fraction of the ideal; Measured is the length of that
	// time.
	Utilisation float64       `json:"utilisation"`
	Measured    time.Duration `json:"measured"`
	// Peaks is the largest count in each part of the run, Zones the zone in each part.
	Peaks []int64      `json:"-"`
	Zones []logpb.Zone `json:"-"`
}

// ClassResult is the result of the calls of one class. A wait lasts from the wish to the sending of the served attempt. A
// cancelled call counts with its whole patience, and one that the end of the run cut off with its wait until then.
type ClassResult struct {
	Class   string        `json:"class"`
	Calls   int           `json:"calls"`
	Served  int64         `json:"served"`
	GivenUp int64         `json:"givenUp"`
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Longest time.Duration `json:"longest"`
	// Fairness is Jain's index of the served calls, by weight: 1 if all agents have the same.
	Fairness float64 `json:"fairness"`
	// Waits are all waits, in ascending order.
	Waits []int64 `json:"-"`
}

// Holder is the result of one agent.
type Holder struct {
	Name   string `json:"name"`
	Class  string `json:"class"`
	Weight int    `json:"weight"`
	// Calls is the number of wanted calls, Served and GivenUp those of served and cancelled ones. Lost calls ended with the
	// agent or with their attempt. Refused is the number of the provider's refusals.
	Calls   int64 `json:"calls"`
	Served  int64 `json:"served"`
	GivenUp int64 `json:"givenUp"`
	Lost    int64 `json:"lost,omitempty"`
	Refused int64 `json:"refused"`
	// Tasks were finished, TasksFailed cancelled, and Missed were beyond the overlap.
	Tasks       int64         `json:"tasks"`
	TasksFailed int64         `json:"tasksFailed"`
	Missed      int64         `json:"missed"`
	P99         time.Duration `json:"p99"`
	Longest     time.Duration `json:"longest"`

	kind  string
	waits []int64
}

// Kind is the name of the agent's description.
func (h *Holder) Kind() string { return h.kind }

// waitedBy returns the wait of an open call until a time: a call in flight has waited until it was last sent.
func (c *call) waitedBy(now int64) int64 {
	if c.waiting {
		return now - c.asked
	}
	return c.sent - c.asked
}

func (a *agent) noteWait(waited int64) { a.tally.waits = append(a.tally.waits, waited) }

// Classes are the names of the classes, the highest first.
var Classes = []string{"critical", "standard", "background"}

// result computes the result of a run.
func (b *book) result(side Side, seed uint64) *Result {
	w := b.w
	r := &Result{
		Side: side, Seed: seed, Length: time.Duration(w.now), Attempts: b.attempts, Refused: b.refusedCalls, Outage: b.outageCalls,
		GaveUps: b.gaveUps, Late: b.late, TooLate: b.tooLate, StaleFences: b.stale, Reclaimed: time.Duration(b.reclaim),
		Unclaimed: len(b.orphans), Latency: time.Duration(median(b.latencies)),
		Refusals: reasonWords(b.refusals), Failures: reasonWords(b.failures),
	}
	if w.cluster != nil {
		r.Commands, r.Entries = w.cluster.commands, w.cluster.entries
	}
	if w.unfinished == 0 && b.finish > 0 {
		r.Finish = time.Duration(b.finish)
	}
	for _, c := range b.opened {
		if _, ok := b.open[c]; ok {
			c.agent.noteWait(c.waitedBy(w.now))
			b.wait(c, false)
		}
	}
	for i := range w.provider.Meters() {
		r.Quotas = append(r.Quotas, b.quotaResult(i, r.Latency))
	}
	calls := int64(0)
	for _, a := range w.agents {
		t := a.tally
		t.kind = a.kind.Name
		slices.Sort(t.waits)
		t.P99, t.Longest = quantile(t.waits, 0.99), quantile(t.waits, 1)
		r.Holders = append(r.Holders, t)
		r.Served += t.Served
		r.GivenUp += t.GivenUp
		r.Missed += t.Missed
		calls += a.sentCalls
	}
	r.Retries = r.Attempts - calls
	r.Classes = r.ClassesOf(w.fleet.Draws(""))
	r.Tasks = b.taskResults()
	for _, c := range b.chains {
		r.Workflows = append(r.Workflows, c.end())
	}
	return r
}

// ClassesOf returns the results of some descriptions' calls, by class.
func (r *Result) ClassesOf(kinds map[string]bool) []ClassResult {
	var all []ClassResult
	for _, class := range Classes {
		all = append(all, classResult(class, kinds, r.Holders))
	}
	return all
}

func classResult(class string, kinds map[string]bool, holders []Holder) ClassResult {
	c := ClassResult{Class: class}
	var shares []float64
	for i := range holders {
		h := &holders[i]
		if h.Class != class || !kinds[h.kind] {
			continue
		}
		c.Waits = append(c.Waits, h.waits...)
		c.Served += h.Served
		c.GivenUp += h.GivenUp
		shares = append(shares, float64(h.Served)/float64(h.Weight))
	}
	slices.Sort(c.Waits)
	c.Calls = len(c.Waits)
	c.P50, c.P99, c.Longest = quantile(c.Waits, 0.5), quantile(c.Waits, 0.99), quantile(c.Waits, 1)
	c.Fairness = jain(shares)
	return c
}

func (b *book) quotaResult(i int, latency time.Duration) QuotaResult {
	m := b.w.provider.Meters()[i]
	rule := m.Rule()
	q := QuotaResult{
		Quota: rule.Quota, Kind: rule.Kind.String(), Limit: rule.Limit, Period: rule.Period, Total: m.Total(), Peak: m.Peak(),
		Refused: m.Refused(), Wave: m.Wave(), Peaks: m.Peaks(), Zones: b.zones[i],
	}
	u := use{
		rule: rule, whole: b.w.wholeCalls(i), wanting: merged(b.wanting[i]), closed: b.closed[i], end: b.w.now,
		held: b.held[i], part: int64(b.w.fleet.For) / Parts,
		lag: int64(latency + b.w.fleet.Cluster.Commit.Mid()),
	}
	q.Utilisation, q.Measured = u.measure(m)
	return q
}

// wholeCalls returns the part of a quota's usable amount that whole calls can use, if all calls draw the same amount.
func (w *world) wholeCalls(i int) int64 {
	q := w.quotas[i]
	usable := fleet.Usable(q)
	amount := int64(0)
	for _, kind := range w.fleet.Agents {
		uses := kind.Uses
		if kind.Retry != nil {
			uses = slices.Concat(uses, kind.Retry.Load)
		}
		for _, use := range uses {
			if !w.fleet.On(use, q.Name) {
				continue
			}
			if use.Tokens != nil || amount != 0 && amount != use.Estimate {
				return usable
			}
			amount = use.Estimate
		}
	}
	if amount == 0 {
		return usable
	}
	return usable / amount * amount
}

func reasonWords(counts map[logpb.Reason]int64) map[string]int64 {
	words := map[string]int64{}
	for reason, count := range counts {
		words[reasonWord(reason)] = count
	}
	return words
}

// quantile returns the smallest of sorted waits that at least a fraction part of them does not exceed; 0 if there are none.
func quantile(sorted []int64, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	at := int(part*float64(len(sorted)) + 0.999_999)
	return time.Duration(sorted[min(max(at, 1), len(sorted))-1])
}

func median(all []int64) int64 {
	slices.Sort(all)
	return int64(quantile(all, 0.5))
}

// jain is Jain's fairness index: 1 if all shares are equal, 1/n if one has everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// use describes the demand for one limit.
type use struct {
	rule provider.Rule
	// whole is the amount of a period that whole calls can use; lag is the time from a call's grant to its end.
	whole, lag int64
	wanting    []stretch
	closed     []stretch
	end        int64
	// held is the amount reserved and not consumed in the middle of each part of the run: no other caller can use it.
	held []int64
	part int64
}

// measure returns the use while demand exceeded the limit, as a fraction of the ideal, and the length of that time; 0, 0:
// never. The ideal of a period P is the amount that whole calls can use of it, times P / (P + lag).
func (u *use) measure(m *provider.Meter) (part float64, measured time.Duration) {
	period := int64(u.rule.Period)
	if period == 0 || u.whole == 0 {
		return 0, 0
	}
	ideal := float64(u.whole) * float64(period) / float64(period+u.lag)
	if u.rule.Kind != provider.Sliding {
		return u.measureWindows(m.Windows(), ideal)
	}
	// The count at a time shows the use only if there was demand throughout the period before. So measurement begins a
	// whole period after the demand does.
	var inspected []stretch
	for _, s := range without(u.wanting, u.closed) {
		if s.from+period < s.to {
			inspected = append(inspected, stretch{from: s.from + period, to: s.to})
		}
	}
	var length int64
	for _, s := range inspected {
		length += s.to - s.from
	}
	if length < period {
		return 0, 0 // less than a period proves nothing
	}
	ideal *= 1 - u.meanHeld(inspected)/float64(u.whole)
	var ours, others []provider.Entry
	for _, e := range m.Admitted() {
		if e.Others {
			others = append(others, e)
		} else {
			ours = append(ours, e)
		}
	}
	// The fleet cannot use what others use.
	ideal *= 1 - occupied(others, period, inspected)/float64(length)/float64(u.rule.Limit)
	return occupied(ours, period, inspected) / float64(length) / ideal, time.Duration(length)
}

// meanHeld returns the mean of the amounts held in the middle of the parts that some stretches touch.
func (u *use) meanHeld(inspected []stretch) float64 {
	sum, count := int64(0), 0
	for i, held := range u.held {
		if middle := int64(i)*u.part + u.part/2; touched(inspected, stretch{from: middle, to: middle + 1}) {
			sum += held
			count++
		}
	}
	return float64(sum) / float64(max(count, 1))
}

// occupied returns the integral, over some stretches, of the amount that counts in a sliding period.
func occupied(admitted []provider.Entry, period int64, inspected []stretch) (sum float64) {
	first := 0
	for _, e := range admitted {
		for first < len(inspected) && inspected[first].to <= e.At {
			first++
		}
		for i := first; i < len(inspected) && inspected[i].from < e.At+period; i++ {
			overlap := min(inspected[i].to, e.At+period) - max(inspected[i].from, e.At)
			sum += float64(e.N) * float64(overlap)
		}
	}
	return sum
}

// measureWindows measures the windows that ended within the run and with demand.
func (u *use) measureWindows(windows []provider.Window, ideal float64) (part float64, measured time.Duration) {
	var used float64
	count := 0
	for _, w := range windows {
		last := stretch{from: w.To - int64(u.rule.Period)/100, to: w.To}
		if w.To > u.end || !covered(u.wanting, last) || touched(u.closed, stretch{from: w.From, to: w.To}) {
			continue
		}
		used += float64(w.Admitted)
		count++
		measured += time.Duration(w.To - w.From)
	}
	if count == 0 {
		return 0, 0
	}
	return used / (float64(count) * ideal), measured
}

// merged joins adjacent stretches.
func merged(all []stretch) []stretch {
	var out []stretch
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].to >= s.from {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

// without removes stretches from others; both are in order.
func without(all, gone []stretch) []stretch {
	var out []stretch
	for _, s := range all {
		for _, g := range gone {
			if g.to <= s.from || g.from >= s.to {
				continue
			}
			if g.from > s.from {
				out = append(out, stretch{from: s.from, to: g.from})
			}
			s.from = min(g.to, s.to)
		}
		if s.from < s.to {
			out = append(out, s)
		}
	}
	return out
}

func covered(all []stretch, s stretch) bool {
	return slices.ContainsFunc(all, func(a stretch) bool { return a.from <= s.from && a.to >= s.to })
}

func touched(all []stretch, s stretch) bool {
	return slices.ContainsFunc(all, func(a stretch) bool { return a.from < s.to && a.to > s.from })
}
