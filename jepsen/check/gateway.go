package check

import (
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/workload"
)

// late is how much later than its patience an agent may return: the delay of a busy machine.
const late = 2 * time.Second

// loadAgents reads the requests of agents through a gateway.
func (r *run) loadAgents() error {
	return history.Read(r.dir.Agents("*"), func(line *history.Asked) error {
		r.asked = append(r.asked, line)
		return nil
	})
}

// gateway judges the calls of agents through a gateway, by the agents' and the provider's records. A run without a gateway has no verdict.
func (r *run) gateway(spends []*history.Spend) {
	if r.facts.Held == nil {
		return
	}
	v := r.verdict("gateway",
		"Through a gateway each call ends in time and reaches the provider once, unless that refused it for a limit; no broken answer "+
			"looks whole; a replaced key is used no more; service comes back after each fault; nothing stays held.")
	v.Checked = len(r.asked)
	arrivals := map[string][]*history.Spend{}
	for _, s := range spends {
		arrivals[s.ID] = append(arrivals[s.ID], s)
		if s.Status == 401 {
			v.violate("at %d %s came with a key that was replaced long before", s.Began, s.ID)
		}
	}
	for id, all := range arrivals {
		for i := 1; i < len(all); i++ {
			if before := all[i-1].Status; before != 429 {
				v.violate("%s reached the provider again at %d, though that had answered %d", id, all[i].Began, before)
			}
		}
	}
	for _, asked := range r.asked {
		if took := time.Duration(asked.Returned - asked.Sent); took > workload.AgentPatience+late {
			v.violate("%s took %v", asked.ID, took)
		}
		whole := func(s *history.Spend) bool { return s.Whole }
		if asked.Whole && asked.Status == 200 && !slices.ContainsFunc(arrivals[asked.ID], whole) {
			v.violate("%s had an answer that looked whole, though the provider did not write it to its end", asked.ID)
		}
	}
	for quota, held := range r.facts.Held {
		if held != 0 {
			v.violate("%d of %s are held after the gateway has ended", held, quota)
		}
	}
	r.servedAgain(v)
}

// servedAgain checks that agents are served again soon after each fault of the gateway, and after the last fault.
func (r *run) servedAgain(v *Verdict) {
	ends := []int64{r.facts.Healed}
	for _, fault := range r.faults {
		if strings.HasPrefix(fault.Kind, "gateway-") && fault.Failed == "" {
			ends = append(ends, fault.Ended)
		}
	}
	for _, end := range ends {
		until := end + int64(recoverWithin)
		disturbed := func(f *history.Fault) bool { return f.Began > end && f.Began < until }
		served := func(a *history.Asked) bool { return a.Whole && a.Status == 200 && a.Sent >= end && a.Returned <= until }
		if !slices.ContainsFunc(r.asked, served) && !slices.ContainsFunc(r.faults, disturbed) {
			v.violate("no agent was served in the %v after %d", recoverWithin, end)
		}
	}
}

// agentsLeft returns when agents left in the middle of an answer, by request.
func (r *run) agentsLeft() map[string]int64 {
	left := map[string]int64{}
	for _, asked := range r.asked {
		if asked.Left {
			left[asked.ID] = asked.Returned
		}
	}
	return left
}

// gatewayExercised reports the cases of a gateway that the run did not meet.
func (r *run) gatewayExercised(lacking func(missing bool, what string)) {
	if r.facts.Held == nil {
		return
	}
	whole, left, broken, refused := 0, 0, 0, 0
	for _, asked := range r.asked {
		switch {
		case asked.Left:
			left++
		case asked.Whole && asked.Status == 200:
			whole++
		case asked.Status == 200:
			broken++
		default:
			refused++
		}
	}
	lacking(whole < 100, "fewer than 100 calls through the gateway were answered")
	lacking(left == 0, "no agent left in the middle of an answer")
	lacking(refused == 0, "the gateway refused nothing")
	lacking(broken == 0 && slices.Contains(r.facts.Demanded, "gateway-upstream-cuts"), "no agent saw an answer break off")
}
