package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/jepsen/model"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Stats sum up a run.
type Stats struct {
	Calls    int `json:"calls"`
	Answered int `json:"answered"`
	// Unknown counts the calls with an unknown outcome, Canceled those of them that their callers canceled.
	Unknown  int `json:"unknown"`
	Canceled int `json:"canceled"`
	Entries  int `json:"entries"`
	Applied  int `json:"applied"`
	// Gaps counts the jumps in nodes' records: installed snapshots.
	Gaps    int `json:"gaps"`
	Terms   int `json:"terms"`
	Spends  int `json:"spends"`
	Streams int `json:"streams"`
	// Searched and NotSearched count the short histories with and without a verdict.
	Searched    int `json:"searched"`
	NotSearched int `json:"not_searched"`
	// ProviderPeak is the most that the provider received in a period.
	ProviderPeak int64 `json:"provider_peak"`
	// Installed counts the snapshots installed from a leader, Expired the leases that ended by their deadline, Stale the commands with a dead
	// fence.
	Installed int         `json:"installed"`
	Expired   int         `json:"expired"`
	Stale     int         `json:"stale"`
	Judged    model.Stats `json:"judged"`
	// Faults counts the faults by kind that hit open calls; Missed counts the others, and those that could not be injected.
	Faults map[string]int `json:"faults"`
	Missed map[string]int `json:"missed"`
	// Drawn counts all drawn faults by kind, with 0 for kinds that were possible but not drawn. Injected leaves out those that could not be
	// injected.
	Drawn    map[string]int `json:"drawn"`
	Injected map[string]int `json:"injected"`
	// Gone counts the callers that left before the answer to a request without an ID.
	Gone int `json:"gone"`
	// Outages are the longest times without a success, in seconds, of each fault by kind.
	Outages map[string][]float64 `json:"outages"`
	// Recovery is the longest time of a class without a grant after the last fault, in seconds.
	Recovery float64 `json:"recovery"`
}

// exercised checks that the run covered enough for its verdicts to mean something.
func (r *run) exercised(rep *replayed) {
	v := r.verdict("exercised",
		"The run met what it is about: faults hit open calls, leaders changed, a snapshot was installed, leases and sessions expired, dead "+
			"fences came back, tasks were shelved, each policy had a part.")
	r.stats.Judged = rep.judge
	v.Checked = len(r.faults)
	for _, c := range r.calls {
		if c.open() {
			r.stats.Unknown++
			if c.Error.Canceled {
				r.stats.Canceled++
			}
		}
		if c.Error != nil && c.Error.Reason == int32(quotav1.Reason_REASON_STALE_FENCE) {
			r.stats.Stale++
		}
		if c.left() {
			r.stats.Gone++
		}
	}
	for _, events := range rep.happened {
		for i := range events {
			if int32(events[i].Kind) == int32(quotav1.EventKind_EVENT_KIND_EXPIRED) {
				r.stats.Expired++
			}
		}
	}
	r.countFaults()
	r.stats.Installed = r.facts.Installed
	lacking := func(missing bool, what string) {
		if missing {
			v.Outcome = Inconclusive
			v.Examples = append(v.Examples, what)
		}
	}
	lacking(r.stats.Expired == 0, "no lease expired")
	lacking(r.stats.Stale == 0, "no dead fence came back")
	lacking(r.stats.Answered < 1000, "fewer than 1,000 calls were answered")
	lacking(r.stats.Gone == 0, "no caller went away before the answer to a request without an id")
	r.policies(lacking)
	r.gatewayExercised(lacking)
	if r.facts.Mix == quiet {
		v.Checked = r.stats.Answered
		r.steady()
		return
	}
	lacking(len(r.stats.Faults) == 0, "no fault hit an open call")
	for _, kind := range slices.Sorted(maps.Keys(r.stats.Missed)) {
		lacking(r.stats.Faults[kind] == 0, "the fault "+kind+" never hit an open call")
	}
	for _, kind := range r.facts.Demanded {
		lacking(r.stats.Injected[kind] == 0, "the fault "+kind+" was asked for and never injected")
	}
	r.atWork(lacking)
	r.filled(lacking)
	r.damaged(lacking)
	lacking(r.stats.Terms < 2, "no leader changed")
	lacking(r.stats.Installed == 0 && r.facts.Mix != wrongClocks, "no snapshot was installed")
	lacking(r.stats.Unknown == 0, "no outcome was unknown")
	lacking(r.stats.Unknown*10 > r.stats.Calls*3, "more than 30 % of the outcomes are unknown")
}

