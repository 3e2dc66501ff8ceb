package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
)

// Judge compares two runs of one seed with the expectations of the fleet's file, and returns the failed ones. Some
// expectations always apply to the run through quotad. No limit refuses a call or sees more than it allows, no call arrives
// late, and every agent is served. No client's command is an error, retry budgets are kept, and workflows run in order.
func Judge(f *fleet.Fleet, alone, governed *sim.Result) []string {
	wrong := JudgeCut(f, governed)
	fail := func(format string, values ...any) { wrong = append(wrong, fmt.Sprintf(format, values...)) }
	for _, name := range starved(governed) {
		fail("%s was never served", name)
	}
	e := f.Expect
	if e == nil {
		return wrong
	}
	if alone.Refused < e.AloneRefused {
		fail("alone, the provider refused %d calls only; %d make the incident", alone.Refused, e.AloneRefused)
	}
	if e.Reclaimed > 0 && (governed.Reclaimed == 0 || governed.Reclaimed > e.Reclaimed || governed.Unclaimed > 0) {
		fail("what the dead held was held for %v more (%d still); %v is the most", governed.Reclaimed, governed.Unclaimed, e.Reclaimed)
	}
	if governed.StaleFences < e.StaleFences {
		fail("%d commands were refused for a dead fence; %d had to be", governed.StaleFences, e.StaleFences)
	}
	judgeUse(f, governed, fail)
	judgeWaits(f, governed, fail)
	if e.Tasks != nil {
		judgeTasks(e.Tasks, alone, governed, fail)
	}
	if e.Chain != nil {
		judgeChain(e, alone, governed, fail)
	}
	return wrong
}

// JudgeCut is Judge for a run through quotad that was cut short: it checks what must never happen. It omits expectations
// that need the whole time of the file: that every agent is served, use, waits, and required events.
func JudgeCut(f *fleet.Fleet, governed *sim.Result) []string {
	var wrong []string
	fail := func(format string, values ...any) { wrong = append(wrong, fmt.Sprintf(format, values...)) }
	switch may := mayRefuse(f.Expect, governed); {
	case may == 0 && governed.Refused > 0:
		fail("the provider refused %d calls", governed.Refused)
	case governed.Refused > may:
		fail("the provider refused %d of %d calls; %d may be", governed.Refused, governed.Attempts, may)
	}
	for i := range governed.Quotas {
		if q := &governed.Quotas[i]; q.Peak > q.Limit {
			fail("one period of %s saw %d of %d", q.Quota, q.Peak, q.Limit)
		}
	}
	if governed.Late > 0 {
		fail("%d calls arrived after their spend-by", governed.Late)
	}
	for _, reason := range slices.Sorted(maps.Keys(governed.Failures)) {
		fail("%d commands were wrong: %s", governed.Failures[reason], reason)
	}
	if governed.Served == 0 {
		fail("nobody was served")
	}
	judgeBudgets(governed, fail)
	judgeWorkflows(governed, fail)
	e := f.Expect
	if e == nil {
		return wrong
	}
	if e.Retries >= 0 && governed.Retries > e.Retries {
		fail("%d calls were sent again; %d may be", governed.Retries, e.Retries)
	}
	if e.Outage >= 0 && governed.Outage > e.Outage {
		fail("outages refused %d calls; %d may be", governed.Outage, e.Outage)
	}
	return wrong
}

// mayRefuse returns the maximum number of calls that the provider's limits may refuse.
func mayRefuse(e *fleet.Expect, governed *sim.Result) int64 {
	if e == nil {
		return 0
	}
	return int64(e.Refused * float64(governed.Attempts))
}

// starved returns the holders that made calls and were never served.
func starved(r *sim.Result) []string {
	var names []string
	for i := range r.Holders {
		if h := &r.Holders[i]; h.Calls > h.Lost && h.Served == 0 {
			names = append(names, h.Name)
		}
	}
	return names
}

func judgeUse(f *fleet.Fleet, governed *sim.Result, fail func(string, ...any)) {
	least := f.Expect.Utilisation
	for i := range governed.Quotas {
		q := &governed.Quotas[i]
		switch {
		case q.Quota != f.Expect.Binding || least == 0:
		case q.Measured == 0:
			fail("demand never exceeded %s for a whole period", q.Quota)
		case q.Utilisation < least:
			fail("%.1f %% of the ideal of %s was used; %.1f %% is the least", 100*q.Utilisation, q.Quota, 100*least)
		}
	}
	if f.Expect.Finish == 0 {
		return
	}
	ideal := IdealFinish(f, governed)
	switch longest := time.Duration(f.Expect.Finish * float64(ideal)); {
	case governed.Finish == 0:
		fail("not all tasks were finished")
	case governed.Finish > longest:
		fail("the tasks were finished after %v; %v is the most", round(governed.Finish), round(longest))
	}
}

// IdealFinish is the earliest time at which a fleet could finish its tasks of limited number. It is the time for the
// amounts that they draw on each limit at the ideal pace of whole calls: usable x P / (P + a call's median latency + one
// commit). It is the time of the slowest agent, if that is longer.
func IdealFinish(f *fleet.Fleet, r *sim.Result) time.Duration {
	lag := float64(r.Latency + f.Cluster.Commit.Mid())
	longest := 0.0
	for i, q := range f.Limits() {
		period := float64(periodOf(q))
		if period == 0 {
			continue
		}
		usable := float64(fleet.Usable(q))
		longest = math.Max(longest, float64(r.Quotas[i].Total)/usable*(period+lag))
	}
	for _, kind := range f.Agents {
		calls := float64(kind.Tasks) * math.Ceil(float64(kind.Calls)/float64(kind.Parallel))
		longest = math.Max(longest, calls*(float64(kind.Think.Mid())+lag))
	}
	return time.Duration(longest)
}

func judgeWaits(f *fleet.Fleet, governed *sim.Result, fail func(string, ...any)) {
	e, last := f.Expect, -1
	classes := governed.ClassesOf(f.Draws(e.Binding))
	for i := range classes {
		c := &classes[i]
		if c.Calls == 0 {
			continue
		}
		class, _ := quotafile.ParseClass(c.Class)
		if most, ok := e.LongestWait[class]; ok && c.Longest > most {
			fail("a %s call waited %v; %v is the most", c.Class, round(c.Longest), most)
		}
		if last >= 0 {
			above := &classes[last]
			if e.Classes != fleet.AnyOrder && c.P99 < above.P99 || e.Classes == fleet.Strict && c.P99 == above.P99 {
				fail("p99 of %s is %v, of %s %v", above.Class, round(above.P99), c.Class, round(c.P99))
			}
		}
		last = i
	}
	for i := range governed.Holders {
		h := &governed.Holders[i]
		if most, ok := e.P99[h.Kind()]; ok && h.P99 > most {
			fail("p99 of %s is %v; %v is the most", h.Name, round(h.P99), most)
		}
	}
}

// round rounds to the digits that people read.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 100*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}