// countFaults counts the faults by their outcome.
func (r *run) countFaults() {
	s := &r.stats
	s.Faults, s.Missed, s.Drawn, s.Injected = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, kind := range r.facts.Faults {
		s.Drawn[kind] = 0
	}
	for _, fault := range r.faults {
		s.Drawn[fault.Kind]++
		if fault.Failed == "" {
			s.Injected[fault.Kind]++
		}
		if fault.Failed == "" && r.hit(fault) {
			s.Faults[fault.Kind]++
		} else {
			s.Missed[fault.Kind]++
		}
	}
}

// left says whether a caller left before the answer to a Reserve that cannot be repeated.
func (c *call) left() bool {
	reserve, ok := c.request.(*quotav1.ReserveRequest)
	return ok && reserve.RequestId == nil && c.Error != nil && c.Error.Canceled
}

// atWork reports the kinds of edge faults during which a part of the governed workload got no answer. While faults of each kind last,
// policies, tasks and steps of a workflow must each be answered at least once.
func (r *run) atWork(lacking func(missing bool, what string)) {
	at := map[string]map[string]bool{}
	for _, fault := range r.faults {
		if fault.Failed != "" || !slices.Contains(edgeFaults, fault.Kind) {
			continue
		}
		if at[fault.Kind] == nil {
			at[fault.Kind] = map[string]bool{}
		}
		r.during(fault, func(c *call) {
			if profile, _, _ := strings.Cut(c.Client, "-"); c.Error == nil {
				at[fault.Kind][profile] = true
			}
		})
	}
	for _, kind := range slices.Sorted(maps.Keys(at)) {
		for _, profile := range []string{"policy", "chain", "tasks"} {
			lacking(!at[kind][profile], fmt.Sprintf("no call of the profile %s was answered while the fault %s lasted", profile, kind))
		}
	}
}

// filled reports the shared budgets of which a hostile caller was never refused more. An attack of full size asks each node for more
// streams than one caller may have, and for more health watchers than one address may have.
func (r *run) filled(lacking func(missing bool, what string)) {
	if r.stats.Injected[hostileCaller] == 0 {
		return
	}
	refused, inFull, full := map[string]int64{}, map[string]int64{}, false
	for _, fault := range r.faults {
		for budget, count := range fault.Refused {
			refused[budget] += count
			if fault.Full {
				inFull[budget] += count
			}
		}
		full = full || fault.Full && fault.Failed == ""
	}
	for _, budget := range hostile.Shared() {
		lacking(refused[budget] == 0, "no hostile caller was refused more "+budget)
	}
	for _, budget := range hostile.Crowded() {
		lacking(full && inFull[budget] == 0, "no hostile caller was refused more "+budget+" in an attack of full size")
	}
}

// edgeFaults are the faults during which the whole workload must continue.
var edgeFaults = []string{
	"stopped-leader-with-forwarded-calls", "hostile-caller", "clock-ahead-once", "half-lost-disk", "bit-flips", "cut-files", "tls-rotation",
	"restore-while-working",
}

// fileFaults are the faults that damage a file of each kind in turn.
var fileFaults = []string{"bit-flips", "cut-files"}

// damaged reports kinds of files that were never damaged, for faults that came often enough for two turns of each kind.
func (r *run) damaged(lacking func(missing bool, what string)) {
	for _, fault := range fileFaults {
		times, of := 0, map[string]bool{}
		for _, f := range r.faults {
			if f.Kind == fault && f.Failed == "" {
				times++
				of[f.Damaged] = true
			}
		}
		for _, kind := range history.FileKinds {
			lacking(times >= 2*len(history.FileKinds) && !of[kind], fmt.Sprintf("the fault %s hit no %s in %d times", fault, kind, times))
		}
	}
}

// policies reports which parts of policies, workflows, tasks and sessions the run did not meet.
func (r *run) policies(lacking func(missing bool, what string)) {
	judged := &r.stats.Judged
	lacking(judged.SessionsEnded == 0, "no session expired")
	lacking(judged.Attempts == 0 || judged.Lost == 0 || judged.Shelved == 0, "no attempt of a task was lost, or no task shelved")
	lacking(judged.OverridesEnded == 0, "no override ended by itself")
	lacking(judged.Breakers == 0, "no breaker opened")
	lacking(judged.Withheld == 0, "no policy withheld anything")
	lacking(judged.Lent == 0, "nothing of a rate with shares was lent to a class below one that asks")
	lacking(judged.Kept == 0 && r.facts.Ended-r.facts.Began >= int64(keptWithin), "nothing of a rate with shares was kept for a higher class")
	lacking(judged.Instead == 0, "no fallback was granted")
	lacking(judged.Pooled == 0 && r.facts.Mix != upgrade, "no member of a pool was granted")
	lacking(judged.Batons == 0 || judged.Parallels == 0, "no workflow went one at a time and back")
}

// keptWithin is the length from which on a run must have kept something of a rate for a higher class. That happens about four times a
// minute, and may be missing in a shorter run.
const keptWithin = 4 * time.Minute

// quiet is the mix without faults, wrongClocks the one in which no node is away for long.
const (
	quiet       = "none"
	wrongClocks = "wrong-clocks"
)

// upgrade is the mix whose older build knows no pools.
const upgrade = "upgrade"

// steady checks a run without faults: one leader leads throughout, and no outcome is unknown. Exceptions are calls that the workload cut
// off at its end, and calls that a client canceled or left, such as after another node's answer.
func (r *run) steady() {
	v := r.verdict("steady", "Without faults nobody is elected, and no outcome is unknown.")
	v.Checked = r.stats.Answered
	if r.stats.Terms != 1 {
		v.violate("%d terms", r.stats.Terms)
	}
	given := r.givenUp()
	for _, c := range r.calls {
		failed := c.open() || c.Error != nil && c.Error.NotSent
		if failed && c.Returned < r.facts.Ended && !given[c] && !c.left() {
			v.violate("%s by %s at %d: %s", c.Procedure, c.Client, c.Sent, c.Error.Text)
		}
	}
}

// afterthought is the time after an answer within which a client cancels its attempts at other nodes.
const afterthought = int64(time.Second)

// givenUp are the attempts that a client canceled because another node answered the same request: where the first attempt takes long, it
// asks a second node. An attempt that begins as the answer arrives is canceled at once.
func (r *run) givenUp() map[*call]bool {
	type request struct{ client, procedure, message string }
	of := func(c *call) request { return request{c.Client, c.Procedure, string(c.Request)} }
	canceled := map[request][]*call{}
	for _, c := range r.calls {
		if c.Error != nil && c.Error.Canceled {
			canceled[of(c)] = append(canceled[of(c)], c)
		}
	}
	given := map[*call]bool{}
	for _, c := range r.calls {
		if c.Error != nil && (c.open() || c.Error.NotSent || c.Error.NotAccepted) {
			continue
		}
		for _, other := range canceled[of(c)] {
			if c.Returned <= other.Returned && (other.Sent < c.Returned || other.Returned < c.Returned+afterthought) {
				given[other] = true
			}
		}
	}
	return given
}

// open says whether the outcome of a call is unknown. A call that found no node to connect to was never sent.
func (c *call) open() bool {
	return c.Error != nil && !c.Error.NotSent && (c.Error.Reason == 0 || c.Error.Reason == int32(quotav1.Reason_REASON_UNKNOWN_OUTCOME))
}

// hit says whether a call was in flight during a fault.
func (r *run) hit(fault *history.Fault) bool {
	hit := false
	r.during(fault, func(*call) { hit = true })
	return hit
}

// during calls fn with the calls that were in flight during a fault.
func (r *run) during(fault *history.Fault, fn func(*call)) {
	for _, c := range r.calls {
		if c.Sent > fault.Ended {
			return
		}
		if overlaps(c, fault) {
			fn(c)
		}
	}
}
